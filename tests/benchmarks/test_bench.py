"""Tests of ``benchmarks/bench.py``: cases, balanced subsets, differences, and a measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import bench
import pytest
import torch
from bench_cases import CASES, QUICK, choose, load, write_subset
from bench_loops import difference, largest_difference
from npz_files import read_npz
from safetensors.torch import save_file

from protofl import UsageError
from protofl.datasets import Dataset

NAIVE = Path(__file__).parents[2] / "benchmarks/naive.py"
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")


def test_cases_are_chosen_by_name_and_pattern():
    def names(*words):
        return [case.name for case in choose(words)]

    assert len({case.name for case in CASES}) == len(CASES)
    assert set(names()) == set(QUICK)
    assert names("mnist-fml", "digits-local", "mnist-fml") == ["digits-local", "mnist-fml"]
    assert names("cifar10-*") == ["cifar10-fedproto", "cifar10-fedproto-bf16"]
    with pytest.raises(UsageError, match="unknown case 'mnist-fedpro'") as found:
        names("mnist-local", "mnist-fedpro")
    assert "mnist-fedproto" in found.value.near


def images_of(labels):
    x = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    return Dataset(x.clone(), torch.tensor(labels), len(labels), ["a", "b", "c"])


def test_a_subset_is_the_first_images_of_every_class(tmp_path):
    images = images_of([0, 0, 0, 0, 1, 2, 1, 2, 0, 1, 2, 1])
    write_subset(images, 2, 3, tmp_path / "x.npz")  # 2 × 4 images
    found = read_npz(tmp_path / "x.npz")
    assert found.classes == ["a", "b", "c"]
    assert found.x[:, 0, 0, 0].tolist() == [0, 1, 2, 4, 5, 6, 7, 9]
    assert found.y.tolist() == [0, 0, 0, 1, 2, 1, 2, 1]
    with pytest.raises(UsageError, match="4 clients need 16 samples, got 12"):
        write_subset(images, 4, 3, tmp_path / "x.npz")


def test_data_come_from_the_one_file_of_a_folder(tmp_path):
    write_subset(load("digits", tmp_path, tmp_path), 2, 12, tmp_path / "cifar10_small.npz")
    (tmp_path / "cifar100.npz").touch()
    assert len(load("cifar10", tmp_path, tmp_path).y) == 32
    (tmp_path / "cifar10.npz").touch()
    for kind, held in (("mnist", "none"), ("cifar10", "cifar10.npz, cifar10_small.npz")):
        with pytest.raises(UsageError, match=rf"expected one file {kind}\*.npz, found {held}"):
            load(kind, tmp_path, tmp_path)


def test_difference():
    a = torch.tensor([1.0, -4.0])
    assert difference(a, a) == 0
    assert difference(a + torch.tensor([0.0, 1e-3]), a) == pytest.approx(2.5e-4, rel=1e-3)
    assert difference(torch.zeros(0), torch.zeros(0)) == 0
    assert difference(torch.full((2,), 3e-17), torch.zeros(2)) == pytest.approx(3e-14)  # rounding
    for other in (None, torch.zeros(3), torch.tensor([1.0, torch.nan])):
        assert difference(a, other) == torch.inf


def test_states_are_compared_by_name(tmp_path):
    ours = {"global_state/prototypes": torch.ones(2), "client/0/model/w": torch.ones(3)}
    save_file({**ours, "global_state/more": torch.ones(1)}, tmp_path / "a")
    save_file(ours, tmp_path / "b")
    assert largest_difference(tmp_path / "a", tmp_path / "b")[0] == 0
    save_file({"global_state/prototypes": torch.ones(2)}, tmp_path / "c")  # a client is missing
    found = largest_difference(tmp_path / "a", tmp_path / "c")
    assert found == (torch.inf, "client/0/model/w")


def small(name):
    (case,) = choose([name])
    return replace(case, clients=2, samples=24)


@LINUX
@pytest.mark.slow
def test_a_measurement_beside_the_naive_loop():
    """test_naive_loop.py tests the parts of a round."""
    options = {"backend": "local", "options": {"fedtgp": {"S": 5}}}
    row = bench.measure(small("digits-fedtgp"), against=NAIVE, repeats=2, options=options)
    assert row["difference"] <= 1e-9
    for name in ("protofl", "naive.py"):
        assert [measure["train"] > 0 for measure in row["measures"][name]] == [True, True]
        assert row["memory"][name] > 50_000_000
    assert "equal in float64: yes" in list(bench.table(row))[-1]


OTHER = """
import torch

class Loop:
    def round(self, number): return {"train": 0.0}
    def accuracies(self): return {0: 0.0, 1: 0.0}
    def global_state(self): return {}
    def weights(self): return iter(())
    def close(self): pass

def open_loop(plan, folder):
    return Loop()
"""


@LINUX
@pytest.mark.slow
def test_a_loop_that_does_other_work_is_not_equal(tmp_path):
    (tmp_path / "other.py").write_text(OTHER)
    options = {"backend": "local"}
    row = bench.measure(
        small("digits-local"), against=tmp_path / "other.py", repeats=1, options=options
    )
    assert row["difference"] == torch.inf
    assert "equal in float64: NO" in list(bench.table(row))[-1]


@pytest.mark.slow
def test_errors_of_a_loop_reach_the_user(tmp_path):
    (tmp_path / "empty.py").touch()
    with pytest.raises(SystemExit, match="has no open_loop"):
        bench.main(["digits-local", "--against", str(tmp_path / "empty.py")])
    with pytest.raises(SystemExit, match="did you mean 'eager'"):
        bench.main(["digits-local", "--set", "engine=egaer"])
