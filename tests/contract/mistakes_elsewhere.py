"""Mistakes for `author_mistakes`: the server, other client hooks, and the class."""

from __future__ import annotations

import torch
from author_mistakes import add
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from protofl.testing.toy_plugins import Prototypes

# --- the server -----------------------------------------------------------------------------------

EVERY = torch.arange(4)
SERVER = {
    "rows transposed": lambda mean, server, uploads: {"prototypes": mean.T, "classes": EVERY},
    "rows without `classes`": lambda mean, server, uploads: {"prototypes": mean},
    "a tensor": lambda mean, server, uploads: mean,
    "rows by class, {0: row, …}": lambda mean, server, uploads: dict(enumerate(mean)),
    "a NumPy array": lambda mean, server, uploads: {"prototypes": mean.numpy(), "classes": EVERY},
    "a parameter": lambda mean, server, uploads: {
        "prototypes": nn.Parameter(mean),
        "classes": EVERY,
    },
    "`classes` as a mask": lambda mean, server, uploads: {
        "prototypes": mean,
        "classes": EVERY >= 0,
    },
    "NaN": lambda mean, server, uploads: {"prototypes": mean / 0, "classes": EVERY},
    "`for upload in uploads`": lambda mean, server, uploads: [u["prototypes"] for u in uploads],
    "a misspelt key": lambda mean, server, uploads: uploads[0]["prototype"],
    "into `server.global_state`": lambda mean, server, uploads: (
        server.global_state.update(prototypes=mean, classes=EVERY) or {}
    ),
    "`server.features(…)`": lambda mean, server, uploads: server.features(mean),
}


def aggregate_of(change):
    """Return a hook that aggregates with `change`, from a row for each of the four classes."""

    def server_aggregate(self, server, uploads):
        known = Prototypes.server_aggregate(self, server, uploads)
        return change(known.table("prototypes", server.num_classes)[0], server, uploads)

    return server_aggregate


def a_set(self, server):
    server.state["seen"] = {*server.clients}
    return {}


def counts_downloads(self, server):
    server.state["asked"] = server.state.get("asked", 0) + 1
    return server.global_state.select("prototypes")


for words, change in SERVER.items():
    add("server_aggregate", words, server_aggregate=aggregate_of(change))
add("server_train", "a set in `server.state`", server_train=a_set)
add("download_payload", "into `server.state`", download_payload=counts_downloads)
add(
    "download_payload",
    "a key that `downloads` lacks",
    download_payload=lambda self, server: {"round": torch.tensor(server.round)},
)
add("end_round", "text", end_round=lambda self, server: {"best": "client 3"})
add("end_round", "several numbers", end_round=lambda self, server: {"margins": torch.ones(3)})
add("setup_server", "a list", setup_server=lambda self, server: [torch.zeros(3)])

# --- clients --------------------------------------------------------------------------------------

SCORES = {
    "labels": lambda scores, features, client: scores.argmax(1),
    "labels as a column": lambda scores, features, client: scores.argmax(1, keepdim=True),
    "features": lambda scores, features, client: features,
    "a tuple": lambda scores, features, client: (scores, features),
    "scores transposed": lambda scores, features, client: scores.T,
    "a NumPy array": lambda scores, features, client: scores.numpy(),
    "a mask": lambda scores, features, client: one_hot(scores.argmax(1), 4) > 0,
    "NaN": lambda scores, features, client: scores / 0 * 0,
    "into `client.state`": lambda scores, features, client: (
        client.state.update(seen=len(client.state) + client.state.get("seen", 0)) or scores
    ),
}


def inference_of(change):
    def inference(self, client, x):
        features = client.features(x)
        return change(client.head(features), features, client)

    return inference


def graph(self, client):
    with torch.enable_grad():
        client.state["last"] = client.features(client.train.inputs()).mean(0)


def array(self, client):
    client.state["last"] = client.features(client.train.inputs()).numpy()


def attribute(self, client):
    client.state.last = 3


def trains(self, client):
    scores = client.head(client.features(client.train.inputs()))
    cross_entropy(scores, client.train.y).backward()
    return {}


for words, change in SCORES.items():
    add("inference", words, inference=inference_of(change))
add("after_training", "a tensor with its graph in `client.state`", after_training=graph)
add("after_training", "a NumPy array in `client.state`", after_training=array)
add("after_training", "`client.state.last = …`", after_training=attribute)
add("before_training", "a tuple", before_training=lambda self, client: (1, 2))
add("before_training", "training of its own", before_training=trains)
add(
    "before_training",
    "`client.received[…]` unguarded",
    before_training=lambda self, client: {"table": client.received["prototypes"]},
)
add(
    "before_training",
    "a module",
    before_training=lambda self, client: {"head": client.module("head")},
)

# --- the class ------------------------------------------------------------------------------------

add("terms", "a list", terms=["ce", "align"])
add("uploads", "a list", uploads=["prototypes", "classes"])
add("uploads", "no declaration", uploads=None)
add("phases", "names", phases=lambda self, run: ["private"])
add("requires", "a bool", requires=lambda self, run: True)
add("run_defaults", "an unknown option", run_defaults=lambda self: {"learning_rate": 0.1})
add("__init__", "arguments", __init__=lambda self, weight: None)
add("__init__", "a module on `self`", __init__=lambda self: setattr(self, "net", nn.Linear(2, 2)))
add("upload_payload", "`upload_paylod`, misspelt", upload_paylod=lambda self, client: None)
