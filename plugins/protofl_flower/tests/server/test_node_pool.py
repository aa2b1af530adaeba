"""Tests of the pool of a deployed run with nodes in this process: equal results, faults."""

from __future__ import annotations

import json
import os
import threading
from types import SimpleNamespace

import pytest
from fake_grid import RUN, TWO, FakeTransport, deployed, lines, node, remote_node, same_state, stage
from runtime_toys import GIVEN, install

import protofl as pf
from protofl.federation.jobs.jobs import StartTrial, Train
from protofl.system.options.table import OPTIONS
from protofl_flower import backend
from protofl_flower.node import policy
from protofl_flower.node.host import Node
from protofl_flower.node.policy import Policy, plan_here
from protofl_flower.protocol import messages
from protofl_flower.protocol.transport import Delivery, Deployment, PipedTransport, pass_on
from protofl_flower.server.node_pool import NodePool

BASE = {"models": "htcnn8", "dataset": "digits", "clients": 4, "batch_size": 64, "rounds": 3}
BASE |= {"local_epochs": 1, "device": "cpu", "progress": False, "feature_dim": 16}

QUICK = {k: v for k, v in GIVEN.items() if k not in ("backend", "data_dir")}
QUICK |= {"on_lost_client": "skip", "progress": False, "rounds": 3}
"""The options of a toy run, whose nets and data take a hundredth of the time of real ones."""


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def nodes(tmp_path, data_dir):
    return {remote.key: node(tmp_path, remote.key, data_dir) for remote in TWO}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [("fedproto", {"with": ["top-k", "quantise"]}), ("fedkd", {}), ("fedpkd", {})],
)
def test_a_deployed_run_equals_a_local_one(tmp_path, data_dir, nodes, method, options):
    options = BASE | {"data_dir": data_dir} | options
    local = pf.run(method, backend="local", out=tmp_path / "local", **options)
    found, transport = deployed(method, nodes, out=tmp_path / "deployed", **options)
    assert lines(local) == lines(found)
    same_state(local, found)
    messages = [key for key, _, _ in transport.sent if key == "a"]
    assert len(messages) == 1 + BASE["rounds"] * (3 if method == "fedpkd" else 2)


@pytest.mark.slow
def test_lost_messages_are_as_if_a_client_had_not_trained(tmp_path, data_dir, nodes):
    """The reference is a simulated run with the same participants."""
    options = QUICK | {"data_dir": data_dir}
    fates = {
        ("a", 0, "before_upload"): 5,
        ("b", 1, "before_upload"): "lost after work",  # trained, but the reply is lost
        ("a", 1, "Evaluate"): 3,
    }
    found, _ = deployed("fedproto", nodes, fates, out=tmp_path / "deployed", **options)
    assert [row["absent"] for row in lines(found)[:2]] == [
        {"0": "left", "2": "left"},
        {"1": "failed", "3": "failed"},
    ]
    assert found.record[1].unscored == {"0": "deadline", "2": "deadline"}
    local = pf.run(
        "fedproto",
        backend="local",
        out=tmp_path / "local",
        participants_from=found.folder,
        **options,
    )
    same_state(local, found)
    assert local.record[2].test_accuracy == found.record[2].test_accuracy


@pytest.mark.slow
def test_a_node_that_was_restarted_goes_on_from_its_disk(tmp_path, data_dir, nodes):
    options = QUICK | {"data_dir": data_dir}
    local = pf.run("fedproto", backend="local", out=tmp_path / "local", **options)
    hosts = [nodes["a"]]

    def respond(text, blobs):
        if stage(json.loads(text)) == (1, "before_upload") and len(hosts) == 1:
            hosts.append(node(tmp_path, "a", data_dir))
        return hosts[-1].respond(text, blobs)

    there = nodes | {"a": SimpleNamespace(respond=respond)}
    found, _ = deployed("fedproto", there, out=tmp_path / "deployed", **options)
    assert lines(local) == lines(found)
    same_state(local, found)
    assert len(hosts) == 2


