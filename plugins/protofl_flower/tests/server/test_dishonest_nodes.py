"""A node that lies at random: the run goes on, and its results are those of the honest nodes."""

from __future__ import annotations

import json
import random
from contextlib import redirect_stderr
from io import StringIO

import pytest
import torch
from fake_grid import RUN, FakeTransport, stage
from runtime_toys import GIVEN, install, train
from safetensors import safe_open

import protofl as pf
from protofl.records.checkpoint import Commit
from protofl_flower import backend
from protofl_flower.node.host import Node
from protofl_flower.protocol.transport import Delivery, Deployment, RemoteNode

LIAR = "a"
FOUR = [RemoteNode(f"node-{key}", key, (client,)) for client, key in enumerate("abcd")]

JUNK = [
    None, True, False, -1, 0, 3, 2**40, 2**62, 10**400, -(10**30), 1e308, float("nan"),
    float("inf"), 0.5, "", "x", "confusion", "\x1b[31mDone.\n", "../x", "é" * 2000, [], {}, [[]],
    [1] * 50, {"kind": "Absent"}, {"x": {"x": {}}}, "Absent", "skipped", "stale", "bored",
    "ffffffffffff-00000000", "1-00000000",
]  # fmt: skip
"""Values in the place of others, or beside them."""

TEXTS = [
    "", "{", "[]", "null", "7", "{}", "[" * 100_000, '{"lacks": "plan"}', '{"lacks": 1}',
    '{"failure": {}}', '{"failure": 3}', '{"failure": {"what": "\\u001b[2J", "error": "Late"}}',
    '{"failure": {"error": "UsageError", "what": "no", "near": ["x"], "do": "curl x | sh"}}',
    '{"replies": []}', '{"replies": [{}]}', '{"replies": [{"header": {}, "version": ""}]}',
    '{"replies": 1e999}', '{"facts": {}}', '{"sizes": {}}', "\ud800",
]  # fmt: skip
"""Whole texts of answers."""


def places(value, path=()):
    """Yield the paths of all values in JSON."""
    yield path
    each = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else each:
        yield from places(inner, (*path, key))


def changed_json(chance, text):
    """Change one value of an answer, remove it, or add another beside it."""
    found = json.loads(text)
    path = chance.choice([path for path in places(found) if path])
    holder = found
    for key in path[:-1]:
        holder = holder[key]
    how = chance.choice(["replace", "replace", "remove", "add", "twice"])
    if how == "remove":
        del holder[path[-1]]
    elif how == "add" and isinstance(holder, dict):
        name = chance.choice(
            ["x", "profile", "notes", "kind", "error", "blob", "train", "balanced"]
        )
        holder[name] = chance.choice(JUNK)
    elif how == "twice" and isinstance(holder, list):
        holder.append(holder[path[-1]])
    else:
        holder[path[-1]] = chance.choice(JUNK)
    return json.dumps(found)


def changed_numbers(chance, text):
    """Claim numbers of samples that the client has not."""
    found = json.loads(text)
    header = found["replies"][0]["header"]
    huge = chance.choice([2**40, 2**40 - 1, 2**30, 10**7, 10**5])
    for key in ("correct", "count", "samples"):
        if key in header:
            header[key] = huge
    return json.dumps(found)


def changed_blob(chance, blob):
    """Return other bytes in the place of a payload."""
    how = chance.randrange(9)
    if how == 0:
        return b""
    if how == 1:
        return chance.randbytes(chance.randrange(1, 300))
    if how == 2:
        return blob[: chance.randrange(len(blob))]
    if how == 3:
        return blob + b"0"
    payload = pf.Payload.from_bytes(blob)
    name = chance.choice([*payload])
    tensor = payload[name]
    if how == 4 and tensor.is_floating_point():
        factor = chance.choice([1e4, -1e6, 1e8, 1e30, torch.nan, torch.inf])
        payload[name] = tensor * factor if tensor.abs().max() else tensor + factor
    elif how == 5:
        payload[name] = tensor.reshape(-1)[:-1] if tensor.dim() else tensor.reshape(1)
    elif how == 6:
        payload[name] = tensor.to(torch.float16)
    elif how == 7:
        payload[chance.choice(["x", "model/x", "(features)", "samples.classes"])] = torch.ones(2)
    elif "samples" in payload or "counts" in payload:
        key = "samples" if "samples" in payload else "counts"
        payload[key] = payload[key] * 0 + chance.choice([2**40, 10**6, 10**4, 0, -1, 2**62])
    else:
        del payload[name]
    return payload.to_bytes()


