"""Test that the words about keys name what the attacks of ``protofl leak`` read in them."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import protofl as pf
from protofl.hooks.wire.keys import RUNTIME, reveals_of
from protofl_privacy.labels import _attacks
from protofl_privacy.membership import attacks_on

EXTRACTOR = pf.Key("as the parameter", "the extractor")


def evidence():
    """Return evidence whose upload has every key that an attack reads."""
    upload = pf.Payload(
        {
            "prototypes": torch.zeros(2, 4),
            "counts": torch.tensor([3, 4]),
            "classes": torch.tensor([0, 2]),
            "public_logits": torch.zeros(5, 3),
            "public_probabilities": torch.zeros(5, 3),
            **{f"{part}/weight": torch.zeros(3, 4) for part in ("model", "head", "extractor")},
        }
    )
    return SimpleNamespace(clients=[0], uploads={0: upload}, num_classes=3, colluder=lambda c: None)


def words(key):
    return reveals_of(key, EXTRACTOR if key == "extractor/*" else RUNTIME.find(key))


def test_what_attacks_read_is_named():
    labels = _attacks(evidence())
    assert {*labels} >= {"counts", "prototypes", "public_logits", "head/*", "model/*"}
    for key in labels:
        assert "class" in words(key), key
    members = {key for key, _ in attacks_on(evidence())}
    assert members >= {"prototypes", "head/*", "model/*", "extractor/*", "public_probabilities"}
    for key in members:
        assert "sample was trained on" in words(key), key


def test_exact_keys_are_read_exactly():
    """Keys whose words say "exactly" need no attack: the upload has the values themselves."""
    exact = {key for key in _attacks(evidence()) if "exactly" in words(key)}
    assert exact == {"counts", "prototypes"}
    e = evidence()
    for key in exact:
        _, scores = _attacks(e)[key]
        s, _ = scores(e)
        assert s.tolist() == ([[3, 0, 4]] if key == "counts" else [[1, 0, 1]])
