"""Tests of the automatic backend: chosen from the dry step or finished rounds, kept on resume."""

from __future__ import annotations

import json
import re

import pytest
from runtime_toys import GIVEN, train, without_times

import protofl as pf
from protofl.federation.plan import Plan
from protofl.records.row import Row
from protofl.runs import automatic_choices
from protofl.runs.automatic_choices import choose_backend, recorded_backend

pytestmark = pytest.mark.usefixtures("toys", "two_cores")


@pytest.fixture
def two_cores(monkeypatch):
    for module in (automatic_choices, __import__("protofl.federation.resolution", fromlist=["x"])):
        monkeypatch.setattr(module, "usable_cores", lambda: [0, 1])


def plan_of(**options):
    return Plan.make(GIVEN | {"method": "local", "backend": "auto"} | options)


def line(seconds):
    return Row({"trial": 0, "round": 0, "seconds": {"train": seconds, "prototypes": 0.0}})


@pytest.mark.parametrize(
    ("seconds", "backend"), [(11.0, "process"), (9.0, "local"), (0.01, "local")]
)
def test_finished_rounds_decide(seconds, backend):
    plan, notes = plan_of(rounds=3), []  # two rounds are left; workers save half the time
    choose_backend(plan, [line(seconds)], [], notes.append)
    assert (plan.settings.backend, plan.choices["backend"].name) == (backend, backend)
    assert [f"about {2 * seconds:.0f} s" in note for note in notes] == [True]


def test_the_dry_step_decides():
    """Two clients train one batch each in 0.02 s; four clients have 3 batches each per round."""
    plan, notes = plan_of(rounds=1000, models="toy1"), []
    choose_backend(plan, [], [line(0.02)], notes.append)
    assert plan.settings.backend == "process"
    assert notes == ["backend process: about 120 s of training in 2 worker processes"]


def test_what_the_user_says_is_not_chosen_again():
    assert plan_of().settings.backend == "auto"
    assert plan_of(workers=2).settings.backend == "process"
    assert plan_of(backend="local").settings.backend == "local"


def test_a_short_run_stays_in_this_process(tmp_path):
    said = []
    given = {"backend": "auto", "dry_step": True, "progress": said.append}
    found = train("fedproto", tmp_path / "auto", **given)
    notes = [event.text for event in said if isinstance(event, pf.events.Note)]
    assert [note for note in notes if re.match(r"backend local: about \d+ s of", note)]
    local = train("fedproto", tmp_path / "local", progress=False, dry_step=True)
    assert without_times(found.record) == without_times(local.record)
    assert {p.name for p in found.folder.iterdir()} == {p.name for p in local.folder.iterdir()}
    configs = [(r.folder / "config.json").read_text() for r in (found, local)]
    assert configs[0] == configs[1]


def test_a_resumed_run_stays_on_its_backend(tmp_path):
    def stop(event):
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("local", tmp_path / "run", progress=stop)
    session = tmp_path / "run" / "session.json"
    assert json.loads(session.read_text()) == {"backend": "local"}
    planned = []
    pf.run(out=tmp_path / "run", resume=True, progress=planned.append)
    assert [e.plan.settings.backend for e in planned if isinstance(e, pf.events.Planned)] == [
        "local"
    ]
    assert not session.exists()


@pytest.mark.parametrize(
    ("content", "given", "found", "says"),
    [
        ('{"backend": "process"}', {}, {"backend": "process"}, ""),
        ('{"backend": "process"}', {"workers": 2}, {}, ""),
        ('{"backend": "pigeons"}', {}, {}, "--backend pigeons, which is not installed"),
        ("[1]", {}, {}, ""),
        ("", {}, {}, ""),
    ],
)
def test_the_record_of_the_backend(tmp_path, content, given, found, says):
    (tmp_path / "session.json").write_text(content)
    notes = []
    assert recorded_backend(tmp_path, given, notes.append) == found
    assert says in "".join(notes) and bool(says) == bool(notes)