@pytest.mark.slow
def test_a_resumed_run_goes_on_from_the_versions_of_its_checkpoint(tmp_path, data_dir, nodes):
    options = QUICK | {"data_dir": data_dir}
    local = pf.run("fedproto", backend="local", out=tmp_path / "local", **options)
    out = tmp_path / "deployed"
    fates = {(key, 2, "before_upload"): 5 for key in nodes}
    with pytest.raises(pf.RunFailure, match="0 of 4 clients answered in round 3"):
        deployed("fedproto", nodes, fates, out=out, **options)
    again = {key: node(tmp_path, key, data_dir) for key in nodes}
    found, _ = deployed(None, again, out=out, resume=True)
    assert lines(local) == lines(found)
    same_state(local, found)
    # A node that lost its files reports it, and the round goes on without the node.
    empty_disk(tmp_path)
    again = {key: node(tmp_path, key, data_dir) for key in nodes}
    longer, _ = deployed(None, again, out=out, resume=True, rounds=4)
    assert longer.record[3].absent == {"0": "stale", "2": "stale"}


def empty_disk(folder):
    for path in (folder / "a" / "runs" / RUN).iterdir():
        path.unlink()


@pytest.mark.slow
def test_a_lost_state_stops_the_run_or_begins_anew(tmp_path, data_dir, nodes):
    options = QUICK | {"data_dir": data_dir, "rounds": 1}
    out = tmp_path / "deployed"
    deployed("fedproto", nodes, out=out, **options)
    empty_disk(tmp_path)
    again = {key: node(tmp_path, key, data_dir) for key in nodes}
    more = {"resume": True, "rounds": 3}
    with pytest.raises(pf.RunFailure, match=r"node-a does not have the last state of client [02]"):
        deployed(None, again, out=out, set={"backend.on_stale": "stop"}, **more)
    found, _ = deployed(None, again, out=out, set={"backend.on_stale": "fresh"}, **more)
    assert not any(row.get("absent") for row in lines(found))
    # Client 0 trained from its initial state in round 1, and goes on from there.
    versions = {path.name.split("-")[1] for path in (tmp_path / "a/runs" / RUN).glob("client-*")}
    assert versions == {"00000", "00002"}
    assert found.record[2].test_accuracy > found.record[0].test_accuracy


def test_a_run_that_needs_all_clients_stops(tmp_path, data_dir, nodes):
    options = QUICK | {"data_dir": data_dir, "on_lost_client": "stop"}
    with pytest.raises(pf.RunFailure, match="as the test wants"):
        deployed("fedproto", nodes, {("a", 0, "before_upload"): 8}, out=tmp_path / "1", **options)
    with pytest.raises(pf.RunFailure, match="not online after 0 s: node-b"):
        deployed("fedproto", {"a": nodes["a"]}, out=tmp_path / "2", **options)


