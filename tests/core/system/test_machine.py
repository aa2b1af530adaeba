"""Tests of the facts about the machine in the record of a run."""

from __future__ import annotations

import pytest
import torch
from runtime_toys import make_plan

from protofl.runs.results.changes import describe_changes
from protofl.runs.results.configuration import config_of
from protofl.system import machine
from protofl.system.machine import machine_facts, recorded_facts


def test_instruction_sets_and_their_limits(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.delenv("MKL_ENABLE_INSTRUCTIONS", raising=False)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    facts = machine_facts()
    assert facts["processor"]
    assert facts["instruction_set"] == torch.backends.cpu.get_cpu_capability()
    assert facts["instruction_limits"] == "ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE"
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setenv("MKL_CBWR", "")
    assert machine_facts()["instruction_limits"] == "none"


def test_facts_of_a_record():
    config = {"versions": {"torch": "2.6"}, "machine": {"instruction_set": "AVX2"}}
    assert recorded_facts(config) == {"torch": "2.6", "instruction set": "AVX2"}
    assert recorded_facts({}) == {}


def test_a_changed_instruction_set_is_told():
    plan = make_plan("fedproto")
    recorded = config_of(plan)
    assert describe_changes(recorded, plan) == []
    recorded["machine"]["instruction_set"] = "OLD"
    (line,) = describe_changes(recorded, plan)
    assert line.startswith("instruction set was OLD and is ")


@pytest.mark.parametrize(
    ("files", "own", "cores"),
    [
        ({"cpu.max": "200000 100000"}, "0::/", 2),
        ({"cpu.max": "150000 100000"}, "0::/", 2),
        ({"cpu.max": "10000 100000"}, "0::/", 1),
        ({"cpu.max": "max 100000"}, "0::/", 64),
        ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 3),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, "", 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "", 64),
        (
            {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "10000"},
            "9:memory:/x\n4:cpu,cpuacct:/a",
            5,
        ),
        ({}, "", 64),
    ],
)
def test_cores_under_the_quota_of_a_container(tmp_path, monkeypatch, files, own, cores):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {*range(64)}, raising=False)
    assert machine.usable_cores() == [*range(cores)]
