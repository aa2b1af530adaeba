"""Tests of ``--precision``: torch's flags during a run on a GPU, what is recorded, old records."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from runtime_toys import GIVEN, PARTS, install, make_plan, train

import protofl as pf
from protofl.backends import Plan
from protofl.runs.lifecycle.resumption import resumed_options
from protofl.runs.results.changes import differences
from protofl.runs.results.configuration import about_arithmetic, config_of
from protofl.runs.results.identity import defaults_of, identity_of
from protofl.system import device as devices
from protofl.system import gpu_flags
from protofl.system.device import ARITHMETIC, arithmetic, prepare_deterministic
from protofl.system.options.parsing import options_in

CUDA = torch.device("cuda")
"""Torch's flags can be set without such a device."""

NEW = bool(gpu_flags._operators())
"""Whether this torch has ``fp32_precision`` for each operator."""


def flags():
    """Return TF32 in convolutions and matrix products, as both interfaces of torch have it."""
    former = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    if NEW:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        each = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, matmul.fp32_precision
        conv, rnn, products = (precision == "tf32" for precision in each)
        assert (conv, rnn, products) == (former[0], *former)
    return former


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [
        ("fp32", (False, False)),
        ("tf32-conv", (True, False)),
        ("tf32", (True, True)),
        ("bf16", (True, False)),
    ],
)
def test_the_flags_are_set_in_the_block_and_restored_after_it(precision, wanted):
    before = flags()
    assert before == (True, False)  # torch's default, and so is tf32-conv
    with arithmetic(precision, CUDA):
        assert flags() == wanted and not torch.backends.cudnn.benchmark
        with arithmetic("fp32", CUDA):
            assert flags() == (False, False)
        assert flags() == wanted
    assert flags() == before
    with pytest.raises(ZeroDivisionError), arithmetic(precision, CUDA):
        raise ZeroDivisionError
    assert flags() == before
    with arithmetic(precision, torch.device("cpu")):
        assert flags() == before


@pytest.mark.skipif(not NEW, reason="this torch has one interface")
@pytest.mark.parametrize("precision", ARITHMETIC)
def test_a_program_may_use_the_new_interface_alone(monkeypatch, precision):
    """Then torch raises where its former interface is read."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    try:
        matmul.fp32_precision, conv.fp32_precision = "tf32", "ieee"
        with arithmetic(precision, CUDA):
            wanted = ARITHMETIC["tf32-conv" if precision == "bf16" else precision]
            assert (matmul.fp32_precision == "tf32") is (wanted.products == "tf32")
            assert (conv.fp32_precision == "tf32") is (wanted.convolutions == "tf32")
        assert (matmul.fp32_precision, conv.fp32_precision) == ("tf32", "ieee")
    finally:
        matmul.fp32_precision, conv.fp32_precision = before
    assert flags() == (True, False)


def test_benchmarking_is_off(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with arithmetic("tf32-conv", CUDA):
        assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark


class Watching:
    """A method whose clients and server note torch's flags."""

    @pf.hookimpl
    def upload_payload(self, client):
        SEEN["client"].add(torch.backends.cuda.matmul.allow_tf32)
        return pf.Payload(x=torch.zeros(1))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        SEEN["server"].add(torch.backends.cuda.matmul.allow_tf32)
        return {}


SEEN = {"client": set(), "server": set()}


def test_a_run_on_a_gpu_computes_with_its_precision(gpu, tmp_path, monkeypatch):
    install(monkeypatch)
    for seen in SEEN.values():
        seen.clear()
    options = {"device": "simgpu", "clients": 1, "rounds": 1}
    train(Watching, tmp_path / "run", precision="tf32", progress=False, **options)
    assert SEEN == {"client": {True}, "server": {True}}
    assert flags() == (True, False)


# --- what is recorded -----------------------------------------------------------------------------


def gpu_plan(**options):
    return Plan.make(GIVEN | {"method": "local", "device": "simgpu"} | options, PARTS)


def test_the_precision_of_a_gpu_is_named(gpu):
    config = config_of(gpu_plan())
    assert config["precision"] == "tf32-conv"
    assert config["arithmetic"] == {
        "convolutions": "tf32", "products": "float32", "repeatable": False
    }  # fmt: skip
    assert "precision" not in config["set_by"]
    strict = config_of(gpu_plan(precision="fp32", deterministic=True))
    assert strict["precision"] == "fp32"
    assert strict["arithmetic"] == {
        "convolutions": "float32", "products": "float32", "repeatable": True
    }  # fmt: skip
    line = about_arithmetic(gpu_plan())
    assert line.startswith("precision tf32-conv: convolutions in tf32, matrix products in float32")
    assert line.endswith("not repeatable to the bit (--deterministic is)")
    assert "equal bits" in about_arithmetic(gpu_plan(deterministic=True))
    assert not about_arithmetic(make_plan("local"))


