"""Compare CUDA graphs with eager on a GPU; on other devices the steps run without a graph."""

from __future__ import annotations

import functools
import json

import pytest
from engine_toys import METHODS, make_plan
from width_toys import nets_of

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import (
    DROPOUT,
    RESIDUAL,
    Run,
    assert_equal_runs,
    double_precision,
    worst,
)
from protofl_plugins.engines import cuda_graphs

pytestmark = pytest.mark.gpu


def run(folder, members, engine, *, deterministic=False, **options):
    parts = {"parts": {"engine": options}} if options else {}
    more = {"engine": engine, "device": "cuda", "deterministic": deterministic}
    return Run(make_plan("fedproto", folder, members, **more, **parts), rounds=3, start=1)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("capture", ["always", "auto"])
def test_graphs_equal_eager(capture, streams, monkeypatch, tmp_path):
    """With ``always`` also chains of two steps."""
    monkeypatch.setattr(cuda_graphs, "CHAIN", 2)
    members = [toyfed.CNN, RESIDUAL]
    with double_precision():
        wanted = run(tmp_path, members, "eager")
        found = run(tmp_path, members, "cuda-graphs", capture=capture, streams=streams)
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-7)


@pytest.mark.parametrize("chain", [1000, 2])
def test_random_steps_draw_the_same_again_and_in_chains(chain, monkeypatch, tmp_path):
    runs = []
    for length in (1000, chain):
        monkeypatch.setattr(cuda_graphs, "CHAIN", length)
        options = {"deterministic": True, "streams": 2, "capture": "always"}
        runs.append(run(tmp_path, [DROPOUT], "cuda-graphs", **options))
        assert not runs[-1].notes
    first, again = runs
    assert toyfed.same(first.tensors(), again.tensors())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rates_that_fall_reach_a_recorded_step(optimizer, tmp_path):
    plans = [
        make_plan(
            "fedproto",
            tmp_path,
            [toyfed.CNN, RESIDUAL],
            engine=engine,
            device="cuda",
            lr_schedule="exponential",
            optimizer=optimizer,
            weight_decay=0.1,
        )
        for engine in ("eager", "cuda-graphs")
    ]
    with double_precision():
        wanted, found = (Run(plan, rounds=3) for plan in plans)
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-7)


ENGINES = {
    **{f"{n} streams": {"engine": "cuda-graphs", "set": {"engine.streams": n}} for n in (1, 2, 8)},
    "vmapped": {"engine": "vmapped"},
}


def round_in_float64(method, folder, **options):
    members = nets_of(method, [toyfed.CNN, RESIDUAL], [RESIDUAL])
    with double_precision():
        return Run(make_plan(method, folder, members, device="cuda", lr=0.005, **options), start=1)


@pytest.fixture(scope="module")
def eager_round(tmp_path_factory):
    """Return a function: a round of a method with `eager`, computed once."""
    return functools.cache(lambda method: round_in_float64(method, tmp_path_factory.mktemp(method)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_all_methods_in_float64(method, engine, eager_round, tmp_path):
    """In float32 rounding alone drives runs apart: on a CPU, one of FedKTL by 2 % in one round."""
    streams = ENGINES[engine].get("set", {}).get("engine.streams")
    parts = {"parts": {"engine": {"streams": streams}}} if streams else {}
    found = round_in_float64(method, tmp_path, engine=ENGINES[engine]["engine"], **parts)
    assert not found.notes
    wanted = eager_round(method)
    assert_equal_runs(found, wanted, 1e-7)
    # What the server has learned in the round, whose steps are replayed as well.
    ours, theirs = (dict(each.federation.server.global_state) for each in (found, wanted))
    assert worst(theirs, ours) <= 1e-7


# --- whole runs: digits, cnn4, 4 clients, 2 rounds, seed 0 ----------------------------------------

EAGER = {
    "local": (0.914, 0.3861),
    "fedavg": (0.512, 0.4871),
    "fedproto": (0.865, 0.7077),
    "fedsa": (0.916, 1.419),
    "fedorgp": (0.980, 47.48),
    "alignfed": (0.960, 6.43),
    "fedgh": (0.902, 0.4647),
}
"""Accuracy and training loss of round 2 with `eager`; three digits are equal on GPUs and CPUs."""


def figures(method, folder, **options):
    """Return the accuracy and the training loss of both rounds.

    Without TF32 in convolutions, torch's default on a GPU, which has 10 bits.
    """
    found = pf.run(
        method,
        models="cnn4",
        dataset="digits",
        clients=4,
        rounds=2,
        seed=0,
        device="cuda",
        backend="local",
        out=folder / "run",
        progress=False,
        precision="fp32",
        **options,
    )
    lines = (found.folder / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["test_accuracy"], row["train_loss"]) for row in rows]


@pytest.fixture(scope="module")
def by_eager(tmp_path_factory):
    """Return a function: the figures of a method with `eager`, computed once."""
    return functools.cache(lambda m: figures(m, tmp_path_factory.mktemp(m), engine="eager"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", EAGER)
def test_whole_runs_are_those_of_eager(method, engine, by_eager, tmp_path):
    found = figures(method, tmp_path, **ENGINES[engine])
    for (accuracy, loss), (ours, own) in zip(by_eager(method), found, strict=True):
        assert ours == pytest.approx(accuracy, abs=0.02)
        assert own == pytest.approx(loss, rel=0.01)


@pytest.mark.parametrize("engine", ["eager", *ENGINES])
def test_equal_runs_give_equal_bits(engine, tmp_path):
    exact = {**ENGINES.get(engine, {"engine": "eager"}), "deterministic": True}
    first, again = (figures("fedproto", tmp_path / each, **exact) for each in ("one", "two"))
    assert first == again


@pytest.mark.parametrize("method", EAGER)
def test_eager_gives_what_a_cpu_gives(method, by_eager):
    accuracy, loss = by_eager(method)[-1]
    assert accuracy == pytest.approx(EAGER[method][0], abs=0.02)
    assert loss == pytest.approx(EAGER[method][1], rel=0.02)
