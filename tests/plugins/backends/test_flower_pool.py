"""The pool of a deployed run against nodes in this process: equal results, faults."""

from __future__ import annotations

import json
from itertools import count

import pytest

import protofl as pf
from protofl_plugins.backends import flower
from protofl_plugins.backends.node import Node
from protofl_plugins.backends.posts import Delivery, Deployed, Site

BASE = {"models": "htcnn8", "dataset": "digits", "clients": 4, "batch_size": 64, "rounds": 3}
BASE |= {"local_epochs": 1, "device": "cpu", "progress": False}


class FakePost:
    """Flower's grid with nodes in this process: a message is answered when it is looked for."""

    def __init__(self, nodes):
        self.there, self.fates, self.sent = dict(nodes), {}, []
        self._tickets, self._waiting = count(), {}

    def nodes(self):
        return {key: number for number, key in enumerate(self.there)}

    def send(self, node, text, blobs, seconds, group):
        ticket = str(next(self._tickets))
        key = [*self.there][node]
        self.sent.append((key, text, list(blobs)))
        self._waiting[ticket] = (key, text, list(blobs))
        return ticket

    def receive(self, tickets):
        return [found for ticket in tickets for found in self._carry(ticket)]

    def _carry(self, ticket):
        key, text, blobs = self._waiting.pop(ticket)
        asked = json.loads(text)
        fate = self.fates.get((key, *stage(asked)))
        if fate is None or fate == "lost after work":
            text, found = self.there[key].respond(text, blobs)
            if fate is None:
                return [Delivery(ticket, text, found)]
            fate = 8
        if callable(fate):
            return [Delivery(ticket, *fate(text))]
        return [Delivery(ticket, code=fate, reason="as the test wants")]


def stage(asked):
    """Round and kind of a request's jobs."""
    header = asked["jobs"][0]["header"] if asked["jobs"] else {"kind": "plan", "round": -1}
    return header["round"], header.get("when", header["kind"])


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def sites(tmp_path, data_dir):
    """Two sites with two clients each."""
    clients = {"a": [0, 2], "b": [1, 3]}
    made = {}
    for key, own in clients.items():
        settings = {"clients": own, "data_dir": str(data_dir), "policy": {"paths": True}}
        (tmp_path / key).mkdir()
        made[key] = Node(tmp_path / key, settings)
    return made, [Site(f"site-{key}", key, tuple(own)) for key, own in clients.items()]


def deployed(method, nodes, sites, fates=None, **options):
    """A run through a fake grid; returns the result and the grid."""
    post = FakePost(nodes)
    post.fates = fates or {}
    token = flower.DEPLOYED.set(Deployed(post, sites, "0123456789abcdef"))
    try:
        given = {"set": {"backend.poll": 1e-6, "backend.patience": 0}}
        given["set"] |= options.pop("set", {})
        return pf.run(method, backend="flower", **given, **options), post
    finally:
        flower.DEPLOYED.reset(token)


def lines(result):
    """The record without what may differ between equal runs."""
    found = [dict(row) for row in result.record]
    return [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in found]


def same(first, second):
    assert lines(first) == lines(second)
    names = [p.name for p in (first.folder / "checkpoint").glob("server-*.safetensors")]
    assert names
    for name in names:
        ours = (first.folder / "checkpoint" / name).read_bytes()
        assert ours == (second.folder / "checkpoint" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedproto", {"with": ["top-k", "quantise"]}),
        ("fedkd", {}),
        ("fedpkd", {"local_epochs": 1}),
    ],
)
def test_a_deployed_run_equals_a_local_one(tmp_path, data_dir, sites, method, options):
    options = BASE | {"data_dir": data_dir} | options
    local = pf.run(method, backend="local", out=tmp_path / "local", **options)
    found, post = deployed(method, *sites, out=tmp_path / "deployed", **options)
    same(local, found)
    after = method == "fedpkd"
    messages = [stage(json.loads(text)) for key, text, _ in post.sent if key == "a"]
    assert len(messages) == 1 + BASE["rounds"] * (3 if after else 2)
