"""Compare CUDA graphs with eager on a GPU; on other devices the steps run without a graph."""

from __future__ import annotations

import pytest
from engine_toys import make_plan

from protofl.testing import toy as toyfed
from protofl.testing.equality import DROPOUT, RESIDUAL, Run, assert_equal_runs, double_precision

pytestmark = pytest.mark.gpu


def run(folder, members, engine, **options):
    parts = {"parts": {"engine": options}} if options else {}
    plan = make_plan("fedproto", folder, members, engine=engine, device="cuda", **parts)
    return Run(plan, rounds=3, start=1)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("last", ["capture", "plain"])
def test_graphs_equal_eager(last, streams, tmp_path):
    members = [toyfed.CNN, RESIDUAL]
    with double_precision():
        wanted = run(tmp_path, members, "eager")
        found = run(tmp_path, members, "captured", last=last, streams=streams)
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-7)


def test_random_steps_draw_the_same_again(tmp_path):
    first, again = (run(tmp_path, [DROPOUT], "captured", streams=2) for _ in range(2))
    assert not first.notes
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
        for engine in ("eager", "captured")
    ]
    with double_precision():
        wanted, found = (Run(plan, rounds=3) for plan in plans)
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-7)
