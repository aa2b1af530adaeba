"""Every engine against the reference: the same rounds, the same weights and losses."""

from __future__ import annotations

import pytest
import torch
import toyfed
from engine_toys import METHODS, RESIDUAL, Run, assert_equal_runs, make_plan, use_double

ENGINES = ["vmapped", "captured", "compiled"]
ONE_ARCHITECTURE = ("fedavg", "fedprox")


@pytest.fixture
def double(monkeypatch):
    use_double(monkeypatch)
    yield
    torch.set_default_dtype(torch.float32)


def members_of(method):
    # No bias before BatchNorm: its gradient is 0 but for rounding, which Adam blows up.
    return [RESIDUAL] if method in ONE_ARCHITECTURE else [toyfed.CNN, RESIDUAL]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_all_methods_in_float64(engine, method, double, tmp_path):
    made = [
        make_plan(method, tmp_path, members_of(method), engine=name) for name in ("eager", engine)
    ]
    wanted, found = (Run(plan, start=1) for plan in made)
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-9)
