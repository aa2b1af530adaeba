"""Tests that jobs and replies survive serialization to JSON and bytes."""

from __future__ import annotations

import json

import pytest
from runtime_toys import make_plan

import protofl as pf
from protofl.backends import Job
from protofl.federation.jobs.jobs import (
    Drop,
    Evaluate,
    EvaluateReply,
    Load,
    Save,
    StartTrial,
    Train,
)
from protofl.schedules import TrainReply

JOBS = {
    "start of a trial": StartTrial(2, {3: "a", 12: "b"}, "parked"),
    "train of client 3 in round 2": Train(3, 1, "after_server", True, blob=b"down"),
    "evaluate of client 0 in round 8": Evaluate(0, 7, blob=b"down"),
    "save of client 4": Save(4, "path"),
    "load of client 4": Load(4, "path"),
    "drop of client 4": Drop(4),
}
REPLIES = [
    pf.backends.Reply({"checkpoint": 0.5}, profile="{}"),
    TrainReply({"train": 1.5}, "", 20, {"ce": 0.1 + 0.2}, 7, notes=["a note"], blob=b"up"),
    EvaluateReply({"evaluate": 1.0}, correct=3, count=4),
]


@pytest.mark.parametrize("words", JOBS)
def test_a_job_is_the_same_on_the_other_side(words):
    job = JOBS[words]
    found = pf.backends.Job.from_header(json.loads(json.dumps(job.header())), job.blob)
    assert type(found) is type(job)
    assert found == job
    assert str(found) == words


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_is_the_same_on_the_other_side(reply):
    found = pf.backends.Reply.from_header(json.loads(json.dumps(reply.header())), reply.blob)
    assert type(found) is type(reply)
    assert found == reply


def test_a_reply_is_no_job():
    with pytest.raises(pf.RunFailure, match=r"expected a Reply, got: .*Drop"):
        pf.backends.Reply.from_header(Drop(1).header())


def test_a_host_says_what_it_can_t_do():
    class Dance(Job):
        op = "dance"

    with pytest.raises(TypeError, match="Dance"):
        pf.backends.Host(make_plan("local")).handle(Dance())


@pytest.mark.parametrize(
    "header", [{}, {"kind": "Bomb"}, {"kind": "Reply", "more": 1}, {"kind": ["Reply"]}, [], None]
)
def test_what_is_no_message(header):
    with pytest.raises(pf.RunFailure, match="expected a Reply"):
        pf.backends.Reply.from_header(header)
