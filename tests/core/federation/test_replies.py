"""Tests of hosts' replies: impossible values are refused, and the error names the client."""

from __future__ import annotations

import re

import pytest
import torch
from hostile_uploads import HOSTILE, ROUND
from runtime_toys import make_plan, without_times

import protofl as pf
from protofl.backends import Absent, Host
from protofl.federation.jobs.jobs import Evaluate, Save, Train
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.hooks.transport.rules import RULES, printable


class LyingHost(Host):
    """A host with false replies for one client; ``lies`` is {round: changed fields}."""

    def __init__(self, plan, kind, lies, when="before_upload"):
        super().__init__(plan)
        self._kind, self._lies, self._when = kind, lies, when

    def run(self, jobs):
        for job, reply in super().run(jobs):
            mine = isinstance(job, self._kind) and job.client == HOSTILE
            lies = self._lies.get(getattr(job, "round", ROUND)) if mine else None
            if lies and getattr(job, "when", self._when) == self._when:
                if "kind" in lies:
                    reply = lies["kind"]
                for name, value in lies.items():
                    setattr(reply, name, value) if name != "kind" else None
            yield job, reply


def federation(kind, lies, method="fedproto", when="before_upload", told=None, **options):
    """Return a federation whose host lies in `ROUND`, or in the rounds ``{round: lies}``."""
    plan = make_plan(method, **options)
    lies = lies if lies and all(isinstance(key, int) for key in lies) else {ROUND: lies}
    found = Federation(plan, LyingHost(plan, kind, lies, when), told or (lambda event: None))
    found.start_trial(0)
    return found


HUGE = 1 << 62
TRAINED = {
    "negative samples": ({"samples": -3}, "'samples' as -3"),
    "2^62 samples": ({"samples": HUGE}, f"'samples' as {HUGE}"),
    "samples that are a fraction": ({"samples": 1.5}, "'samples' as 1.5"),
    "samples that are NaN": ({"samples": torch.nan}, "'samples' as nan"),
    "samples that are true": ({"samples": True}, "'samples' as True"),
    "2^62 floats": ({"floats": HUGE}, f"'floats' as {HUGE}"),
    "seconds that are NaN": ({"seconds": {"train": torch.nan}}, "'seconds' as nan of train"),
    "negative seconds": ({"seconds": {"train": -1.0}}, "'seconds' as -1.0 of train"),
    "endless seconds": ({"seconds": {"train": torch.inf}}, "'seconds' as inf of train"),
    "2^62 seconds": ({"seconds": {"train": HUGE}}, "'seconds' as 46"),
    "an unknown stage": (
        {"seconds": {"coffee": 1.0}},
        "'seconds' of an unknown 'coffee'",
    ),
    "seconds that are a list": ({"seconds": [1.0]}, r"'seconds' as \[1.0\]"),
    "sums that are words": ({"sums": {"ce": "low"}}, "'sums' as low of ce"),
    "sums that are none": ({"sums": None}, "'sums' as None"),
    "a loss that the run has not": ({"sums": {"mine": 1.0}}, "'sums' of an unknown 'mine'"),
    "a very long loss": ({"sums": {"x" * 9999: 1.0}}, "'sums' of an unknown 'xxx"),
    "notes that are a number": ({"notes": 3}, "'notes' as 3"),
    "notes of numbers": ({"notes": [3]}, "'notes' as 3 of 0"),
    "a profile that is a list": ({"profile": [1]}, r"'profile' as \[1\]"),
    "another kind of reply": (
        {"kind": pf.backends.Reply()},
        "a reply Reply, expected TrainReply",
    ),
    "that it is absent": ({"kind": Absent()}, "a reply Absent, expected TrainReply"),
}


def test_what_a_host_says_of_training_stops_the_run_by_name():
    lies, words = TRAINED["negative samples"]
    found = federation(Train, lies)
    found.round(0)
    with pytest.raises(pf.RunFailure, match=words) as caught:
        found.round(ROUND)
    assert f"train of client {HOSTILE} in round {ROUND + 1}: its host answered" in caught.value.what
    assert caught.value.near == f"figures: {RULES['figures']}"


