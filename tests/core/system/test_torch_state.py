"""Tests that torch's state of the calling program does not get into a run, and comes back."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import cache

import pytest
import torch
from slowness import quick

import protofl as pf
from protofl.system.torch_state import TorchState, standard_torch
from protofl_workbench.recorded.exported import read_exported

GIVEN = {
    "models": "cnn4", "dataset": "digits", "clients": 2, "rounds": 1, "subset": 100,
    "feature_dim": 8, "progress": False, "dry_run": False,
}  # fmt: skip


@contextmanager
def changed(set_value, value, usual):
    set_value(value)
    try:
        yield
    finally:
        set_value(usual)


@contextmanager
def left_inside():
    """Autocast that is off inside an open one: its cache of weights lives on."""
    with torch.autocast("cpu"), torch.autocast("cpu", enabled=False):
        yield


STATES = {
    "float64": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: changed(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "default device": lambda: changed(torch.set_default_device, "meta", None),
    "device": lambda: torch.device("meta"),
    "no grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "left autocast": left_inside,
}


PRECISIONS = {"fp32": {}, "bf16": {"precision": "bf16"}}

PAIRS = [(state, precision) for state in STATES for precision in PRECISIONS]


def results(folder, **options):
    """Train, and use the run in each way; every value must be the same in each state."""
    found = pf.run("fedgh", out=folder, **GIVEN, **options)
    run = pf.load_run(folder)
    x = run.plan.data.x[:4]
    row = found.record[0]
    told = [row["test_accuracy"], row["train_loss"], row["upload_bytes"], run.identity]
    told += [run.predict(0, x).tolist(), run.scorer(0)(x).tolist()]
    run.export(0, folder / "client.pt2")
    exported = read_exported(folder / "client.pt2", trust_pickle=True).scores(x)
    told += [exported.round(decimals=4).tolist()]
    told += [{name: value.tolist() for name, value in run.global_state().items()}]
    return told


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Return the results of a precision in torch's usual state."""
    folder = tmp_path_factory.mktemp("calm")
    return cache(lambda name: results(folder / name, backend="local", **PRECISIONS[name]))


@pytest.mark.parametrize(
    ("state", "precision"),
    quick(PAIRS, ("float64", "fp32"), ("autocast", "bf16")),
)
def test_a_run_sets_the_state_and_restores_it(tmp_path, calm, state, precision):
    expected = calm(precision)
    with STATES[state]():
        before = TorchState()
        assert results(tmp_path / "a", backend="local", **PRECISIONS[precision]) == expected
        assert TorchState() == before
    assert TorchState() == TorchState(torch.float32, torch.device("cpu"), True, False)


@pytest.mark.slow
def test_workers_have_the_state_of_a_run(tmp_path, calm):
    expected = calm("fp32")
    with STATES["float64"](), STATES["autocast"]():
        assert results(tmp_path / "a", backend="process", workers=1) == expected


def test_a_refused_run_restores_the_state():
    with STATES["float64"](), torch.no_grad():
        before = TorchState()
        with pytest.raises(pf.UsageError):
            pf.run("fedgh", **{**GIVEN, "models": "missing"})
        assert TorchState() == before


LEFT = {
    "changed torch.autocast": lambda: torch.autocast("cpu").__enter__(),
    "changed torch's default dtype to float64": lambda: torch.set_default_dtype(torch.float64),
    "changed torch's default device to meta": lambda: torch.set_default_device("meta"),
    "switched torch's gradients off": lambda: torch.no_grad().__enter__(),
    "entered torch.inference_mode": lambda: KEPT.append(torch.inference_mode()),
}
KEPT = []


@pytest.mark.parametrize("words", LEFT)
def test_what_was_left_is_restored(words):
    with standard_torch():
        before = TorchState()
        LEFT[words]()
        for context in KEPT:
            context.__enter__()
        before.restore()
        assert TorchState() == before
        with nullcontext() if KEPT else torch.device("cpu"):
            assert torch.zeros(1, requires_grad=True).mul(2).requires_grad
        KEPT.clear()
        assert TorchState() == before
    assert TorchState() == TorchState(torch.float32, torch.device("cpu"), True, False)


@pytest.mark.slow
def test_autocast_of_one_client_does_not_stay_for_the_next(tmp_path):
    """A hook enters autocast and never leaves it: all other clients are as without it."""

    def train(leaves):
        class Method:
            """Leave autocast on in client 0, or not."""

            terms = {"ce": "cross-entropy"}

            @pf.hookimpl
            def local_loss(self, output, batch):
                return {"ce": torch.nn.functional.cross_entropy(output.logits, batch.y)}

            @pf.hookimpl
            def upload_payload(self, client):
                if leaves and client.id == 0:
                    torch.autocast("cpu").__enter__()
                return {}

        found = pf.run(Method, out=tmp_path / str(leaves), backend="local", seed=1, **GIVEN)
        return found.record[0]

    calm, row = train(False), train(True)
    assert row["test_accuracy"] == calm["test_accuracy"]
    assert row["train_loss"] == calm["train_loss"]
