"""Tests of several GPUs: which worker computes where, and what the run says."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import protofl as pf
from protofl.backends import Plan
from protofl.runs.dry_run import short_rounds  # noqa: F401 - the whole library, before patches
from protofl_plugins.backends import process
from protofl_workbench.batch.batch_tasks import with_hosts
from protofl_workbench.batch.run_batch import Request

WORKER = """
import os, pathlib, sys
if "protofl_plugins.backends.worker" in sys.orig_argv:
    import pytest, simulated_gpu, torch
    next(simulated_gpu.installed(pytest.MonkeyPatch()))
    if "FULL" in os.environ:
        def no_memory(*size, device=None):
            raise torch.OutOfMemoryError("CUDA error: out of memory")
        torch.zeros = no_memory
    pathlib.Path(os.environ["SEEN"], str(os.getpid())).touch()
"""


@pytest.fixture
def options(few, tmp_path_factory):
    return {"models": "cnn4", "clients": 5, "rounds": 2, "batch_size": 64, "feature_dim": 16} | {
        "dataset": few,
        "data_dir": tmp_path_factory.mktemp("data"),
        "dry_run": False,
    }


def plan_of(options, **others):
    return Plan.make({"method": "fedproto", **options, **others})


class Started:
    """Stands for a worker process; notes how it was started."""

    every: list = []

    def __init__(self, start, core):
        self.environment, self.classes = start[1], {}
        self.every.append(self)

    def begin(self, number, plan, device):
        self.plan, self.device = Plan.options_of(json.loads(plan)), device

    def close(self):
        pass


@pytest.fixture
def started(monkeypatch):
    """Return a function that opens a pool on GPUs that aren't there, and returns its workers."""
    monkeypatch.setattr(process, "Worker", Started)
    monkeypatch.setattr(Started, "every", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")

    def open_on(plan, *names, workers=0):
        devices = tuple(map(torch.device, names))
        plan = replace(plan, devices=devices)
        Started.every.clear()
        process.Process().open_pool(plan, process.Process.Config(), workers, None).close()
        return Started.every[:]

    return open_on


def test_worker_i_computes_on_gpu_i_mod_n(options, started):
    plan = plan_of(options)
    found = started(plan, "cuda:0", "cuda:1")
    assert [(w.device, w.environment["CUDA_VISIBLE_DEVICES"]) for w in found] == [
        ("cuda:0", "6"),
        ("cuda:1", "7"),
    ]
    assert {w.plan["device"] for w in found} == {"cuda"}  # the only one that each sees
    found = started(plan, "cuda:1", "cuda:0", workers=5)
    assert [w.environment["CUDA_VISIBLE_DEVICES"] for w in found] == ["7", "6", "7", "6", "7"]
    assert [w.device for w in started(plan, "cuda:1", "cuda:1")] == ["cuda:1"] * 2
    assert len(started(plan, "cuda")) == 1
    assert len(started(plan, "cuda:0", "cuda:1", workers=1)) == 1
    assert len(started(plan, *["cuda:0"] * 9)) == 5  # clients
    assert all(w.environment["OMP_NUM_THREADS"] == "1" for w in Started.every)


def test_on_cpus_there_is_one_for_each_core(options, started, monkeypatch):
    monkeypatch.setattr(pf.backends.Dispatcher, "cores", staticmethod(lambda: [0, 1, 2]))
    found = started(plan_of(options), "cpu")
    assert [w.device for w in found] == ["cpu"] * 3
    assert {w.environment["CUDA_VISIBLE_DEVICES"] for w in found} == {"6,7"}
    assert {w.plan["device"] for w in found} == {"cpu"}


def test_several_gpus_are_for_the_backend_process(options, gpu):
    gpu.number = 2
    plan = plan_of(options, device="simgpu:0,simgpu:1")
    assert plan.settings.backend == "process" and plan.settings.device == "simgpu:0,simgpu:1"
    assert plan.device == torch.device("simgpu:0")
    assert plan_of(options, device="simgpu").settings.backend == "local"
    with pytest.raises(pf.UsageError, match="GPU simgpu:2 does not exist"):
        plan_of(options, device="simgpu:0,simgpu:2")


@pytest.mark.parametrize(
    "backend",
    ["local", *(pytest.param(b, marks=pytest.mark.satellites) for b in ("ray", "flower"))],
)
def test_other_backends_refuse_several_gpus(options, gpu, backend):
    gpu.number = 2
    with pytest.raises(pf.UsageError, match=f"the backend {backend} does not") as caught:
        plan_of(options, device="simgpu:0,simgpu:1", backend=backend)
    assert "--backend process" in caught.value.do


def test_a_class_of_this_program_alone_has_one_gpu(options, gpu):
    class Mine:
        """A method of this program."""

        terms = {"ce": "cross-entropy"}

        @pf.hookimpl
        def local_loss(self, batch, output):
            return {}

    Mine.__module__ = "__main__"
    with pytest.raises(pf.UsageError, match="cannot see") as caught:
        pf.run(Mine, device="simgpu:0,simgpu:0", **options)
    assert "--backend local" in caught.value.do


def test_a_batch_leaves_a_run_on_several_gpus_its_workers():
    def hosts(device, count):
        given = with_hosts(Request({"method": "fedproto", "device": device}), count).options
        return given.get("workers"), given.get("backend")

    for device in ("cuda:0,cuda:1", "cuda:all"):
        assert hosts(device, 16) == hosts(device, 1) == (None, None)
    assert hosts("cpu", 16) == (16, None) and hosts("cpu", 1) == (None, "local")


def test_a_worker_that_can_not_compute_on_its_gpu_names_it(monkeypatch):
    def answer(doing):
        raise pf.UsageError("--device cuda: cuda has no memory left")

    worker = object.__new__(process.Worker)
    worker._ready, worker._name = False, ""
    monkeypatch.setattr(worker, "_answer", answer, raising=False)
    monkeypatch.setattr(process.wire, "send", lambda *args: None)
    worker._in = None
    worker.begin(1, "{}", "cuda:1")
    for waits in (worker.ready, lambda: worker.do("a job")):
        with pytest.raises(pf.UsageError, match=r"^worker 1 on cuda:1: --device cuda: cuda has no"):
            waits()


@pytest.fixture
def seen(gpu, tmp_path, monkeypatch):
    """A folder with the process ids of workers, which have the simulated GPU too."""
    site, folder = tmp_path / "site", tmp_path / "seen"
    site.mkdir()
    folder.mkdir()
    (site / "sitecustomize.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.setenv("SEEN", str(folder))
    return folder


@pytest.mark.slow
def test_a_gpu_without_memory_is_said_before_the_first_round(seen, options, tmp_path, monkeypatch):
    monkeypatch.setenv("FULL", "1")
    with pytest.raises(pf.UsageError, match=r"^worker \d on simgpu:0: .* has no memory left"):
        pf.run("fedproto", device="simgpu:0,simgpu:0", out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_workers_on_one_gpu_give_the_results_of_one_process(seen, options, tmp_path):
    one = pf.run("fedproto", device="simgpu", backend="local", out=tmp_path / "one", **options)
    two = pf.run("fedproto", device="simgpu:0,simgpu:0", out=tmp_path / "two", **options)
    workers = [int(path.name) for path in seen.iterdir()]
    assert len(workers) == 2 and os.getpid() not in workers
    assert [without_times(row) for row in one.record] == [without_times(row) for row in two.record]
    assert one.client_accuracies == two.client_accuracies


def without_times(row):
    return {key: value for key, value in row.items() if key not in ("seconds", "time")}


@pytest.mark.gpu
def test_two_workers_on_one_real_gpu_give_the_results_of_one_process(options, tmp_path):
    options |= {"deterministic": True, "engine": "eager"}
    one = pf.run("fedproto", device="cuda:0", out=tmp_path / "one", **options)
    two = pf.run("fedproto", device="cuda:0,cuda:0", out=tmp_path / "two", **options)
    assert [without_times(row) for row in one.record] == [without_times(row) for row in two.record]