def test_a_plan_elsewhere_has_the_same_precision(gpu):
    for options in ({}, {"precision": "fp32"}, {"precision": "bf16"}):
        settings = gpu_plan(**options).settings
        known = settings.model_dump() | {"device": "simgpu"}
        there = Plan.make(known, PARTS, recorded=True).settings.precision
        assert there == settings.precision


def test_a_cpu_computes_in_float32():
    with pytest.raises(pf.UsageError, match="--precision tf32: device cpu computes in float32"):
        make_plan("local", precision="tf32")
    assert make_plan("local", precision="tf32-conv").settings.precision == "fp32"
    assert make_plan("local", precision="bf16").settings.precision == "bf16"
    given = GIVEN | {"method": "local", "precision": "tf32"}
    assert Plan.make(given, PARTS, recorded=True).settings.precision == "fp32"


def test_the_identity_of_a_gpu_is_that_of_a_cpu(gpu):
    """The defaults of precision and engine follow the device, which has no part in an identity."""
    plan = gpu_plan()
    now, defaults = config_of(plan, engine_chosen=True), defaults_of(plan)
    of_cpu = config_of(make_plan("local"))
    assert identity_of(now, defaults) == of_cpu["identity"]
    assert differences(of_cpu, now, defaults)[0] == []
    # An engine that the run has chosen itself does not count, one that is asked for does.
    fast = plan.choosing("engine", "cuda-graphs", {"streams": 4})
    chosen = config_of(fast, engine_chosen=True)
    assert identity_of(chosen, defaults_of(fast)) == identity_of(now, defaults)
    assert identity_of(config_of(fast), defaults_of(fast)) != identity_of(now, defaults)
    lines, notes = differences(chosen, of_cpu, defaults)
    assert lines == [] and "engine was cuda-graphs and is eager" in notes
    assert config_of(plan)["engine"] == "auto"  # what --reuse looks for
    assert identity_of(config_of(plan), defaults) == identity_of(now, defaults)
    for precision in ("fp32", "tf32", "bf16"):
        other = gpu_plan(precision=precision)
        assert config_of(other)["identity"] != of_cpu["identity"]


def test_a_record_of_a_cpu_says_nothing_about_a_gpu(gpu):
    strict = config_of(gpu_plan(precision="fp32"))
    assert options_in(strict)["precision"] == "fp32"
    of_cpu = config_of(make_plan("local"))
    assert not {"precision", "engine"} & options_in(of_cpu).keys()
    resumed = resumed_options(of_cpu, {}, print)
    assert (resumed["precision"], resumed["engine"]) == ("fp32", "eager")
    with pytest.raises(pf.UsageError, match="--precision bf16 differs from the run's fp32"):
        resumed_options(of_cpu, {"precision": "bf16"}, print)


# --- deterministic --------------------------------------------------------------------------------


def test_the_variable_is_set_before_anything_computes(monkeypatch):
    """The first use of cuBLAS decides, so it is set while the options are resolved."""
    monkeypatch.delenv(devices.WORKSPACE, raising=False)
    make_plan("local")
    assert devices.WORKSPACE not in os.environ
    asked = []
    monkeypatch.setattr(
        "protofl.federation.plan.resolution.prepare_deterministic",
        lambda device: asked.append((device, prepare_deterministic(device))),
    )
    plan = make_plan("local", deterministic=True)
    assert os.environ[devices.WORKSPACE] == ":4096:8" and asked == [(plan.device, None)]


def test_a_program_that_used_cublas_before_is_told(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError(f"… set the environment variable {devices.WORKSPACE}=:4096:8 …")

    monkeypatch.setenv(devices.WORKSPACE, ":0:0")
    monkeypatch.setattr(torch, "ones", lambda *_, **__: Squared(fail))
    with pytest.raises(pf.UsageError, match=":0:0"):
        prepare_deterministic(CUDA)
    assert not torch.are_deterministic_algorithms_enabled()


class Squared(SimpleNamespace):
    """A matrix whose product fails."""

    def __init__(self, fail):
        super().__init__(fail=fail)

    def __matmul__(self, other):
        return self.fail()