HOSTILE = {
    "not JSON": "{",
    "no object": "[]",
    "no replies": "{}",
    "another number of replies": json.dumps({"replies": []}),
    "no header": json.dumps({"replies": [{}, {}]}),
    "a blob that is not there": json.dumps(
        {"replies": [{"header": {"kind": "TrainReply"}, "blob": 7, "version": ""}] * 2}
    ),
    "a version that is a path": json.dumps(
        {"replies": [{"header": {"kind": "TrainReply"}, "blob": None, "version": "../x"}] * 2}
    ),
    "no version": json.dumps(
        {"replies": [{"header": {"kind": "TrainReply"}, "blob": None, "version": ""}] * 2}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_hostile_node_sends_makes_its_clients_absent(name, tmp_path, data_dir, plan):
    transport = FakeTransport({"a": SimpleNamespace(respond=lambda *_: ('{"facts": {}}', []))})
    transport.fates = {("a", 0, "before_upload"): lambda text: (HOSTILE[name], [])}
    one = Deployment(transport, [remote_node("a", range(4))], RUN)
    pool = NodePool(plan, one, backend.Flower.Config(poll=1e-6, patience=0))
    pool.broadcast(StartTrial(0))
    jobs = [Train(client, 0, may_fail=True) for client in (0, 2)]
    replies = [reply.header() for _, reply in pool.run(jobs)]
    assert [(r["kind"], r["reason"]) for r in replies] == [("Absent", "failed")] * 2


@pytest.fixture(scope="module")
def plan(data_dir):
    given = {k: v for k, v in BASE.items() if k != "progress"} | {"data_dir": data_dir}
    return pf.backends.Plan.make({**given, "method": "fedproto", "backend": "local"})


def asked(plan, **values):
    text = plan.to_json()
    request = {"run": RUN, "plan": messages.digest_of(text), "text": text, "trial": 0}
    return json.dumps({**request, "names": {}, "keep": [], "jobs": [], **values})


def job(kind="Train", client=0, **values):
    header = {"kind": kind, "client": client, "round": 0, **values}
    return {"header": header, "blob": None, "base": ""}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (job("Save", path="../x"), "'Save' is neither Train nor Evaluate"),
        (job("Load", path="/etc/passwd"), "'Load' is neither"),
        (job("StartTrial"), "'StartTrial' is neither"),
        (job(client=1), "client '1' is not on this node"),
        (job(client=True), "client 'True' is not on this node"),
        (job("Evaluate", observe=5), "it asks for features"),
        (job("Evaluate", predictions=True), "it asks for predictions"),
        (job(round="0"), "round is '0'"),
        ({**job(), "blob": 3}, "it has no blob '3'"),
        ({**job(), "base": "../x"}, "not a version, run or file"),
    ],
)
def test_a_node_refuses_jobs_that_are_not_its_own(wrong, words, plan, nodes, tmp_path):
    text, _ = nodes["a"].respond(asked(plan, jobs=[wrong]), [])
    failure = json.loads(text)["replies"][0]["header"]["failure"]
    assert words in failure["what"]
    assert failure["trace"] == ""
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": {"method/x": "evil.py:X"}}, "imports code that is not installed"),
        ({"malicious": 0.5}, "attacks from this node"),
        ({"observe": ["features"]}, "sends what samples show"),
        ({"record_predictions": ["last"]}, "sends the class of each sample"),
        ({"metrics": ["confusion"]}, "counts samples by class"),
        ({"metrics": "confusion"}, "the plan has metrics as 'confusion' (str)"),
        ({"observe": "features"}, "the plan has observe as 'features' (str)"),
        ({"transforms": "quantise"}, "the plan has a wrong transforms"),
        ({"clients": "4"}, "the plan has clients as '4' (str)"),
        ({"rounds": True}, "the plan has a wrong "),
        ({"options": {"quantise": [1]}}, "the plan has a wrong options"),
        ({"clients": 10**7}, "it has 10,000,000 clients, more than 100,000"),
        ({"dataset": "folder:."}, "names a file: folder:."),
        ({"dataset": "pfllib:"}, "names a file: pfllib:"),
        ({"sampling": "lists:.."}, "names a file: lists:.."),
        ({"upload_limit": 9999}, "--upload-limit 9999 is above 4096 MiB"),
        ({"dataset": "npz:/etc/passwd"}, "names a file: npz:/etc/passwd"),
        ({"public": "npz:/x"}, "names a file"),
        ({"init": "/x"}, "--init names a file of the server"),
        ({"shell": "rm"}, "unknown options: 'shell'"),
        ({"method": "fedavg"}, "fedavg is not among: fedproto"),
        ({"add": ["local_loss=fedsa.mcl"]}, "fedsa is not among: fedproto"),
        ({"transforms": []}, "lacks the transform quantise"),
    ],
)
def test_a_plan_outside_the_policy_is_refused_before_training(changes, words, plan, tmp_path):
    rules = {"methods": ["fedproto"], "required": {"quantise": {}}}
    folder = tmp_path / "a"
    folder.mkdir()
    strict = Node(folder, {"clients": [0], "policy": rules})
    given = json.loads(plan.to_json()) | {"transforms": ["quantise"]} | changes
    text = json.dumps(given)
    request = {"run": RUN, "plan": messages.digest_of(text), "text": text, "jobs": []}
    response, _ = strict.respond(json.dumps(request), [])
    failure = json.loads(response)["failure"]
    assert words in failure["what"]
    assert failure["error"] == "UsageError"


