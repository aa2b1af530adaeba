"""Tests of the imports of a run and of its workers: slow imports delay every start."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.hooks.models.flops import cost, profile

HEAVY = ("torchvision", "sklearn", "matplotlib", "scipy", "torch._dynamo", "torch._inductor")

GUARD = f"""
import os, sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name in {HEAVY!r}:
            with open(os.environ["IMPORTED"], "a") as file:
                print(name, file=file)
        if name == "protofl_plugins.backends.worker" or name == "protofl.federation.clients.host":
            with open(os.environ["SEEN"], "a") as file:
                print(os.getpid(), file=file)
sys.meta_path.insert(0, Guard())
"""

RUN = """
import protofl as pf
pf.run("fedproto", models="htcnn8", dataset="npz:images.npz", clients=4, rounds=2, workers=2,
       backend="process", data_dir="data", out="run", partition="iid")
"""


@pytest.mark.slow
def test_plain_nets_need_torch_alone_in_the_run_and_in_its_workers(tmp_path):
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "images.npz",
        x_train=random.integers(0, 256, (160, 28, 28), dtype=np.uint8),
        y_train=np.arange(160) % 4,
    )
    (tmp_path / "sitecustomize.py").write_text(GUARD)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = os.environ | {
        "PYTHONPATH": path,
        "IMPORTED": str(tmp_path / "imported"),
        "SEEN": str(tmp_path / "seen"),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    processes = set((tmp_path / "seen").read_text().split())
    assert len(processes) == 3  # the guard was active in the run and in both workers
    imported = tmp_path / "imported"
    assert not imported.exists(), imported.read_text()


@pytest.mark.parametrize("group", ["htcnn8", "fedpkd-het"])
def test_the_cost_of_an_architecture_is_half_its_flops(group, tmp_path):
    plan = pf.backends.Plan.make(
        {"method": "local", "models": group, "backend": "local", "data_dir": str(tmp_path)}
    )
    info = plan.info
    state = torch.get_rng_state()
    for architecture in info.architectures:
        sizes = (info.sample, info.num_classes, info.feature_dim)
        assert 2 * cost(architecture, *sizes) == profile(architecture, *sizes)[1]
        assert plan.cost(architecture) == cost(architecture, *sizes)
    assert torch.equal(torch.get_rng_state(), state)


def test_warming_up_changes_no_result(tmp_path):
    plan = pf.backends.Plan.make(
        {"method": "local", "models": "htcnn8", "backend": "local", "data_dir": str(tmp_path)}
    )
    before = plan.initial_model(0, 0).state_dict()
    state = torch.get_rng_state()
    pf.backends.Host(plan).warm_up()
    assert torch.equal(torch.get_rng_state(), state)
    after = plan.initial_model(0, 0).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
