"""Tests of ``--engine auto``: an engine is compared with ``eager`` on the run's first steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from runtime_toys import GIVEN, PARTS, make_plan, train

import protofl as pf
from protofl.backends import Plan
from protofl.runs import automatic_choices
from protofl.runs.automatic_choices import Tried, choose_engine, refusal
from protofl_plugins.engines.cuda_graphs import CUDAGraphs
from protofl_plugins.engines.eager import Eager


class Equal(Eager):
    """An engine with the same results as eager."""


class Wrong(Eager):
    """An engine that changes the weights."""

    @pf.hookimpl
    def train(self, job):
        found = super().train(job)
        with torch.no_grad():
            job.model.head.bias += 0.1
        return found


class Failing(Eager):
    """An engine that fails."""

    @pf.hookimpl
    def train(self, job):
        raise ValueError("no graph\nand more")


def chosen(engine, monkeypatch, faster=10.0, **options):
    """Return the chosen engine and its notes. ``faster`` divides the measured seconds."""
    original, notes = automatic_choices._tried, []

    def tried(plan):
        found = original(plan)
        name = plan.settings.engine
        return Tried(1.0 if name == "eager" else 1.0 / faster, found.weights)

    monkeypatch.setattr(automatic_choices, "_tried", tried)
    given = GIVEN | {"method": "fedproto", "dry_run": True} | options
    plan = Plan.make(given, PARTS | {("engine", "fast"): engine})
    plan = replace(plan, settings=plan.settings.model_copy(update={"engine": "auto"}))
    plan = choose_engine(plan, notes.append, "fast")
    assert plan.choices["engine"].name == plan.settings.engine
    return plan.settings.engine, *notes


def test_an_equal_and_faster_engine_is_taken(monkeypatch):
    found = chosen(Equal, monkeypatch)
    assert found == ("fast", "engine fast: equal to eager in the first steps, 10.0 times as fast")


@pytest.mark.parametrize(
    ("engine", "options", "why"),
    [
        (Wrong, {}, "weights differ by"),
        (Failing, {}, "no graph"),
        (Equal, {"faster": 0.5}, "took 2 s, and eager 1 s"),
        (Equal, {"dry_run": False}, "nothing is compared"),
    ],
)
def test_another_engine_is_not(monkeypatch, engine, options, why):
    name, note = chosen(engine, monkeypatch, **options)
    assert name == "eager" and why in note and "\n" not in note


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


def test_an_engine_that_cannot_replay_the_method_is_not_taken(monkeypatch):
    """On a CPU the step's code runs again, so its weights are equal; a graph's would not be."""
    monkeypatch.setitem(PARTS, ("method", "fading"), Fading)
    name, note = chosen(CUDAGraphs, monkeypatch, method="fading")
    assert name == "eager" and "fast fails: " in note and "the step uses 1.0 in its first" in note


def test_an_engine_that_replays_is_taken(monkeypatch):
    assert chosen(CUDAGraphs, monkeypatch)[0] == "fast"


def test_the_tolerance():
    one = torch.ones(3)
    assert not refusal(Tried(2.0, [one]), Tried(1.0, [one + 1e-4]))
    assert "0.01" in refusal(Tried(2.0, [one]), Tried(1.0, [one + 0.01]))
    assert refusal(Tried(2.0, [one]), Tried(1.0, [one * torch.nan]))


def test_a_cpu_has_eager():
    plan = make_plan("local", engine="auto")
    assert isinstance(plan, Plan) and plan.settings.engine == "eager"


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