def test_errors_of_data_that_a_plan_names_stay_on_the_node(plan, tmp_path):
    """`pfllib:DIR` told the server the names of files in a folder of the node."""
    (tmp_path / "secret" / "train").mkdir(parents=True)
    (tmp_path / "secret" / "train" / "patient-7.npz").touch()
    folder = tmp_path / "a"
    folder.mkdir()
    own = {"data_dir": str(tmp_path / "data"), "policy": {"paths": True}}
    open_node = Node(folder, {"clients": [0], **own})
    for dataset in (f"pfllib:{tmp_path}/secret", f"folder:{tmp_path}/secret", "pfllib:."):
        text = json.dumps(json.loads(plan.to_json()) | {"dataset": dataset, "partition": "iid"})
        request = {"run": RUN, "plan": messages.digest_of(text), "text": text, "jobs": []}
        response, _ = open_node.respond(json.dumps(request), [])
        assert json.loads(response)["failure"]["what"] == "its own data do not fit the run"
        assert "patient" not in response and "secret" not in response


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trial": "0"}, "trial is '0', expected int"),
        ({"trial": True}, "trial is 'True', expected int"),
        ({"jobs": {}}, "jobs is '{}', expected list"),
        ({"jobs": [3]}, "jobs is not a list of tables"),
        ({"run": 3}, "run is '3', expected str"),
        ({"sizes": "x"}, "this node has no data of its own"),
    ],
)
def test_a_node_refuses_requests_of_other_types(change, words, plan, nodes):
    response, _ = nodes["a"].respond(json.dumps(json.loads(asked(plan)) | change), [])
    assert words in json.loads(response)["failure"]["what"]


def test_a_node_limits_evaluations_and_withholds_losses(plan, data_dir, tmp_path):
    """Each evaluation tells how many test samples a model of the server predicts rightly."""
    strict = node(tmp_path, "a", data_dir, losses=False, most_evaluations=2)
    download = pf.Payload().to_bytes()

    def answer(*jobs):
        text, _ = strict.respond(asked(plan, jobs=[*jobs]), [download])
        return [reply["header"] for reply in json.loads(text)["replies"]]

    (trained,) = answer(job() | {"blob": 0})
    assert trained["kind"] == "TrainReply" and trained["sums"] == {}
    each = [answer(job("Evaluate") | {"blob": 0})[0] for _ in range(3)]
    assert [found.get("kind") for found in each] == ["EvaluateReply", "EvaluateReply", None]
    assert "more than 2 evaluations of client 0 after round 1" in each[2]["failure"]["what"]
    strict = node(tmp_path, "a", data_dir, most_evaluations=2)  # a restart forgets nothing
    assert "more than 2" in answer(job("Evaluate") | {"blob": 0})[0]["failure"]["what"]
    assert answer(job("Evaluate", round=1) | {"blob": 0})[0]["kind"] == "EvaluateReply"
    assert "round is '3', of 3" in answer(job("Evaluate", round=3))[0]["failure"]["what"]


def test_options_of_the_machine_are_the_nodes_own(plan):
    own = {"data_dir": "/here", "device": "cpu", "client_store": "disk"}
    server = json.loads(plan.to_json()) | {
        "device": "cuda:7",
        "data_dir": "/there",
        "profile": True,
    }
    here = json.loads(plan_here(json.dumps(server), own, Policy(longest_job=5)))
    assert {key: here[key] for key in own} == own
    assert here["job_limit"] == 5
    assert "profile" not in here


def test_every_option_of_a_run_is_taken_or_not():
    """Each new option has to be added to one of the lists."""
    assert sorted([*policy.TAKEN, *policy.OWN, *policy.SERVERS]) == sorted(OPTIONS)


def test_without_a_federation_the_backend_says_what_to_do(tmp_path):
    with pytest.raises(pf.UsageError, match="protofl deploy run METHOD"):
        pf.run("fedproto", backend="flower", out=tmp_path / "x", **QUICK)


def test_calls_cross_a_pipe():
    """The process of a run calls the transport of its ServerApp and receives its errors."""
    asked, answered = open_pipe(), open_pipe()
    transport = FakeTransport(
        {"key": SimpleNamespace(respond=lambda text, blobs: (text[::-1], blobs * 2))}
    )
    end = threading.Thread(target=pass_on, args=(transport, asked[0], answered[1]))
    end.start()
    far = PipedTransport(asked[1], answered[0])
    assert far.online() == {"key": 0}
    ticket = far.send(0, '{"jobs": []}', [b"one", b""], 0, "plan")
    assert far.receive([ticket]) == [Delivery(ticket, '}][ :"sboj"{', [b"one", b""] * 2)]
    with pytest.raises(pf.RunFailure, match="Flower: KeyError"):
        far.receive([ticket])
    asked[1].close()
    end.join()
    answered[1].close()
    with open(os.devnull, "wb") as nobody, asked[0], answered[0]:
        with pytest.raises(pf.RunFailure, match="Flower ended the run"):
            PipedTransport(nobody, answered[0]).online()


def open_pipe():
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
