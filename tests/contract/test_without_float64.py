"""Tests of runs on a device without float64, as Apple's GPUs are (``--device mps``).

The simulated GPU refuses float64, and protofl is told that it has none. The tests can't show which
operations Apple's own kernels lack, or how these round.
"""

from __future__ import annotations

import golden_runs
import pytest
import torch
from slowness import quick

import protofl as pf
from protofl import functional as F
from protofl.functional import precision
from protofl.hooks.discovery.registry import Registry
from protofl.testing import toy as toyfed

RUNS = [name for name in golden_runs.RUNS if not name.startswith(("fedl2g", "fedtsp"))]
"""The simulated device can't follow `torch.func.jvp` (fedl2g), and no index that is a list
(fedtsp)."""

REGISTRY = Registry()
DEFENCES = ["multi-krum", "geometric-median", "coordinate-median", "trimmed-mean", "cosine-filter"]

TAKEN = {
    "dp-prototypes": (
        "fedproto",
        {"models": toyfed.group(toyfed.FROZEN), "drop": ["align"]},
    ),
    "dp-sgd": ("lg-fedavg", {"models": toyfed.group(toyfed.CNN)}),
}
"""{transform: a method and options that it does not refuse}."""


def names_of(kind):
    return [plugin.name for plugin in REGISTRY.plugins(kind) if "protofl" in plugin.distribution]


def fits_classes(metric):
    return "classification" in getattr(REGISTRY.load("metric", metric), "tasks", ["classification"])


@pytest.fixture
def device(gpu, monkeypatch):
    """The name of a device without float64."""
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", {"mps", "simgpu"})
    gpu.float64 = False
    return "simgpu"


def test_the_device_refuses_float64(device):
    x = torch.ones(3, device=device)
    for refused in (x.double, lambda: torch.ones(2, dtype=torch.float64).to(device)):
        with pytest.raises(TypeError, match="float64"):
            refused()
    assert F.in_float64(x).dtype == torch.float64 and F.in_float64(x).device.type == "cpu"
    assert not F.has_float64(x.device) and F.has_float64(torch.device("cpu"))
    assert F.in_float64(torch.ones(2)).dtype == torch.float64


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(RUNS, "fedavg", "fedproto"))
def test_two_rounds_of_every_method_need_none(name, device, tmp_path):
    found = []
    for where in ("cpu", device):
        (folder := tmp_path / where).mkdir()
        found.append(toyfed.Toy(golden_runs.plan_of(name, folder, device=where)).rounds(2))
    on_cpu, there = found
    for one, other in zip(on_cpu, there, strict=True):
        assert one["loss_terms"].keys() == other["loss_terms"].keys()
    # In the first round clients train on what they have themselves: rounding alone differs.
    for term, loss in on_cpu[0]["loss_terms"].items():
        assert there[0]["loss_terms"][term] == pytest.approx(loss, rel=1e-3, abs=1e-3)


def test_metrics_and_measures_need_none(device, tmp_path):
    metrics = [n for n in names_of("metric") if fits_classes(n)]
    measures = ["global-accuracy"]
    options = {"metrics": metrics, "measure": measures, "validation": 0.2}
    toy = toyfed.make_images([[8, 6, 4, 6]] * 4)
    rows = []
    for where in ("cpu", device):
        run = pf.run(
            "fedproto",
            models="cnn4",
            dataset=(toy.x.numpy(), toy.y.numpy()),
            clients=4,
            rounds=2,
            batch_size=16,
            feature_dim=16,
            device=where,
            backend="local",
            out=tmp_path / where,
            data_dir=tmp_path,
            **options,
        )
        rows.append(run.record[-1])
    one, other = rows
    assert one["metrics"].keys() == other["metrics"].keys() and len(one["metrics"]) == len(metrics)
    assert one["test_accuracy"] == pytest.approx(other["test_accuracy"], abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("transform", quick(names_of("payload-transform"), "quantise"))
def test_transforms_need_none(transform, device, tmp_path):
    if transform.startswith("dp-"):
        pytest.importorskip("dp_accounting")
    plugin = REGISTRY.load("payload-transform", transform)
    method, options = TAKEN.get(transform, ("fedproto", {}))
    options |= {"malicious": 0.25} if getattr(plugin, "attack", False) else {}
    chosen = {transform: plugin.check_options} if hasattr(plugin, "check_options") else {}
    plan = toyfed.make_plan(
        method, tmp_path, device=device, transforms=[transform], options=chosen, **options
    )
    toyfed.Toy(plan).rounds(2)


@pytest.mark.slow
@pytest.mark.parametrize("defence", quick(DEFENCES, "multi-krum", "geometric-median"))
def test_defences_need_none(defence, device, tmp_path):
    found = []
    for where in ("cpu", device):
        use = {"server_aggregate": defence}
        plan = toyfed.make_plan("fedproto", tmp_path, device=where, use=use)
        found.append(toyfed.Toy(plan).rounds(2)[0]["loss_terms"])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_svd_and_distances_need_none(device):
    drawn = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    there = drawn.to(device)
    for function in (
        lambda x: F.squared_distances(x, x[:3]),
        lambda x: F.truncated_svd(x, 0.9)[1],
        lambda x: F.truncated_svd(x.view(2, 3, 40), 0.9)[1],
    ):
        assert torch.allclose(function(drawn).float(), function(there).cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["cuda-graphs", "vmapped", "layers"])
def test_other_engines_than_eager_are_refused_on_mps(engine, tmp_path, monkeypatch):
    zeros = torch.zeros
    monkeypatch.setattr(
        torch, "zeros", lambda *size, device=None: zeros(*size)
    )  # as if there were one
    with pytest.raises(pf.UsageError, match=f"--engine {engine}: on mps clients train with eager"):
        toyfed.make_plan("fedproto", tmp_path, device="mps", engine=engine)
