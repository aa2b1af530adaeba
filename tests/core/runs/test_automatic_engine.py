"""Tests of ``--engine auto``: on a GPU, an engine whose steps have been checked."""

from __future__ import annotations

import pytest
import torch
from runtime_toys import GIVEN, PARTS, make_plan, train

import protofl as pf
from protofl.backends import Plan
from protofl.runs.lifecycle import engine_choice
from protofl.runs.lifecycle.engine_choice import choose_engine, would_choose

ON_GPU = GIVEN | {"method": "fedproto", "clients": 2, "device": "simgpu", "dry_run": True}


def notes_of(said):
    return [event.text for event in said if isinstance(event, pf.events.Note)]


def test_a_gpu_has_graphs_without_training_first(gpu):
    plan = Plan.make(ON_GPU, PARTS)
    assert plan.settings.engine == "auto"
    assert would_choose(plan).startswith("engine auto: cuda-graphs, if")
    chosen, line = choose_engine(plan)
    assert chosen.settings.engine == chosen.choices["engine"].name == "cuda-graphs"
    assert line.startswith("engine cuda-graphs: ") and not gpu.graphs
    assert not would_choose(chosen)


def test_without_a_dry_run_nothing_is_checked(gpu):
    plan = Plan.make(ON_GPU | {"dry_run": False}, PARTS)
    chosen, line = choose_engine(plan)
    assert chosen.settings.engine == "eager" and "with --no-dry-run no step is checked" in line
    assert would_choose(plan) == line


WEIGHT = [1.0]


class Fading:
    """A method whose loss reads a number that is another in each round."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def before_training(self, client):
        WEIGHT[0] = 1.0 / (1 + client.round)
        return {}

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": WEIGHT[0] * torch.nn.functional.cross_entropy(output.logits, batch.y)}


def test_eager_trains_steps_that_cannot_be_repeated(gpu, monkeypatch):
    plan = Plan.make(ON_GPU | {"method": "fading"}, PARTS | {("method", "fading"): Fading})
    chosen, line = choose_engine(plan)
    assert chosen.settings.engine == "eager" and "\n" not in line
    assert line.startswith("engine eager: cuda-graphs can't repeat the method's steps: ")
    assert "the step uses 1.0 in its first" in line


@pytest.mark.slow
def test_a_run_on_a_gpu_chooses_and_goes_on_with_its_choice(gpu, tmp_path, toys, monkeypatch):
    said = []

    def stop(event):
        said.append(event)
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    given = {"device": "simgpu", "clients": 2, "dry_run": True}
    with pytest.raises(KeyboardInterrupt):
        train("fedproto", tmp_path / "run", progress=stop, **given)
    config = pf.load_run(tmp_path / "run").config
    assert config["engine"] == "cuda-graphs" and config["engine_chosen"] is True
    assert config["set_by"].get("engine") != "user"
    line = next(note for note in notes_of(said) if note.startswith("engine "))
    assert line in config["notes"]
    assert "not repeatable to the bit" in config["notes"][0]
    assert config["arithmetic"] == {
        "convolutions": "tf32", "products": "float32", "repeatable": False
    }  # fmt: skip
    monkeypatch.setattr(engine_choice, "_check_steps", None)  # a check would fail
    said = []
    result = train(None, tmp_path / "run", resume=True, progress=said.append)
    assert [row.get("engine") for row in result.record] == [None, None]
    assert not [note for note in notes_of(said) if note.startswith("engine ")]


def test_a_cpu_plan_has_eager():
    plan = make_plan("local")
    assert plan.settings.engine == "eager" and not would_choose(plan)


def test_a_cpu_has_eager_without_a_check(tmp_path, toys, monkeypatch):
    monkeypatch.setattr(engine_choice, "_check_steps", None)
    said = []
    run = train("local", tmp_path / "run", dry_run=True, progress=said.append)
    config = pf.load_run(run.folder).config
    assert (config["engine"], config["precision"]) == ("eager", "fp32")
    assert not {"engine_chosen", "arithmetic", "notes"} & config.keys()
    assert "engine" not in config["set_by"]
    assert not [note for note in notes_of(said) if "engine" in note or "precision" in note]
    asked = train("local", tmp_path / "asked", engine="eager", dry_run=True, progress=False)
    assert pf.load_run(asked.folder).config["identity"] == config["identity"]


def test_a_run_goes_on_with_eager(tmp_path, toys):
    def stop(event):
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("local", tmp_path / "run", engine="vmapped", set={"engine.group": 2}, progress=stop)
    said = []
    with pytest.raises(pf.UsageError, match="--engine cuda-graphs differs"):
        train(None, tmp_path / "run", resume=True, engine="cuda-graphs")
    given = {"resume": True, "progress": said.append}
    found = train(None, tmp_path / "run", engine="eager", **given)
    assert [row.get("engine") for row in found.record] == [None, "eager"]
    notes = [event.text for event in said if isinstance(event, pf.events.Note)]
    assert [note for note in notes if "engine vmapped until here, and eager" in note]
    assert not [note for note in notes if "when the run began" in note]
    longer = train(None, tmp_path / "run", rounds=3, **given)
    assert [row.get("engine") for row in longer.record] == [None, "eager", "eager"]
    assert pf.load_run(found.folder).config["engine"] == "vmapped"
