"""Tests that the naive reference loop and protofl reach the same weights.

The naive loop shares no arithmetic with protofl, so this also checks the methods.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bench_cases import load, write_subset
from bench_loops import (
    TOLERANCE,
    double_precision,
    largest_difference,
    open_loop,
    write_state,
)
from safetensors.torch import load_file
from slowness import quick

from protofl import UsageError
from protofl.backends import Plan

NAIVE = str(Path(__file__).parents[2] / "benchmarks/naive.py")
METHODS = ("local", "fedavg", "fedproto", "fedtgp", "fedsa", "fml", "fedkd")
CLIENTS = 2


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread, because tests run in parallel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("bench"), CLIENTS, 12)


def write_data(folder, clients, samples):
    """Write a class-balanced file with this number of digits images for each client."""
    write_subset(load("digits", None, folder), clients, samples, folder / "digits.npz")
    return folder


def plan_of(data, method, **options):
    return Plan.make(
        {
            "method": method,
            "models": "cnn4" if method == "fedavg" else "htcnn8",
            "dataset": f"npz:{data / 'digits.npz'}",
            "data_dir": data,
            "partition": "iid",
            "clients": CLIENTS,
            "rounds": 2,
            "feature_dim": 32,
            "batch_size": 5,
            "lr": 0.05,
            "backend": "local",
            **options,
        },
        report=lambda line: None,
    )


def state_of(plan, file, folder, name):
    """Run two rounds in float64; return the file of the final state."""
    own = folder / f"{name}-files"
    own.mkdir()
    with double_precision():
        loop = open_loop(plan, own, file)
        for number in range(2):
            seconds = loop.round(number)
            assert seconds["train"] > 0
        write_state(loop, folder / name)
        return folder / name


def both(plan, other, folder):
    """Return the largest difference between protofl's loop and the naive one, and its place."""
    return largest_difference(
        state_of(plan, None, folder, "a"), state_of(other, NAIVE, folder, "b")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    quick(METHODS, "fedavg", "fedtgp"),
)
def test_both_reach_the_same(data, tmp_path, method):
    options = {"options": {"fedtgp": {"S": 5}}} if method == "fedtgp" else {}
    plan = plan_of(data, method, **options)
    largest, where = both(plan, plan, tmp_path)
    assert largest <= TOLERANCE, where
    state = load_file(tmp_path / "a")
    assert len(state["client/accuracies"]) == CLIENTS
    per_model = len(list(plan.initial_model(0, 0).parameters()))
    assert len(state) > CLIENTS * per_model
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
def test_dropout_draws_the_same(tmp_path):
    """Both loops draw the same dropout in the second client's net, in one small step.

    BatchNorm amplifies rounding: with two clients of nine samples, the loops differ by 4e-5.
    """
    data = write_data(tmp_path, 3, 15)
    plan = plan_of(data, "fedproto", models="htfe4", clients=3, batch_size=15, lr=1e-4)
    kinds = {type(m).__name__ for m in plan.initial_model(1, 0).modules()}
    assert "Dropout" in kinds
    largest, where = both(plan, plan, tmp_path)
    assert largest <= TOLERANCE, where


DIFFERENT = {
    "the weight of the guide": ("fedproto", {"options": {"fedproto": {"lambda": 0.1001}}}),
    "the margin's weight": ("fedsa", {"options": {"fedsa": {"lambda_2": 0.999}}}),
    "the seed": ("local", {"seed": 1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DIFFERENT)
def test_a_difference_is_noticed(data, tmp_path, what):
    method, options = DIFFERENT[what]
    largest, _ = both(plan_of(data, method), plan_of(data, method, **options), tmp_path)
    assert largest > 1000 * TOLERANCE


def test_parts_of_a_round(data, tmp_path):
    """The server's step and the evaluation can be repeated alone, as the benchmark does."""
    plan = plan_of(data, "fedtgp", options={"fedtgp": {"S": 2}})
    found = []
    for file in (None, NAIVE):
        own = tmp_path / str(file is None)
        own.mkdir()
        with double_precision():
            loop = open_loop(plan, own, file)
            loop.collect(0)
            before = loop.global_state()["prototypes"].clone()
            for number in range(3):
                loop.serve(number)
            assert not torch.equal(loop.global_state()["prototypes"], before)
            first, again = [loop.evaluate(0) and loop.accuracies() for _ in range(2)]
            assert first == again and set(first) == set(range(CLIENTS))
            found.append((loop.global_state()["prototypes"], first))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=TOLERANCE, atol=0)
    assert found[0][1] == found[1][1]


def test_what_the_naive_loop_does_not_do(data, tmp_path):
    with pytest.raises(UsageError, match="unknown method of the naive loop 'fedgh'"):
        open_loop(plan_of(data, "fedgh"), tmp_path, NAIVE)
    plan = plan_of(data, "fedproto", options={"fedproto": {"variant": "official"}})
    with pytest.raises(UsageError, match="variant=paper"):
        open_loop(plan, tmp_path, NAIVE)
