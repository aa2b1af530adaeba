"""Tests of steps that are recorded on a CPU, and of what cannot be recorded."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from engine_toys import make_plan
from torch import nn

from protofl.testing import toy as toyfed
from protofl.testing.equality import Run, assert_equal_runs
from protofl_plugins.engines import recording
from protofl_plugins.engines.recording import Programs, Recording


def normed(sample, width):
    """Return a net with BatchNorm, whose statistics a step writes."""
    layers = nn.Linear(toyfed.SIDE**2, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(12, width))


NORMED = toyfed.architecture("normed", normed)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.003}])
@pytest.mark.parametrize("method", ["fedproto", "feddistill"])
def test_recorded_steps_equal_the_code_to_the_bit(method, options, tmp_path, monkeypatch):
    found, calls = [], []
    call = Recording.__call__

    def counted(self, *tensors):
        calls.append(self)
        return call(self, *tensors)

    monkeypatch.setattr(Recording, "__call__", counted)
    for pays in (10**9, 1, 3):
        monkeypatch.setattr(recording, "PAYS", pays)
        plan = make_plan(method, tmp_path, [NORMED], engine="vmapped", **options)
        found.append(Run(plan, rounds=3))
        assert bool(calls) == (pays < 10**9)
    assert len({*map(id, calls)}) < len(calls)  # one serves further steps
    for run in found[1:]:
        assert_equal_runs(run, found[0], 0.0)


def test_a_recording_writes_into_its_arguments_and_reads_others():
    table = torch.randn(7, 3)

    def step(x, rows, total):
        y = x.detach().requires_grad_()
        loss = (y @ table[rows].T).square().sum()
        (slope,) = torch.autograd.grad(loss, [y])
        total.add_(1)
        return {"loss": loss.detach(), "slope": slope, "none": None}

    torch.manual_seed(0)
    draw = [(torch.randn(4, 3), torch.randint(7, (5,))) for _ in range(3)]
    totals = torch.zeros(()), torch.zeros(())
    repeat = Recording(step, [*draw[0], torch.zeros(())])
    for x, rows in draw[1:]:
        wanted, found = step(x, rows, totals[0]), repeat(x, rows, totals[1])
        assert found["none"] is None
        assert all(torch.equal(found[name], wanted[name]) for name in ("loss", "slope"))
    assert totals[0] == totals[1] == 2


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x[x > 0].sum(),
        lambda x: x * x.sum().item(),
        lambda x: x * torch.rand(2),
        lambda x: x[x.argsort() == 0],
    ],
)
def test_a_step_that_cannot_be_repeated_runs_as_it_is(step, monkeypatch):
    monkeypatch.setattr(recording, "PAYS", 1)
    x = torch.tensor([-1.0, 2.0])
    with pytest.raises(ValueError, match="cannot be repeated"):
        Recording(step, [x])
    programs = Programs()
    torch.manual_seed(0)
    programs.run("key", step, [x])
    other = torch.tensor([3.0, 4.0])
    torch.manual_seed(1)
    found = programs.run("key", step, [other])
    torch.manual_seed(1)
    assert torch.equal(found, step(other))


@pytest.mark.slow
def test_recordings_and_checks_do_not_load_torch_s_compiler():
    """Its import takes two seconds, in which a small run trains."""
    code = """
import sys, torch
import protofl as pf
from protofl_plugins.engines.recording import Recording
Recording(lambda x: x * 2, [torch.ones(3)])
x = torch.ones(3)
trace = pf.backends.StepTrace(lambda: x.mul_(2), [x])
trace(), trace()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
