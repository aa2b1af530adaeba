"""Label inference: which classes a client has, and in which shares, from its upload.

Per client i and class c an attack gives a score s_ic, and an estimate q_ic of the class's share of
the client's samples:

- ``counts``: q_ic = count / sum of counts, exact.
- rows by class (``prototypes``, ``classes``, …): s_ic = 1 for a sent class, q_ic uniform over them.
- ``public_logits``, ``public_probabilities``, ``model/*``: the mean softmax over samples that the
  attacker has, relative to the mean over clients: a model prefers the classes it has trained on.
- ``head/*``: the same from the bias and the weight norm of each class, without any sample.

Presence is the area under the ROC curve of s over all clients and classes. Shares are compared by
total variation, 0 for exact and 1 for disjoint, with a guess that every client has the mean shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from protofl_privacy.evidence import Evidence, has
from protofl_privacy.intervals import Number, bootstrap, rank_area


@dataclass(frozen=True)
class LabelLeak:
    """Information about labels that a key reveals.

    Attributes:
        key: The key of the wire.
        how: How the attacker reads it.
        exact: True if the counts of all clients are exact.
        presence: Area under the ROC curve of class presence.
        distance: Total variation between estimated and true shares, mean over clients.
        guess: The same for the guess that every client has the mean shares.
    """

    key: str
    how: str
    exact: bool
    presence: Number
    distance: Number
    guess: Number

    def to_values(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {k: v.to_values() if isinstance(v, Number) else v for k, v in vars(self).items()}


Scores = tuple[np.ndarray, np.ndarray]
"""Scores s [M, C], and estimated shares q [M, C]."""


def label_leaks(evidence: Evidence) -> list[LabelLeak]:
    """Run label inference on every key from which it can read something."""
    truth = np.stack([_counts(evidence, client) for client in evidence.clients])
    result = []
    for key, (how, scores) in _attacks(evidence).items():
        s, q = scores(evidence)
        result.append(_judged(key, how, s, q, truth, evidence.seed))
    return result


def true_keys(evidence: Evidence) -> set[str]:
    """Return ``samples`` and keys of classes with which uploads say what their clients have.

    A transform may send others: noisy classes (dp-prototypes), or one sample (dp-sgd).
    """
    wrong, keys = set[str](), {key for upload in evidence.uploads.values() for key in upload.keys()}
    for client in evidence.clients:
        upload, counts = evidence.uploads[client], _counts(evidence, client)
        for key in keys & upload.keys():
            if key == "samples" and int(upload[key]) != counts.sum():
                wrong.add(key)
            if key == "classes" or key.endswith(".classes"):
                if sorted({*upload[key].tolist()}) != np.flatnonzero(counts).tolist():
                    wrong.add(key)
    return keys - wrong


def _counts(evidence: Evidence, client: int) -> np.ndarray:
    """Return the client's training samples of each class [C]."""
    labels = evidence.y[evidence.members(client)]
    return torch.bincount(labels, minlength=evidence.num_classes).double().numpy()


def _judged(
    key: str, how: str, s: np.ndarray, q: np.ndarray, truth: np.ndarray, seed: int
) -> LabelLeak:
    shares = truth / truth.sum(1, keepdims=True)
    there = truth > 0
    distance = np.abs(q - shares).sum(1) / 2
    guess = np.abs(shares.mean(0) - shares).sum(1) / 2

    def presence(chosen: np.ndarray) -> float:
        return rank_area(there[chosen].ravel(), s[chosen].ravel())

    clients = len(truth)
    area = bootstrap(clients, presence, seed)
    if area.value is None:
        area = Number(None, why="every client has every class")
    exact = key == "counts" and bool(np.array_equal(s, truth))
    far = bootstrap(clients, lambda chosen: float(distance[chosen].mean()), seed)
    return LabelLeak(
        key, how, exact, area, far, bootstrap(clients, lambda c: float(guess[c].mean()), seed)
    )


def _attacks(evidence: Evidence) -> dict[str, tuple[str, Callable[[Evidence], Scores]]]:
    """Return {key: how it is read, and the attack} for the keys of the uploads."""
    upload = evidence.uploads[evidence.clients[0]]
    result: dict[str, tuple[str, Callable[[Evidence], Scores]]] = {}
    if "counts" in upload.keys():
        result["counts"] = "the counts as they are sent", _from_counts
    for key in upload.keys():
        if "/" not in key and key != "counts" and upload.has_class_rows(key):
            result[key] = "a row says that the client has the class", _from_rows(key)
    for key in ("public_logits", "public_probabilities"):
        if key in upload.keys():
            result[key] = "mean softmax over the public samples", _from_public(key)
    if has(upload, "head/"):
        result["head/*"] = "bias and weight norm of each class", _from_head
    if has(upload, "model/"):
        result["model/*"] = "mean softmax over samples of other clients", _from_model
    return result


def _from_counts(evidence: Evidence) -> Scores:
    s = np.zeros((len(evidence.clients), evidence.num_classes))
    for place, client in enumerate(evidence.clients):
        counts, classes = evidence.uploads[client].rows("counts")
        s[place, classes.numpy()] = counts.double().numpy()
    return s, s / s.sum(1, keepdims=True).clip(1)


def _from_rows(key: str) -> Callable[[Evidence], Scores]:
    def scores(evidence: Evidence) -> Scores:
        s = np.zeros((len(evidence.clients), evidence.num_classes))
        for place, client in enumerate(evidence.clients):
            s[place, evidence.uploads[client].classes_of(key).numpy()] = 1
        return s, s / s.sum(1, keepdims=True).clip(1)

    return scores


def _from_public(key: str) -> Callable[[Evidence], Scores]:
    def scores(evidence: Evidence) -> Scores:
        rows = []
        for client in evidence.clients:
            sent = evidence.uploads[client][key].double()
            rows.append((sent.softmax(1) if key == "public_logits" else sent).mean(0).numpy())
        return _relative(np.stack(rows))

    return scores


def _from_model(evidence: Evidence) -> Scores:
    rows = []
    for client in evidence.clients:
        others, _ = evidence.others(client)
        sent = evidence.scores(evidence.uploaded_model(client), client, others)
        rows.append(sent.double().softmax(1).mean(0).numpy())
    return _relative(np.stack(rows))


def _from_head(evidence: Evidence) -> Scores:
    """A trained class pulls its bias up and lengthens its weights (softmax regression)."""
    rows = []
    for client in evidence.clients:
        upload = evidence.uploads[client]
        last = [k for k in upload.keys() if k.startswith("head/") and k.endswith("weight")][-1]
        length = upload[last].double().flatten(1).norm(dim=1)
        bias = upload.get(last.replace("weight", "bias"))
        total = length if bias is None else length + bias.double()
        rows.append((total - total.mean()).softmax(0).numpy())
    return _relative(np.stack(rows))


def _relative(shares: np.ndarray) -> Scores:
    """Return log shares relative to the mean over clients, and the shares."""
    shares = shares / shares.sum(1, keepdims=True)
    logs = np.log(shares.clip(1e-12))
    return logs - logs.mean(0), shares