@pytest.mark.slow
def test_or_the_client_is_left_out():
    """The round equals a round of the other clients."""
    told, lies = [], dict(enumerate((lies for lies, _ in TRAINED.values()), ROUND))
    given = {"eval_clients": "participants", "rounds": len(lies) + 2}
    found = federation(Train, lies, told=told.append, on_bad_upload="skip", **given)
    lines = []
    for number in range(len(lies) + 2):
        told.clear()
        lines.append(found.round(number)[0])
        assert lines[-1].get("absent") == ({str(HOSTILE): "skipped"} if number in lies else None)
        notes = [event.text for event in told if isinstance(event, pf.events.Note)]
        for note, (what, (_, words)) in zip(notes, [*TRAINED.items()][number - 1 :], strict=False):
            assert re.search(words, note), (what, note)
            assert f"client {HOSTILE} sent" in note and "(figures)" in note and len(note) < 400
            assert f"round {number}" in note
        assert len(notes) == (number in lies), (number, notes)
    answered = {(0, number): lines[number] for number in lies}
    plan = make_plan("fedproto", **given)
    replay = Federation(plan, Host(plan), participation=Participation(plan, answered))
    replay.start_trial(0)
    for number, line in enumerate(lines):
        known = {k: v for k, v in line.items() if k not in ("absent", "skipped_uploads")}
        assert without_times([known]) == without_times([replay.round(number)[0]])


EVALUATED = {
    "more right than there are": ({"correct": 9, "count": 8}, "'correct' as 9 of 8 test samples"),
    "negative": ({"correct": -1}, "'correct' as -1"),
    "2^62 samples": ({"count": HUGE}, f"'count' as {HUGE}"),
    "a fraction": ({"correct": 0.5}, "'correct' as 0.5"),
    "NaN": ({"count": torch.nan}, "'count' as nan"),
    "of training samples": ({"train": [5, 3]}, "'correct' as 5 of 3 train samples"),
    "three of them": ({"train": [1, 2, 3]}, r"'train' as \[1, 2, 3\]"),
    "seconds that are NaN": ({"seconds": {"evaluate": torch.nan}}, "'seconds' as nan"),
    "another kind of reply": (
        {"kind": pf.backends.Reply()},
        "a reply Reply, expected EvaluateReply",
    ),
    "an unknown reason": ({"kind": Absent(reason="bored")}, "'reason' as bored"),
    "metrics of another name": (
        {"blob": pf.Payload(x=torch.ones(2).double()).to_bytes()},
        "'x' which the run does not count",
    ),
    "metrics that are garbage": ({"blob": b"\x07" * 100}, "not a payload"),
}


@pytest.mark.parametrize("what", EVALUATED)
def test_what_a_host_says_of_an_evaluation_stops_the_run(what):
    """The run stops even if bad uploads may be skipped."""
    lies, words = EVALUATED[what]
    found = federation(Evaluate, lies, on_bad_upload="skip")
    found.round(0)
    words = "a reply Absent, expected" if what == "an unknown reason" else words
    with pytest.raises(pf.RunFailure, match=words) as caught:
        found.round(ROUND)
    assert f"client {HOSTILE}" in caught.value.what


@pytest.mark.slow
def test_or_the_client_is_unscored():
    """The figures equal those of the other clients, and the next rounds are what they were."""
    lies = dict(enumerate((lies for lies, _ in EVALUATED.values()), ROUND))
    given = {"on_lost_client": "skip", "rounds": len(lies) + 2, "metrics": ["confusion"]}
    told, honest = [], federation(Evaluate, {99: {}}, **given)
    found = federation(Evaluate, lies, told=told.append, **given)
    for number in range(len(lies) + 2):
        told.clear()
        line, usual = found.round(number)[0], honest.round(number)[0]
        notes = [event.text for event in told if isinstance(event, pf.events.Note)]
        if number not in lies:
            assert without_times([line]) == without_times([usual])
            continue
        what, (_, words) = [*EVALUATED.items()][number - 1]
        assert line["unscored"] == {str(HOSTILE): "failed"}, what
        assert re.search(words, notes[0]) and f"client {HOSTILE}" in notes[0], (what, notes)
        others = {c: a for c, a in usual["client_accuracies"].items() if c != str(HOSTILE)}
        assert line["client_accuracies"] == others
        confusion = line["metrics"]["confusion"]["all"]
        assert sum(map(sum, confusion)) == 3 * 6, what  # test samples of three clients


KNOWN = {
    "samples that it has not": (Train, {"samples": 1 << 40}, "'samples' with 1099511627776"),
    "one sample too many": (Train, {"samples": 19}, "'samples' with 19 samples, it has at most 18"),
    "test samples that it has not": (
        Evaluate,
        {"correct": 1 << 40, "count": 1 << 40},
        "'count' as 1099511627776 samples, it has 6"
    ),
    "fewer test samples": (Evaluate, {"correct": 1, "count": 1}, "'count' as 1 samples, it has 6"),
    "training samples that nobody measures": (Evaluate, {"train": (1, 1)}, "'train' which the run"),
    "balanced ones": (Evaluate, {"balanced": (1, 1)}, "'balanced' which the run"),
}  # fmt: skip


@pytest.mark.parametrize("what", KNOWN)
def test_numbers_of_samples_are_those_of_the_split(what):
    kind, lies, words = KNOWN[what]
    found = federation(kind, lies)
    found.round(0)
    with pytest.raises(pf.RunFailure, match=re.escape(words)):
        found.round(ROUND)


