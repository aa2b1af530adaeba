"""Tests of `pf.Key`, the declaration of a key of payloads."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
import torch

import protofl as pf
from protofl.hooks.discovery.kinds import check_declared
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.transport.rules import Declarations
from protofl.hooks.wire.keys import RUNTIME_KEYS, Keys, fault_of, meaning_of, shape_of
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import MethodContract, checks_of, run_checks, toy
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
    assert (shape_of("x", "a number"), meaning_of("a number")) == ("", "a number")
    spread = pf.Key("[n]", "deviation")
    assert (shape_of("x", spread), meaning_of(spread)) == ("[n]", "deviation")


def test_a_key_of_the_runtime_has_its_shape_with_a_text_too():
    assert shape_of("prototypes", "P_i^c") == "[n, K]"
    assert shape_of("head/*", "the classifier") == "as the parameter"
    assert shape_of("tail/buffer/*", "statistics") == "as the buffer"


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("x", ("[n, K]", "means"), "uploads declares 'x' as a tuple"),
        ("x", pf.Key("", "means"), "with shape=''"),
        ("x", pf.Key("[n, K]", " "), "with meaning=' '"),
        ("x", pf.Key("[n]", "ranks", varies=1), "varies=1, expected 0, or -1"),
        ("x", pf.Key("[n]", "ranks", varies="last"), "varies='last'"),
        ("x", pf.Key("[n]", "rows", by_class=1), "by_class=1"),
        ("prototypes", pf.Key("[n, 3]", "means", by_class=True), "protofl declares it as [n, K]"),
        ("samples", pf.Key("[n] int", "n_i"), "protofl declares it as [] int"),
        ("x/*", pf.Key("[n]", "rows", by_class=True), "PREFIX/NAME have no rows by class"),
    ],
)
def test_a_faulty_declaration_is_refused_before_a_run(name, key, words):
    class Faulty:
        uploads = {name: key}

    with pytest.raises(pf.UsageError) as refused:
        check_declared("method/faulty", Faulty)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("prototypes", "prototypes"),
        ("prototypes.classes", "NAME.classes"),
        ("head/weight", "head/*"),
        ("model/extractor.0.weight", "model/*"),
        ("model/*", "model/*"),
        ("model/buffer/bn.running_mean", "PREFIX/buffer/*"),
        ("model@resnet18/head.bias", "model@ARCHITECTURE/*"),
        ("update/conv.weight/vh", "update/*/vh"),
        ("update/conv.bias", "update/*"),
        ("update/buffer/bn.running_mean", "PREFIX/buffer/*"),
        ("spread", "spread"),
    ],
)
def test_names_are_found(name, found):
    vh = pf.Key("[r, columns]", "V", varies=-2)
    own = {"update/*": pf.Key("as the parameter", "g"), "update/*/vh": vh, "spread": PROTOTYPES}
    keys = Keys(own)
    assert keys.find(name) is keys.declared[found]
    assert keys.is_by_class(name) == (found in ("prototypes", "spread"))


@pytest.mark.parametrize("name", ["anchors", "prototype", "tail/weight", "classes/x", "update"])
def test_other_names_are_not(name):
    assert Keys({"update/*": pf.Key("as the parameter", "g")}).find(name) is None


def test_every_key_of_the_runtime_is_described():
    assert all(key.shape and key.meaning for key in RUNTIME_KEYS.values())
    assert all(not fault_of(name, key) for name, key in RUNTIME_KEYS.items())


def method(**keys):
    """Return a method that declares these uploads."""
    return type("Declaring", (Prototypes,), {"uploads": {**Prototypes.uploads, **keys}})


def plan_of(tmp_path, main, other, **options):
    extra = {("method", "main"): main, ("method", "other"): other}
    return toy.make_plan("main", tmp_path, extra=extra, **options)


def test_two_methods_of_a_run_give_one_key_one_shape(tmp_path):
    one = method(spread=pf.Key("[n]", "deviation of each class", by_class=True))
    alike = method(spread=pf.Key("[ n ]", "deviation, in other words", by_class=True))
    for other in (alike, method(spread="a text has no shape")):
        plan_of(tmp_path, one, other, use={"inference": "other"})
    for key in (pf.Key("[C]", "of all", by_class=True), pf.Key("[n]", "of rows")):
        other = method(spread=key)
        plan_of(tmp_path, one, other)  # the other method is installed, and not in the run
        with pytest.raises(pf.UsageError) as refused:
            plan_of(tmp_path, one, other, use={"inference": "other"})
        assert refused.value.what == f"other declares the key 'spread' as {key.form} (uploads)"
        assert refused.value.near == "main declares it as [n], rows by class"


def test_the_methods_of_protofl_agree_about_their_keys():
    registry = Registry()
    methods = [p for p in registry.plugins("method") if p.distribution == "protofl"]
    keys = Keys.of({p.name: registry.load("method", p.name) for p in methods})
    assert keys.is_by_class("class_logits")


# --- payload validation
# -----------------------------------------------------------------------------------


def sending(key, tensor):
    """Return a method that sends a tensor beside its prototypes, declared by a text or a key."""

    class Sending:
        """Sends a further tensor."""

        uploads = {**Prototypes.uploads, "further": key}
        downloads = {}

        @pf.hookimpl
        def upload_payload(self, client):
            sent = client.class_prototypes().select("prototypes")
            return pf.Payload(sent, further=tensor(client))

    return Sending


@pytest.mark.parametrize(
    ("key", "rows", "words"),
    [
        (pf.Key("[n]", "deviations", by_class=True), 5, "with 5 rows where 'classes' has"),
        (pf.Key("[N, C]", "scores"), 3, "with 3 rows where the public samples are 8"),
        (pf.Key("[m]", "centres"), 5, ""),
        ("a text says nothing of rows", 5, ""),
    ],
)
def test_payload_validation_checks_the_rows_that_a_key_declares(tmp_path, key, rows, words):
    main = sending(key, lambda client: torch.ones(rows))
    images = toy.make_images(toy.MIXED, given_split=False)
    found = toy.Toy(plan_of(tmp_path, main, main, data=images, public=8))
    if not words:
        found.rounds(1)
        return
    with pytest.raises(pf.RunFailure, match=f"'further' {words}"):
        found.rounds(1)


@pytest.mark.parametrize("varies", [0, -1])
def test_a_dimension_varies_as_a_key_declares(tmp_path, varies):
    key = pf.Key("[rows, r]", "a factor", varies=varies)
    main = sending(key, lambda client: torch.ones(4, 4 - client.id))
    found = toy.Toy(plan_of(tmp_path, main, main))
    if varies:
        found.rounds(1)
        return
    with pytest.raises(pf.RunFailure, match="'further' of shape"):
        found.rounds(1)


@pytest.mark.parametrize("shape", ["[n, K]", "[n, width]"])
def test_the_width_k_of_a_key_follows_the_architecture(tmp_path, shape):
    """The dry run runs two of three architectures, which have one width; the third another."""
    key = pf.Key(shape, "deviations", by_class=True)
    main = sending(
        key, lambda client: torch.ones(client.class_counts.count_nonzero(), client.feature_dim)
    )
    main.native_widths = True
    group = toy.group(toy.NARROW, replace(toy.NARROW, name="again"), toy.WIDE)
    plan = plan_of(tmp_path, main, main, models=group, feature_dim="native")
    found = toy.Toy(plan)
    found.server.learned.update(dry_run(plan))
    if shape == "[n, K]":
        found.rounds(1)
        return
    with pytest.raises(pf.RunFailure, match="client 2 sent 'further' of shape"):
        found.rounds(1)


def test_names_under_a_prefix_are_declared_with_a_star():
    class Masked:
        uploads = {"mask/*": "what is kept"}
        upload_rules = {"mask/*": "optional"}

    declared = Declarations.of("upload_payload", [("m", Masked())])
    assert declared.names == {"mask/*"}
    assert declared.covers("mask/a.weight") and declared.is_exempt("mask/a.weight", "optional")
    assert not declared.covers("masks")


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
