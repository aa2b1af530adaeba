"""Tests of `pf.Key`, the declaration of a key of payloads."""

from __future__ import annotations

import dataclasses

import pytest

import protofl as pf
from protofl.hooks.discovery.kinds import check_declared
from protofl.hooks.transport.rules import Declarations
from protofl.hooks.wire.keys import meaning_of, shape_of
from protofl.testing import MethodContract, checks_of, run_checks
from protofl.testing.toy_plugins import Prototypes

PROTOTYPES = pf.Key("[n, K]", "mean feature of each class", by_class=True)


class Declared(Prototypes):
    """The method of the toy plugins with declared shapes."""

    uploads = {"prototypes": PROTOTYPES, "classes": "of which classes"}
    downloads = {"prototypes": PROTOTYPES}


def test_a_key_is_frozen_and_further_facts_are_named():
    key = pf.Key("[rows, r]", "U of the update", varies=-1)
    assert (key.shape, key.meaning, key.by_class, key.varies) == (
        "[rows, r]",
        "U of the update",
        False,
        -1,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        key.shape = "[r]"
    with pytest.raises(TypeError):
        pf.Key("[n, K]", "mean feature", True)


def test_a_text_declares_the_meaning_alone():
    assert (shape_of("a number"), meaning_of("a number")) == ("", "a number")
    assert (shape_of(PROTOTYPES), meaning_of(PROTOTYPES)) == ("[n, K]", PROTOTYPES.meaning)


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("x", ("[n, K]", "means"), "uploads declares 'x' as a tuple"),
        ("x", pf.Key("", "means"), "with shape=''"),
        ("x", pf.Key("[n, K]", " "), "with meaning=' '"),
        ("x", pf.Key("[n]", "ranks", varies=1), "varies=1, expected 0, or -1"),
        ("x", pf.Key("[n]", "ranks", varies="last"), "varies='last'"),
        ("x", pf.Key("[n]", "rows", by_class=1), "by_class=1"),
        ("x/*", pf.Key("[n]", "rows", by_class=True), "PREFIX/NAME have no rows by class"),
    ],
)
def test_a_faulty_declaration_is_refused_before_a_run(name, key, words):
    class Faulty:
        uploads = {name: key}

    with pytest.raises(pf.UsageError) as refused:
        check_declared("method/faulty", Faulty)
    assert words in str(refused.value) and "pf.Key(" in str(refused.value)


def test_the_gate_knows_the_names_of_keys():
    declared = Declarations.of("upload_payload", [("m", Declared())])
    assert declared.names == {"prototypes", "classes"}


def test_the_contract_takes_keys_and_wants_a_meaning():
    class Silent(Prototypes):
        """Declares a key without words."""

        uploads = {"prototypes": PROTOTYPES, "classes": " "}

    def failures(plugin):
        checks = ("test_declarations", "test_nothing_undeclared_leaves_a_client")
        others = dict.fromkeys({*checks_of(MethodContract)} - {*checks})
        found = run_checks(type("Chosen", (MethodContract,), {"plugin": plugin, **others}))
        assert len(found) == len(checks)
        return [f.why for f in found if f.outcome == "failed"]

    assert failures(Declared) == []
    assert failures(Silent) == ["uploads does not say what 'classes' is"]
