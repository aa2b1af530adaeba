"""Tests of trials that a plugin ends (hook ``end_trial``)."""

from __future__ import annotations

import pytest
from runtime_toys import train

import protofl as pf

pytestmark = pytest.mark.usefixtures("toys")


class Stops:
    """Local training, which ends after the second round."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def end_trial(self, server):
        return "two rounds are enough" if server.round == 1 else ""

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        return {"ce": client.task.loss(output.logits, batch.y)}


def test_a_plugin_ends_a_trial_with_an_evaluated_round(tmp_path):
    notes = []
    found = train(Stops, tmp_path / "run", rounds=6, eval_every=5, trials=2, progress=notes.append)
    assert [(row.trial, row.round) for row in found.record] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [row.ended for row in found.record] == ["", "stops: two rounds are enough"] * 2
    assert [row.evaluated > 0 for row in found.record] == [False, True] * 2
    trials = found.summary["trials"]
    assert [(t["ended"], t["rounds_done"]) for t in trials] == [
        ("stops: two rounds are enough", 2)
    ] * 2
    assert any("ends after round 2: stops: two" in e.text for e in notes if hasattr(e, "text"))
    run = pf.load_run(found.folder)
    assert (run.state, run.asked, run.weights("last", 1, []).round) == ("finished", 4, 1)


def test_a_resumed_run_does_not_continue_it(tmp_path):
    found = train(Stops, tmp_path / "run", rounds=4, progress=False)
    again = pf.run(Stops, out=found.folder, resume=True, rounds=8, progress=False)
    assert len(again.record) == 2
