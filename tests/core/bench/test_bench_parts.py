"""The pieces of ``protofl bench``: cases, balanced subsets, comparison, chart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from protofl.bench.cases import CASES, QUICK, choose
from protofl.bench.chart import draw
from protofl.bench.compare import compare, difference
from protofl.bench.measure import spread
from protofl.bench.side import cpu_seconds, peak_memory
from protofl.bench.subset import find_data, share_of, write_subset
from protofl.data.dataset import Dataset
from protofl.data.npz import read_npz
from protofl.errors import UsageError
from safetensors.torch import save_file

# --- cases --------------------------------------------------------------------------------------


def names(*words):
    return [case.name for case in choose(words)]


def test_cases_are_chosen_by_name_and_pattern():
    assert len({case.name for case in CASES}) == len(CASES)
    assert set(names()) == set(QUICK)
    assert names("all") == [case.name for case in CASES]
    assert names("mnist-fml", "digits-local", "mnist-fml") == ["digits-local", "mnist-fml"]
    assert names("cifar10-*") == ["cifar10-fedproto", "cifar10-fedproto-bf16"]


def test_an_unknown_case_names_those_near():
    with pytest.raises(UsageError, match="unknown case 'mnist-fedpro'") as found:
        choose(["mnist-local", "mnist-fedpro"])
    assert "mnist-fedproto" in found.value.near and "--list" in found.value.do


def test_the_issue_s_cases_are_600_steps_of_ten():
    for case in CASES:
        if case.data == "mnist":
            assert case.clients * case.samples == 600 * 10


def test_another_size_is_another_case():
    (case,) = choose(["mnist-fedproto"])
    assert case.scaled(None, None) is case and case.scaled(20, 300) is case
    assert case.scaled(4, None).target is None and case.scaled(4, None).clients == 4
    assert case.scaled(None, 12).samples == 12


# --- data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 2, 3, 10, 40, 41, 120, 299, 300, 301])
def test_three_quarters_of_a_share_are_the_training_samples(samples):
    assert math.floor(share_of(samples) * 0.75 + 1e-9) == samples


def images_of(labels):
    x = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    return Dataset(x.clone(), torch.tensor(labels), len(labels), ["a", "b", "c"])


def test_a_subset_is_the_first_images_of_every_class(tmp_path):
    images = images_of([0, 0, 0, 0, 1, 2, 1, 2, 0, 1, 2, 1])
    write_subset(images, 2, 3, tmp_path / "x.npz", "toy")  # 2 × 4 images
    found = read_npz(tmp_path / "x.npz")
    assert found.classes == ["a", "b", "c"]
    assert found.x[:, 0, 0, 0].tolist() == [0, 1, 2, 4, 5, 6, 7, 9]
    assert found.y.tolist() == [0, 0, 0, 1, 2, 1, 2, 1]


def test_classes_that_run_out_are_filled_up_from_others(tmp_path):
    images = images_of([0] * 9 + [1, 2, 2])
    write_subset(images, 2, 3, tmp_path / "x.npz", "toy")
    assert np.bincount(read_npz(tmp_path / "x.npz").y).tolist() == [5, 1, 2]


def test_too_few_images_say_how_many_would_do(tmp_path):
    with pytest.raises(UsageError, match="16 images are needed for 4 clients") as found:
        write_subset(images_of([0, 1, 2] * 3), 4, 3, tmp_path / "x.npz", "toy")
    assert "--samples 1" in found.value.do
    write_subset(images_of([0, 1, 2] * 3), 4, 1, tmp_path / "x.npz", "toy")


def test_where_data_come_from(tmp_path):
    for name in ("mnist-12k.npz", "cifar100.npz", "cifar10_small.npz"):
        (tmp_path / name).touch()
    assert find_data("mnist", None, {}) == "mnist"
    assert find_data("mnist", tmp_path, {}) == f"npz:{tmp_path / 'mnist-12k.npz'}"
    assert find_data("cifar10", tmp_path, {}) == f"npz:{tmp_path / 'cifar10_small.npz'}"
    assert find_data("digits", tmp_path, {}) == "digits"
    assert find_data("mnist", tmp_path, {"mnist": "fashion-mnist"}) == "fashion-mnist"
    with pytest.raises(UsageError, match="no file of svhn"):
        find_data("svhn", tmp_path, {})
    with pytest.raises(UsageError, match="is no folder"):
        find_data("mnist", tmp_path / "nowhere", {})
    (tmp_path / "mnist.npz").touch()
    with pytest.raises(UsageError, match="several files of mnist"):
        find_data("mnist", tmp_path, {})


# --- comparison ---------------------------------------------------------------------------------


def test_difference():
    a = torch.tensor([1.0, -4.0])
    assert difference(a, a) == 0
    assert difference(a + torch.tensor([0.0, 1e-3]), a) == pytest.approx(2.5e-4, rel=1e-3)
    assert difference(torch.zeros(0), torch.zeros(0)) == 0
    assert difference(torch.full((2,), 3e-17), torch.zeros(2)) == pytest.approx(3e-14)  # rounding
    for other in (None, torch.zeros(3), torch.tensor([1.0, torch.nan])):
        assert difference(a, other) == torch.inf


def test_states_are_compared_by_name(tmp_path):
    ours = {"knowledge/prototypes": torch.ones(2), "client/0/model/w": torch.ones(3)}
    save_file({**ours, "knowledge/more": torch.ones(1)}, tmp_path / "a")
    save_file(ours, tmp_path / "b")
    found = compare(tmp_path / "a", tmp_path / "b", {"0": 0.5}, {"0": 0.5})
    assert (found["largest"], found["tensors"], found["accuracies_apart"]) == (0.0, 2, 0)
    save_file({"knowledge/prototypes": torch.ones(2)}, tmp_path / "c")  # a client is missing
    found = compare(tmp_path / "a", tmp_path / "c", {"0": 0.5}, {"0": 0.25})
    assert found["largest"] == torch.inf and found["where"] == "client/0/model/w"
    assert (found["accuracies_apart"], found["accuracy"]) == (1, 0.25)


# --- measures -----------------------------------------------------------------------------------


def test_spread():
    assert spread([3.0, 1.0, 2.0, 9.0]) == {"min": 1.0, "median": 2.5, "max": 9.0}


def test_memory_and_processor_time_of_this_process():
    before, found = cpu_seconds(), peak_memory()
    assert found["processes"] >= 1 and found["host"] > 10_000_000
    block = bytearray(200_000_000)
    block[::4096] = b"x" * len(block[::4096])  # touched, so that it is resident
    assert peak_memory()["host"] >= 200_000_000
    assert cpu_seconds() > before


@pytest.mark.parametrize("against", [None, "other.py"])
def test_a_chart(tmp_path, against):
    side = {"seconds": {"total": {"min": 0.9, "median": 1.0, "max": 1.5}}}
    row = {"name": "a-case", "protofl": side, "against": side if against else None}
    row["ratio"] = {"min": 1.0, "median": 1.0, "max": 1.0} if against else None
    draw({"against": against, "cases": [row, {**row, "name": "b"}]}, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
