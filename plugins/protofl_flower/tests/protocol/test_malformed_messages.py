"""Answers that are not answers: each makes its client absent, by node, key and reason."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from fake_grid import FakeTransport, deployed, node, remote_node
from runtime_toys import GIVEN, install, make_plan

import protofl as pf
from protofl.federation.jobs.jobs import Evaluate, StartTrial, Train
from protofl_flower import backend
from protofl_flower.protocol.transport import MALFORMED, Delivery, Deployment
from protofl_flower.server import data_sizes, node_pool, polling
from protofl_flower.server.node_pool import NodePool

RUN = "0123456789abcdef"
TRAIN = {"kind": "TrainReply", "seconds": {}, "samples": 18, "sums": {"ce": 1.0}, "floats": 3}
EVALUATE = {"kind": "EvaluateReply", "seconds": {}, "correct": 1, "count": 6}


def reply(header=None, version="1f-00000000", **more):
    return {"header": {**TRAIN, **(header or {})}, "blob": None, "version": version, **more}


def replies(*each):
    return json.dumps({"replies": [*each]})


WRONG = {
    "an unknown kind": (reply({"kind": "Train"}), "kind is 'Train', expected TrainReply or Absent"),
    "no kind": ({"header": {}, "blob": None, "version": ""}, "kind is 'None'"),
    "a kind that is a list": (reply({"kind": ["TrainReply"]}), "kind is \"['TrainReply']\""),
    "a further value": (reply({"x": 1}), "'x' is not a value of a TrainReply"),
    "a blob in the header": (reply({"blob": "x"}), "'blob' is not a value of a TrainReply"),
    "a further part": (reply(x=1), "'x' is not a part of a reply"),
    "a profile": (reply({"profile": "{}"}), "profile is '{}', and a node sends none"),
    "notes of numbers": (reply({"notes": [3]}), "notes is '[3]', expected a list of texts"),
    "no header": ({"version": ""}, "a reply in it has no header"),
    "a blob that is not there": (reply() | {"blob": 7}, "it has no blob '7'"),
    "no version": (reply(version=""), "version is empty, and the client has trained"),
    "a version that is a path": (reply(version="../x"), "'../x' is not a version"),
    "a version of 2^48 bytes": (
        reply(version="ffffffffffff-00000000"), "'ffffffffffff-00000000' is not a version"
    ),
    "a version with a zero in front": (
        reply(version="0a-00000000"), "'0a-00000000' is not a version"
    ),
    "an unknown reason": (
        {"header": {"kind": "Absent", "reason": "bored"}, "blob": None, "version": ""},
        "reason is 'bored'",
    ),
    "a reason of the server": (
        {"header": {"kind": "Absent", "reason": "left"}, "blob": None, "version": ""},
        "reason is 'left'",
    ),
}  # fmt: skip


def pool_of(answer, clients=1, **options):
    """Return a pool of one node that gives this answer to all jobs, and its grid."""
    options = {"on_lost_client": "skip", "on_bad_upload": "skip"} | options
    plan = make_plan("fedproto", clients=clients, **options)
    transport = FakeTransport({"a": SimpleNamespace(respond=lambda *_: ('{"facts": {}}', []))})
    for kind in ("before_upload", "Evaluate"):
        transport.fates[("a", 0, kind)] = lambda text: (answer, [])
    pool = NodePool(
        plan, Deployment(transport, [remote_node("a", range(clients))], RUN),
        backend.Flower.Config(poll=1e-6, patience=0),
    )  # fmt: skip
    pool.broadcast(StartTrial(0))
    return pool, transport


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_answer_makes_its_client_absent_and_no_other(what):
    wrong, words = WRONG[what]
    pool, _ = pool_of(replies(wrong, reply()), clients=2)
    found = [answer for _, answer in pool.run([Train(c, 0, may_fail=True) for c in range(2)])]
    assert (type(found[0]).__name__, found[0].reason) == ("Absent", "failed")
    (note,) = found[0].notes
    assert note.startswith("node-a: it sent a wrong answer: ") and words in note, note
    assert type(found[1]).__name__ == "TrainReply"
    pool, _ = pool_of(replies(wrong, reply()), clients=2)
    with pytest.raises(pf.RunFailure, match="node-a, train of client 0 in round 1: "):
        [*pool.run([Train(c, 0) for c in range(2)])]


def test_a_node_that_always_lacks_the_plan_is_asked_once_more():
    pool, transport = pool_of('{"lacks": "plan"}')
    ((_, found),) = pool.run([Train(0, 0, may_fail=True)])
    assert found.notes == ["node-a: it asks for the plan again; the round goes on without it"]
    assert len(transport.sent) == 3  # the plan, the job, and the job with the plan


@pytest.mark.parametrize("code", [MALFORMED, 7, 77, 10**9, -5])
def test_an_error_that_a_node_invents_ends_no_run(code):
    pool, transport = pool_of("")
    transport.fates["a", 0, "before_upload"] = code
    ((_, found),) = pool.run([Train(0, 0, may_fail=True)])
    assert found.reason == "failed"
    assert ("Flower's error" in found.notes[0]) == (code != MALFORMED)


def test_a_message_that_flower_refuses_and_answers_nobody_waits_for():
    pool, transport = pool_of(replies(reply()))
    receive = transport.receive
    transport.receive = lambda tickets: [Delivery("x", "{"), *receive(tickets)]
    ((_, found),) = pool.run([Train(0, 0, may_fail=True)])
    assert type(found).__name__ == "TrainReply"
    transport.send = lambda *_: ""
    ((_, found),) = pool.run([Train(0, 1, may_fail=True)])
    assert found.notes == ["node-a: Flower refused its message; the round goes on without it"]


def test_notes_carry_the_name_of_their_node_and_are_limited():
    notes = ["Done. best on test samples: 100%", "\x1b[31m" + "x" * 999, *map(str, range(9))]
    pool, _ = pool_of(replies(reply({"notes": notes})))
    ((_, found),) = pool.run([Train(0, 0, may_fail=True)])
    assert found.notes[0] == "node-a says: Done. best on test samples: 100%"
    assert len(found.notes) == 5 and all(len(note) < 320 for note in found.notes)
    total = 0
    for _ in range(60):
        ((_, found),) = pool.run([Train(0, 0, may_fail=True)])
        total += len(found.notes)
    assert found.notes == []
    assert total == node_pool.MOST_NOTES - 5 + 1  # and the line that says so


def test_an_undo_takes_no_earlier_training_back():
    """A node that says `skipped` without training made the server forget the round before."""
    pool, transport = pool_of(replies(reply()))
    ((_, _),) = pool.run([Train(0, 0, may_fail=True)])
    lie = {"header": {"kind": "Absent", "reason": "skipped"}, "blob": None, "version": ""}
    transport.fates["a", 1, "before_upload"] = lambda text: (replies(lie), [])
    ((_, found),) = pool.run([Train(0, 1, may_fail=True)])
    assert found.reason == "skipped"
    [*pool.run([pf.backends.Job.from_header({"kind": "Undo", "client": 0})])]
    save = {"kind": "Save", "client": 0, "path": "client-00000-t0-r1.safetensors"}
    ((_, saved),) = pool.run([pf.backends.Job.from_header(save)])
    assert saved.size == 0x1F


def test_evaluations_that_are_absent_for_no_reason_are_unscored():
    lie = {"header": {"kind": "Absent", "reason": "skipped"}, "blob": None, "version": ""}
    pool, _ = pool_of(replies(lie))
    ((_, found),) = pool.run([Evaluate(0, 0, may_fail=True)])
    assert found.reason == "failed" and "reason is 'skipped'" in found.notes[0]


# --- the start ------------------------------------------------------------------------------------

SKIP = {k: v for k, v in GIVEN.items() if k != "backend"} | {"on_lost_client": "skip"}
PLAN_ANSWERS = [
    "{",
    "{}",
    '{"facts": 3}',
    '{"facts": {}, "changes": 7}',
    '{"failure": {"what": "no"}}',
]


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    install(monkeypatch)
    return {key: node(tmp_path, key, GIVEN["data_dir"]) for key in "ab"}


@pytest.mark.parametrize("answer", PLAN_ANSWERS)
def test_a_node_that_answers_the_plan_wrongly_ends_no_run(answer, tmp_path, nodes, capsys):
    fates = {("a", -1, "plan"): lambda text: (answer, [])}
    found, _ = deployed("fedproto", nodes, fates, out=tmp_path / "run", **SKIP)
    assert len(found.record) == GIVEN["rounds"]
    assert "node-a did not take the plan: " in capsys.readouterr().err
    given = {**SKIP, "on_lost_client": "stop"}
    with pytest.raises(pf.ProtoflError, match="node-a"):
        deployed("fedproto", nodes, fates, out=tmp_path / "stop", **given)
    fates["b", -1, "plan"] = fates["a", -1, "plan"]
    with pytest.raises(pf.ProtoflError, match="node-"):  # nobody has taken it
        deployed("fedproto", nodes, fates, out=tmp_path / "nobody", **SKIP)


def test_a_node_that_never_answers_the_plan_is_named_and_has_a_deadline(
    tmp_path, nodes, capsys, monkeypatch
):
    now = [0.0]

    def sleep(seconds):
        now[0] += 10.0

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(polling, "time", clock)
    fates = {("a", -1, "plan"): "never"}
    found, _ = deployed("fedproto", nodes, fates, out=tmp_path / "run", **SKIP)
    said = capsys.readouterr().err
    assert "waiting for node-a to answer the plan: 40 s of 600 s" in said
    assert "the run starts without node-a: no answer to the plan after 600 s" in said
    assert len(found.record) == GIVEN["rounds"]
    given = {**SKIP, "on_lost_client": "stop", "set": {"backend.start_deadline": 50}}
    with pytest.raises(pf.RunFailure, match="no answer to the plan after 50 s: node-a"):
        deployed("fedproto", nodes, fates, out=tmp_path / "stop", **given)


def test_an_answer_with_sizes_that_never_comes_has_a_deadline(monkeypatch):
    now, said = [0.0], []
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + 10.0)
    )
    monkeypatch.setattr(polling, "time", clock)
    told = {"train": 5, "test": 3, "majority": [1, 3]}
    text = json.dumps({"sizes": {"clients": {"0": told}}})
    transport = SimpleNamespace(
        online=lambda: {"a": 0, "b": 1},
        send=lambda node, *_: str(node),
        receive=lambda tickets: [Delivery("0", text)] if "0" in tickets else [],
    )
    place = Deployment(transport, [remote_node("a", [0]), remote_node("b", [1])], RUN)
    form, pace = {"sample": "1x8x8", "classes": "10"}, backend.Flower.Config()
    found = data_sizes.ask_data_sizes(place, form, pace, skip=True, report=said.append)
    assert found == [told, {}]
    assert said[0] == "waiting for node-b to answer the question for its sizes: 40 s of 600 s"
    assert said[-1] == "no sizes after 600 s: node-b"
    with pytest.raises(pf.RunFailure, match="no sizes after 600 s: node-b"):
        data_sizes.ask_data_sizes(place, form, pace, skip=False, report=said.append)


def test_a_client_that_tells_of_nearly_all_samples_is_named():
    told = {0: {"train": 10**7}, 1: {"train": [3, 4]}, 2: {"train": 9}, 3: {}}
    place = Deployment(None, [remote_node("a", [0, 1]), remote_node("b", [2, 3])], RUN)
    (line,) = data_sizes.large(place, told)
    assert line.startswith("node-a tells of 10,000,000 training samples of client 0")
    assert not data_sizes.large(place, {0: {"train": 10**7}, 1: {"train": 1}})