COUNTS = {
    "another shape": (torch.ones(3, 3).double(), "'confusion' of shape [3, 3], expected [4, 4]"),
    "another type": (torch.ones(4, 4), "'confusion' as torch.float32, expected float64"),
    "huge ones": (torch.ones(4, 4).double() * 1e9, "'confusion' with 1.67e+08 per sample"),
}


@pytest.mark.parametrize("what", COUNTS)
def test_counts_that_can_not_be_summed_make_a_client_unscored(what):
    counts, words = COUNTS[what]
    lies = {"blob": pf.Payload(confusion=counts).to_bytes()}
    told, given = [], {"on_lost_client": "skip", "metrics": ["confusion"]}
    found = federation(Evaluate, lies, told=told.append, **given)
    found.round(0)
    line = found.round(ROUND)[0]
    assert line["unscored"] == {str(HOSTILE): "failed"}
    assert sum(map(sum, line["metrics"]["confusion"]["all"])) == 18
    assert words in next(event.text for event in told if isinstance(event, pf.events.Note))


def test_losses_that_would_decide_the_mean_are_left_out_of_it():
    """The uploads count; with --on-bad-upload stop the mean shows that a client diverged."""
    given = {"on_bad_upload": "skip", "rounds": 3}
    lies = {1: {"sums": {"ce": torch.nan}}, 2: {"sums": {"ce": 1e300}}}
    told, honest = [], federation(Train, {99: {}}, "local", **given)
    found = federation(Train, lies, "local", told=told.append, **given)
    for number in range(3):
        line, usual = found.round(number)[0], honest.round(number)[0]
        assert line["test_accuracy"] == usual["test_accuracy"]
        assert 0 < line["train_loss"] < 2 * usual["train_loss"]
    notes = [event.text for event in told if isinstance(event, pf.events.Note)]
    assert (
        "client 2 reports a ce loss of NaN or infinity in round 2: train_loss is without it"
        in notes
    )
    assert any("a ce loss of 5.56e+298 per sample" in note for note in notes)


def test_behind_the_upload_and_at_checkpoints_it_stops_the_run_too(tmp_path):
    found = federation(
        Train, {"samples": -1}, "ds-fl", "after_server", public=10, on_bad_upload="skip"
    )
    found.round(0)
    with pytest.raises(pf.RunFailure, match=r"client 2 in round 2.*'samples' as -1"):
        found.round(ROUND)
    found = federation(Save, {"seconds": {"checkpoint": -1}})
    with pytest.raises(pf.RunFailure, match=r"save of client 2: .*'seconds' as -1"):
        found.save_clients([HOSTILE], {HOSTILE: str(tmp_path / "client")})


@pytest.mark.parametrize("reason", ["deadline", "left", "failed", "stale", "refused", "bored", 7])
def test_why_a_client_is_absent(reason):
    told = []
    found = federation(
        Train, {"kind": Absent(reason=reason)}, on_lost_client="skip", told=told.append
    )
    found.round(0)
    known = reason not in ("bored", 7)
    assert found.round(ROUND)[0]["absent"] == {"2": reason if known else "failed"}
    notes = [event.text for event in told if isinstance(event, pf.events.Note)]
    assert known or f"its host answered with 'reason' as {reason}" in notes[0]


def test_a_loss_that_is_no_number_is_named_and_nothing_else():
    """Diverging training can cause it; the upload is checked separately."""
    told = []
    found = federation(Train, {"sums": {"ce": torch.nan}}, told=told.append)
    found.round(0)
    assert found.round(ROUND)[0]["train_loss"] is None
    notes = [event.text for event in told if isinstance(event, pf.events.Note)]
    assert notes == ["client 2: its ce loss is NaN or infinite"]


def test_a_line_of_a_host_can_be_shown():
    told = []
    found = federation(Train, {"notes": ["\x1b[31mred\n" + "x" * 5000]}, told=told.append)
    for number in range(2):
        found.round(number)
    (note,) = [event.text for event in told if isinstance(event, pf.events.Note)]
    assert note.startswith(r"\x1b[31mred\nxxx") and len(note) < 1100 and note.isprintable()
    assert printable("Grüße, 你好 — 3 %") == "Grüße, 你好 — 3 %"


class StartsBadly:
    """A method whose server starts with NaN."""

    downloads = {"y": "a number"}

    @pf.hookimpl
    def setup_server(self, server):
        return {"y": torch.tensor(torch.nan)}

    @pf.hookimpl
    def download_payload(self, server):
        return server.global_state.select("y")

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload()


def test_nan_of_a_set_up_names_it():
    with pytest.raises(pf.RunFailure, match="setup_server of main made 'y' with NaN") as caught:
        federation(Train, {}, StartsBadly)
    assert "client" not in str(caught.value)