def lie(chance, ticket, text, blobs):
    """Return another answer in the place of an honest one."""
    how = chance.randrange(10)
    if how == 0:
        reason = str(chance.choice(JUNK))
        return Delivery(
            ticket, code=chance.choice([1, 2, 3, 5, 7, 77, -1, -9, 10**9]), reason=reason
        )
    if how == 1:
        return Delivery(ticket, chance.choice(TEXTS), blobs)
    if how == 2:
        return Delivery(ticket, changed_numbers(chance, text), blobs)
    if how in (3, 4, 5) and blobs:
        return Delivery(ticket, text, [changed_blob(chance, blobs[0]), *blobs[1:]])
    if how == 6:
        return Delivery(ticket, text, chance.choice([[], [*blobs, b"x"], [b"", b""]]))
    return Delivery(ticket, changed_json(chance, text), blobs)


class LyingTransport(FakeTransport):
    """A grid with a node that lies in each of its answers to jobs.

    The liar keeps its state: where the server took a false version, it knows the right one.
    """

    def __init__(self, nodes, seed):
        super().__init__(nodes)
        self._chance, self._versions, self.lies, self._asked = random.Random(seed), {}, [], 0

    def _carry(self, ticket):
        key, text, blobs = self._waiting[ticket]
        asked = json.loads(text)
        if key != LIAR or not asked["jobs"]:
            return super()._carry(ticket)
        for job in asked["jobs"]:
            job["base"] = self._versions.get(job["base"], job["base"])
        versions = [self._versions.get(version, version) for version in asked["keep"]]
        asked |= {"keep": versions, "names": {}}
        del self._waiting[ticket]
        text, found = self.there[key].respond(json.dumps(asked), blobs)
        answer = lie(self._chance, ticket, text, found)
        self.lies.append((stage(asked), answer.code, answer.text[:300]))
        with_version = json.loads(text)["replies"][0].get("version") if "replies" in text else ""
        try:
            told = json.loads(answer.text)["replies"][0]["version"]
            self._versions[told] = with_version
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        return [answer]


def nodes_of(folder):
    found = {}
    for remote in FOUR:
        (folder / remote.key).mkdir()
        rules = {"class_counts": True, "most_evaluations": 10}
        settings = {"clients": [*remote.clients], "data_dir": str(GIVEN["data_dir"])}
        found[remote.key] = Node(folder / remote.key, {**settings, "policy": rules})
    return found


def with_liar(method, seed, folder, **options):
    """Run with three honest nodes and one that lies; return the result and the grid."""
    transport = LyingTransport(nodes_of(folder), seed)
    token = backend.DEPLOYMENT.set(Deployment(transport, FOUR, RUN))
    try:
        pace = {"backend.poll": 1e-6, "backend.patience": 0}
        with redirect_stderr(StringIO()):
            return pf.run(
                method, backend="flower", set=pace, out=folder / "run", **options
            ), transport
    finally:
        backend.DEPLOYMENT.reset(token)


def server_of(run):
    """Return the tensors of a run's server, as bytes."""
    commit = Commit.read(run.folder / "checkpoint/manifest.json")
    with safe_open(run.folder / "checkpoint" / commit.server, "pt") as file:
        return {key: file.get_tensor(key).numpy().tobytes() for key in file.keys()}


GO_ON = {"on_bad_upload": "skip", "on_lost_client": "skip", "progress": False}
METHODS = {"fedavg": {"models": "toy1"}, "fedproto": {"metrics": ["confusion"]}}


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "seed", "rounds"),
    [
        ("fedavg", 1, 15),
        ("fedproto", 2, 15),
        *((method, seed, 125) for method in METHODS for seed in (3, 4)),
    ],
)
def test_random_lies_change_no_result_and_end_no_run(method, seed, rounds, tmp_path, monkeypatch):
    """Two lies in a round; with all seeds 1,000. The reference is a run without the absent liar."""
    install(monkeypatch)
    given = {k: v for k, v in GIVEN.items() if k != "backend"} | GO_ON | METHODS[method]
    given |= {"rounds": rounds}
    found, transport = with_liar(method, seed, tmp_path, **given)
    assert len(found.record) == rounds
    assert len(transport.lies) >= 2 * rounds
    honest = {k: v for k, v in given.items() if k != "progress"}
    there = train(method, tmp_path / "there", participants_from=found.folder, **honest)
    for ours, theirs in zip(there.record, found.record, strict=True):
        assert ours["participants"] == theirs["participants"]
        assert set(theirs.get("absent") or {}) <= {"0"}
        mine, others = (
            {c: a for c, a in row["client_accuracies"].items() if c != "0"}
            for row in (ours, theirs)
        )
        assert mine == others, theirs["round"]
        assert 0 <= theirs["test_accuracy"] <= 1
        assert theirs["train_loss"] is not None
        if theirs.get("unscored"):
            assert ours["test_accuracy"] == theirs["test_accuracy"]
            assert ours.get("metrics") == theirs.get("metrics")
    one, other = (Commit.read(r.folder / "checkpoint/manifest.json") for r in (there, found))
    assert server_of(there) == server_of(found)
    assert {c: f for c, f in one.client_files.items() if c} == {
        c: f for c, f in other.client_files.items() if c
    }
    left_out = sum(bool(row.get("absent")) + bool(row.get("unscored")) for row in found.record)
    assert left_out > rounds / 2  # most lies are seen
