"""Tests of the vocabulary of payload keys: names that it knows."""

from __future__ import annotations

import pytest

from protofl.hooks.transport.rules import Declarations
from protofl.hooks.wire.vocabulary import VOCABULARY, find_key


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("prototypes", "prototypes"),
        ("prototypes.classes", "NAME.classes"),
        ("head/weight", "head/*"),
        ("model/extractor.0.weight", "model/*"),
        ("model/*", "model/*"),
        ("model/buffer/bn.running_mean", "PREFIX/buffer/*"),
        ("model@resnet18/head.bias", "model@ARCHITECTURE/*"),
        ("auxiliary_update/conv.weight/vh", "auxiliary_update/NAME/vh"),
        ("auxiliary_update/conv.bias", "auxiliary_update/NAME"),
    ],
)
def test_names_are_found(name, known):
    assert find_key(name).name == known


@pytest.mark.parametrize(
    "name", ["anchors", "anchors.classes", "prototype", "tail/weight", "tail@x/weight", "classes/x"]
)
def test_other_names_are_not(name):
    assert find_key(name) is None


def test_names_are_unique_and_described():
    assert len({key.name for key in VOCABULARY}) == len(VOCABULARY)
    assert all(key.shape and key.meaning for key in VOCABULARY)
    assert {key.name for key in VOCABULARY if key.by_class} >= {"prototypes", "class_logits"}


@pytest.mark.parametrize("written", ["mask/*", "mask/\u2026", "mask/..."])
def test_names_under_a_prefix_are_declared_with_a_star_or_dots(written):
    class Masked:
        uploads = {written: "what is kept"}
        upload_rules = {written: "optional"}

    declared = Declarations.of("upload_payload", [("m", Masked())])
    assert declared.names == {"mask/*"}
    assert declared.covers("mask/a.weight") and declared.is_exempt("mask/a.weight", "optional")
    assert not declared.covers("masks")
