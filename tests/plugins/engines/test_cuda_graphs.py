"""CUDA graphs on the simulated GPU: captures, streams, order of launches, copies, random draws."""

from __future__ import annotations

import pytest
from engine_toys import METHODS, UNLIKE, make_plan
from slowness import quick
from width_toys import takes_one_net

from protofl.testing import toy as toyfed
from protofl.testing.equality import RESIDUAL, Run, assert_equal_runs, double_precision


def run(
    method, folder, members, engine="cuda-graphs", rounds=2, start=0, engine_options=None, **options
):
    parts = {"parts": {"engine": engine_options}} if engine_options else {}
    options = {"device": "simgpu", "lr": 0.005, **options, **parts}
    return Run(make_plan(method, folder, members, engine=engine, **options), rounds, start)


@pytest.mark.parametrize(
    ("method", "streams"),
    quick(
        [(method, streams) for method in METHODS for streams in (1, 2, 8)],
        *((method, 8) for method in UNLIKE),
        ("fedproto", 1),
        ("fedproto", 2),
    ),
)
def test_every_method_equals_eager(method, streams, gpu, tmp_path):
    members = [RESIDUAL] if takes_one_net(method) else [toyfed.CNN, RESIDUAL]
    last = "capture" if streams == 8 else "auto"
    with double_precision():
        wanted = run(method, tmp_path, members, "eager", 2, 1)
        found, again = (
            run(method, tmp_path, members, "cuda-graphs", 2, 1, {"streams": streams, "last": last})
            for _ in range(2)
        )
        assert not found.notes
        assert gpu.graphs and not gpu.freed_early
        assert_equal_runs(found, wanted, 1e-9)
        assert toyfed.same(found.tensors(), again.tensors())
