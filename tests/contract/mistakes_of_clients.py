"""Mistakes for `author_mistakes`: uploads and losses of clients."""

from __future__ import annotations

import random

import numpy as np
import torch
from author_mistakes import add
from torch.nn.functional import cross_entropy

from protofl.testing.toy_plugins import Prototypes


def sound_upload(client):
    return client.class_prototypes().select("prototypes")


# --- uploads --------------------------------------------------------------------------------------

UPLOADS = {
    "a NumPy array": lambda sent, client: {**sent, "prototypes": sent["prototypes"].numpy()},
    "a number": lambda sent, client: {**sent, "prototypes": 3},
    "a list of tensors": lambda sent, client: [*sent.values()],
    "rows by class, {0: row, …}": lambda sent, client: dict(enumerate(sent["prototypes"])),
    "a dict in the payload": lambda sent, client: {"prototypes": dict(enumerate(sent.values()))},
    "a module": lambda sent, client: {"prototypes": client.module("head")},
    "of a client sampler what was not selected": lambda sent, client: {
        "prototypes": sent.select("prototype")["prototypes"]
    },
    "nothing (no return)": lambda sent, client: None,
    "a sparse tensor": lambda sent, client: {**sent, "prototypes": sent["prototypes"].to_sparse()},
    "complex numbers": lambda sent, client: {
        **sent,
        "prototypes": sent["prototypes"].to(torch.complex128),
    },
    "a tensor without data": lambda sent, client: {
        **sent,
        "prototypes": sent["prototypes"].to("meta"),
    },
    "float64": lambda sent, client: {**sent, "prototypes": sent["prototypes"].double()},
    "`classes` as float": lambda sent, client: {**sent, "classes": sent["classes"].float()},
    "`classes` as int32": lambda sent, client: {**sent, "classes": sent["classes"].int()},
    "`classes` as a mask": lambda sent, client: {**sent, "classes": client.class_counts > 0},
    "`classes` from 1": lambda sent, client: {**sent, "classes": sent["classes"] + 1},
    "`classes` as a column": lambda sent, client: {**sent, "classes": sent["classes"].unsqueeze(1)},
    "a class twice": lambda sent, client: {**sent, "classes": sent["classes"] // 2},
    "fewer classes than rows": lambda sent, client: {**sent, "classes": sent["classes"][:-1]},
    "rows without `classes`": lambda sent, client: {"prototypes": sent["prototypes"]},
    "rows transposed": lambda sent, client: {**sent, "prototypes": sent["prototypes"].T},
    "a key that `uploads` lacks": lambda sent, client: client.class_prototypes(),
    "NaN": lambda sent, client: {**sent, "prototypes": sent["prototypes"] / 0},
    "`client.model`": lambda sent, client: client.model.state_dict(),
    "`client.class_prototype()`": lambda sent, client: client.class_prototype(),
    "a draw of torch's global generator": lambda sent, client: {
        **sent,
        "prototypes": sent["prototypes"] * torch.rand(()),
    },
    "a draw of NumPy's global generator": lambda sent, client: {
        **sent,
        "prototypes": sent["prototypes"] * float(np.random.rand()),
    },
    "a draw of `np.random.default_rng()`": lambda sent, client: {
        **sent,
        "prototypes": sent["prototypes"] * float(np.random.default_rng().random()),
    },
    "a draw of Python's `random`": lambda sent, client: {
        **sent,
        "prototypes": sent["prototypes"] * random.random(),
    },
}


def upload_of(change):
    return lambda self, client: change(sound_upload(client), client)


for words, change in UPLOADS.items():
    add("upload_payload", words, upload_payload=upload_of(change))


async def coroutine(self, client):
    return sound_upload(client)


def generator(self, client):
    yield sound_upload(client)


def on_self(self, client):
    self.last = sound_upload(client)
    return self.last


def on_class(self, client):
    self.seen[client.id] = client.round
    return sound_upload(client)


add("upload_payload", "`async def`", upload_payload=coroutine)
add("upload_payload", "`yield`", upload_payload=generator)
add("upload_payload", "state on `self`", upload_payload=on_self)
add("upload_payload", "state on the class", seen={}, upload_payload=on_class)
add(
    "upload_payload",
    "`self.config`",
    upload_payload=lambda self, client: self.config and sound_upload(client),
)

# --- the loss -------------------------------------------------------------------------------------


def align(change):
    """Change the second term, which exists from the second round on."""
    return lambda terms, batch, output: {
        name: term if name == "ce" else change(term, batch, output) for name, term in terms.items()
    }


LOSSES = {
    "a tensor": lambda terms, batch, output: sum(terms.values()),
    "a tuple": lambda terms, batch, output: (sum(terms.values()), terms),
    "a term of shape [1]": lambda terms, batch, output: {"ce": terms["ce"].reshape(1)},
    "a term of shape [B]": lambda terms, batch, output: {
        "ce": cross_entropy(output.logits, batch.y, reduction="none")
    },
    "`.item()` as a term": lambda terms, batch, output: {"ce": terms["ce"].item()},
    "a tensor of `.item()`": align(lambda term, batch, output: torch.tensor(term.item())),
    "the only term made of `.item()`": lambda terms, batch, output: {
        "ce": torch.tensor(terms["ce"].item())
    },
    "a detached term": align(lambda term, batch, output: term.detach()),
    "accuracy as a term": align(
        lambda term, batch, output: (output.logits.argmax(1) == batch.y).float().mean()
    ),
    "a weight made with `.item()`": align(lambda term, batch, output: term * term.item()),
    "a draw": align(lambda term, batch, output: term * torch.rand(())),
    "a draw of Python's `random`": align(lambda term, batch, output: term * random.random()),
    "0.0 for a term that is not there yet": lambda terms, batch, output: {"align": 0.0, **terms},
    "a term that `terms` lacks": lambda terms, batch, output: {**terms, "mse": terms["ce"]},
    "too few terms": lambda terms, batch, output: {"ce": terms["ce"]},
    "a term unguarded in round 1": lambda terms, batch, output: {"align": terms["align"], **terms},
    "the logarithm of 0": align(lambda term, batch, output: (term - term).log()),
    "the root of 0": align(lambda term, batch, output: (term - term).sqrt()),
    "`.backward()`": lambda terms, batch, output: terms["ce"].backward() or terms,
}


def loss_of(change):
    def local_loss(self, batch, output, constants):
        return change(Prototypes.local_loss(self, batch, output, constants), batch, output)

    return local_loss


def reads_received(self, client, batch, output):
    return {"ce": len(client.received) * cross_entropy(output.logits, batch.y)}


def writes_given(self, batch, output, constants):
    terms = Prototypes.local_loss(self, batch, output, constants)
    constants["last"] = terms["ce"]
    return terms


for words, change in LOSSES.items():
    add("local_loss", words, local_loss=loss_of(change))
add("local_loss", "`client.received`", local_loss=reads_received)
add("local_loss", "into `constants`", local_loss=writes_given)
