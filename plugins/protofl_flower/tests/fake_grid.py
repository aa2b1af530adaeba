"""A stand-in for Flower's grid: the nodes of a run live in this process."""

from __future__ import annotations

import json
from itertools import count

import protofl as pf
from protofl.records.checkpoint import Commit
from protofl_flower import backend
from protofl_flower.node.host import Node
from protofl_flower.protocol.transport import Delivery, Deployment, RemoteNode

RUN = "0123456789abcdef"


class FakeTransport:
    """Flower's grid with nodes in this process: a node does its work when its reply is fetched.

    Attributes:
        there: {public key: node}.
        fates: {(key, round, stage): fate}. A fate is an error code of Flower; "lost after work" or
            "late", if the node does the work; "never", if no reply arrives; or a function of the
            request that returns the reply.
        slow: {public key: how often the run must look for a reply of this node until it is there}.
        sent: Messages to the nodes.
        left: All bytes that left the nodes.
    """

    def __init__(self, nodes):
        self.there, self.fates, self.sent, self.left = dict(nodes), {}, [], []
        self._keys = [*nodes]
        self._tickets, self._waiting = count(), {}
        self.slow, self._looks = {}, {}

    def online(self):
        return {key: self._keys.index(key) for key in self.there}

    def send(self, node_id, text, blobs, seconds, group):
        ticket = str(next(self._tickets))
        key = self._keys[node_id]
        self.sent.append((key, text, list(blobs)))
        self._waiting[ticket] = (key, text, list(blobs))
        return ticket

    def receive(self, tickets):
        return [found for ticket in tickets for found in self._carry(ticket)]

    def _carry(self, ticket):
        key, text, blobs = self._waiting[ticket]
        self._looks[ticket] = self._looks.get(ticket, 0) + 1
        if self._looks[ticket] < self.slow.get(key, 0) and json.loads(text)["jobs"]:
            return []
        fate = self.fates.get((key, *stage(json.loads(text))))
        if fate == "never":
            return []
        del self._waiting[ticket]
        if key not in self.there:
            return [Delivery(ticket, code=5, reason="the node is gone")]
        if fate in (None, "late", "lost after work"):
            text, found = self.there[key].respond(text, blobs)
            self.left += [text.encode(), *found]
            if fate is None:
                return [Delivery(ticket, text, found)]
            fate = {"late": 4, "lost after work": 8}[fate]
        if callable(fate):
            return [Delivery(ticket, *fate(text))]
        return [Delivery(ticket, code=fate, reason="as the test wants")]


def stage(asked):
    """Return the round and the stage of a request's last job."""
    header = asked["jobs"][-1]["header"] if asked["jobs"] else {"kind": "plan", "round": -1}
    return header["round"], header.get("when", header["kind"])


def remote_node(key, clients):
    return RemoteNode(f"node-{key}", key, tuple(clients))


TWO = [remote_node("a", [0, 2]), remote_node("b", [1, 3])]


THREE = [remote_node(key, [client]) for client, key in enumerate("abc")]
"""A federation with a client on each node."""


def node(folder, key, data_dir, federation=TWO, **policy):
    clients = next([*remote.clients] for remote in federation if remote.key == key)
    (folder / key).mkdir(exist_ok=True)
    return Node(folder / key, {"clients": clients, "data_dir": str(data_dir), "policy": policy})


def deployed(method, nodes, fates=None, **options):
    """Run through a fake grid; return the result and the grid."""
    transport = FakeTransport(nodes)
    transport.fates = fates or {}
    return run_on(transport, method, **options), transport


def run_on(transport, method, run=RUN, federation=TWO, **options):
    """Run through a grid."""
    token = backend.DEPLOYMENT.set(Deployment(transport, federation, run))
    try:
        given = {"set": {"backend.poll": 1e-6, "backend.patience": 0} | options.pop("set", {})}
        return pf.run(method, backend="flower", **given, **options)
    finally:
        backend.DEPLOYMENT.reset(token)


def lines(result):
    """Return the record without values that may differ between equal runs."""
    found = [dict(row) for row in result.record]
    return [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in found]


def same_state(first, second, run=RUN):
    """Check that a local and a deployed run have bit-identical servers and clients."""
    ours, theirs = (Commit.read(r.folder / "checkpoint/manifest.json") for r in (first, second))
    assert ours.client_files == theirs.client_files
    assert ours.files[ours.server] == theirs.files[ours.server]
    nodes = second.folder.parent.glob(f"*/runs/{run}/client-*.safetensors")
    kept = [path.read_bytes() for path in nodes]
    assert ours.client_files
    for name, _ in ours.client_files.values():
        assert (first.folder / "checkpoint" / name).read_bytes() in kept, name
