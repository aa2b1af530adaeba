"""Tests of what a run loads: its own parts, and no library or module for what it does not do.

One test prints how many of our modules and lines of code `protofl.run` loads. It sets no limit.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RUN = """
import sys

BLOCKED = {"matplotlib", "jinja2", "sklearn", "pandas", "scipy", "torchvision", "typer"}
BLOCKED -= {*ALLOWED}

class Block:
    def find_spec(self, name, path=None, target=None):
        if name in BLOCKED:
            raise ImportError(f"{name} is imported", name=name)

sys.meta_path.insert(0, Block())
import numpy as np
import protofl as pf

rng = np.random.default_rng(0)
x, y = rng.random((80, 3, 16, 16), dtype=np.float32), np.arange(80) % 4
options = {"models": "cnn4", "dataset": (x, y), "out": "run", "clients": 2, "rounds": 1}
options |= {"partition": "iid", "backend": "local", "progress": False, **MORE}
result = pf.run("fedproto", **options)
assert len(result.record) == 1
print("loaded:", *sys.modules)
"""

DOORS = {
    "protofl.data.advice": "an error about arrays",
    "protofl.data.columns": "columns of the data",
    "protofl.data.fitting": "dataset=csv:FILE",
    "protofl.data.generators": "generator",
    "protofl.data.subset": "subset, validation, dataset.group",
    "protofl.data.targets": "dataset.task",
    "protofl.hooks.plugin.merging": "add, with",
    "protofl.hooks.views.tracked_run": "track",
    "protofl.hooks.wire.weights": "weights on the wire, resume",
    "protofl.records.reading": "resume, reuse",
    "protofl.records.schema": "resume, reuse",
    "protofl.records.weights": "init",
    "protofl.runs.dry_run.effect_checks": "use, add, and server_train",
    "protofl.runs.lifecycle.backend_choice": "backend=auto",
    "protofl.runs.lifecycle.engine_choice": "engine=auto on a GPU",
    "protofl.runs.results.changes": "resume",
    "protofl.runs.results.kept_weights": "keep_weights",
    "protofl.federation.clients.sample_outputs": "observe, record_predictions",
    "protofl.federation.clients.step_trace": "engine=cuda-graphs",
    "protofl.federation.pools.dispatcher": "backend=process",
    "protofl.federation.round.predictions": "record_predictions",
    "protofl.runs.resume.reuse": "reuse",
    "protofl.runs.resume.requested_run": "reuse",
    "protofl.runs.lifecycle.resumption": "resume",
    "protofl.runs.lifecycle.tracking": "track",
    "protofl.federation.round.observer": "observe",
    "protofl.federation.round.schedules": "timing",
    "protofl.federation.time.virtual_clock": "devices",
    "protofl.federation.round.outliers": "on_bad_upload",
    "protofl.system.gpu_flags": "device=cuda",
    "protofl.system.named_devices": "device",
    "protofl.system.profile": "profile",
    "protofl.federation.clients.parked": "client_store=memory, beside a GPU",
    "protofl.federation.plan.client_arrivals": "unseen, join_round",
    "protofl.federation.round.public_logits": "measure=public-logits",
    "protofl.federation.round.replay": "participants_from",
    "protofl.hooks.malicious": "malicious",
    "protofl.runs.lifecycle.progress_lines": "progress",
    "protofl_plugins.backends.process": "backend=process",
    "protofl_plugins.engines.captured_steps": "engine=cuda-graphs",
    "protofl_plugins.engines.cuda_graphs": "engine=cuda-graphs",
}
"""{module: the option or function that imports it}."""


def loaded(folder, allowed=(), **more):
    """Return the modules that a process has loaded after a small run.

    Args:
        folder: The folder of the process.
        allowed: Names of blocked libraries that the run may import.
        **more: Further options of the run.
    """
    program = RUN.replace("MORE", repr(more)).replace("ALLOWED", repr(allowed))
    words = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.partition("loaded: ")[2].split())


def test_a_run_loads_what_it_uses(tmp_path):
    modules = loaded(tmp_path)
    assert "protofl_plugins.methods.fedproto" in modules
    assert not modules & {*DOORS}
    packages = {name.partition(".")[0] for name in modules}
    others = {"protofl_workbench", "protofl_cli"}
    assert not packages & {*others, "protofl_flower", "protofl_ray", "protofl_privacy"}
    assert not any(name.startswith("protofl.testing") for name in modules)
    methods = {n for n in modules if n.startswith("protofl_plugins.methods.")}
    assert methods == {"protofl_plugins.methods.fedproto"}


COMMAND = """
import sys

BLOCKED = sys.argv.pop(1)

class Block:
    def find_spec(self, name, path=None, target=None):
        if name == BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
from protofl_cli.start import main
main()
"""


@pytest.mark.slow
def test_report_and_plot_name_what_they_lack(tmp_path):
    loaded(tmp_path)  # makes the run folder
    for package, words in (
        ("matplotlib", ["report", "run", "--out", "a.html"]),
        ("jinja2", ["report", "run", "--out", "a.html"]),
        ("matplotlib", ["plot", "curve", "run", "--out", "a.pdf"]),
    ):
        command = [sys.executable, "-c", COMMAND, package, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and f"pip install {package}" in done.stderr, done.stderr


@pytest.mark.slow
def test_an_option_opens_its_door(tmp_path):
    """The names of `DOORS` exist, so that a renamed module is noticed."""
    modules = loaded(tmp_path, observe="features")
    assert "protofl.federation.round.observer" in modules


def test_the_doors_exist():
    from importlib.util import find_spec

    assert all(find_spec(name) for name in DOORS)


def test_the_size_of_a_run_is_printed(tmp_path, capsys):
    options = {"models": "mlp", "dataset": "wine", "data_dir": str(tmp_path / "data")}
    modules = loaded(tmp_path, ("sklearn", "scipy", "pandas"), **options)
    spec = importlib.util.spec_from_file_location("code_lines", ROOT / ".ci/code_lines.py")
    counter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(counter)
    files, lines = Counter(), Counter()
    for name in modules:
        package = name.partition(".")[0]
        if package.startswith("protofl"):
            path = Path(importlib.util.find_spec(name).origin)
            files[package] += 1
            lines[package] += counter.code_lines(path.read_text(encoding="utf-8"))
    assert {*files} == {"protofl", "protofl_plugins"}
    shown = ", ".join(f"{p} {files[p]} modules, {lines[p]:,} lines of code" for p in sorted(files))
    with capsys.disabled():
        print(f"\npf.run of FedProto on wine loads {shown}")
