"""Tests of the facts about the machine in the record of a run."""

from __future__ import annotations

import torch
from runtime_toys import make_plan

from protofl.runs.results import configuration as config
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
    recorded = config.config_of(plan)
    assert config.describe_changes(recorded, plan) == []
    recorded["machine"]["instruction_set"] = "OLD"
    (line,) = config.describe_changes(recorded, plan)
    assert line.startswith("instruction set was OLD and is ")
