"""Tests of native widths: which methods accept them, FLOPs, and payload validation."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from slowness import quick

import protofl as pf
from protofl.federation.round.observer import check_observing
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.transport.payload_validation import UploadValidation
from protofl.hooks.views.run_info import Cards
from protofl.runs.dry_run.short_rounds import count_flops, dry_run
from protofl.testing import MethodContract
from protofl.testing import toy as toyfed
from protofl.testing.donors import methods_to_run
from protofl.testing.method_federations import WIDTHS

WIDE, PIXELS = 11, math.prod(toyfed.make_images(toyfed.MIXED).x.shape[1:])
ONE_ELSE = toyfed.group(toyfed.NARROW, replace(toyfed.NARROW, name="again"), toyfed.WIDE)
"""Only the third architecture has another width, and the dry run does not run it."""


ABLE = [
    name
    for name in methods_to_run(Registry())
    if getattr(Registry().load("method", name), "native_widths", False)
]


def test_methods_of_whole_outputs_are_able():
    assert {"fedavg", "feddistill", "fedsaf", "local"} <= {*ABLE}


def plan(tmp_path, method="fedsaf", models=WIDTHS, **options):
    return toyfed.make_plan(method, tmp_path, models=models, **{"feature_dim": "native", **options})


def test_each_architecture_has_its_own_width(tmp_path):
    found = plan(tmp_path)
    info = found.info
    assert [info.feature_dim_of(i) for i in range(4)] == [WIDE, 6, 8, WIDE]
    assert [info.feature_dim_of(a) for a in info.architectures] == [WIDE, 6, 8]
    assert info.feature_dims == [6, 8, WIDE]
    assert [card.feature_dim for card in Cards(info).values()] == [WIDE, 6, 8, WIDE]
    for i in range(4):
        model = found.initial_model(i, 0)
        assert model.features(info.sample.zeros(2)).shape == (2, info.feature_dim_of(i))
        assert model.head(model.features(info.sample.zeros(2))).shape == (2, info.num_classes)
    C = info.num_classes
    assert [found.cost(a) for a in info.architectures[:2]] == [K * (PIXELS + C) for K in (WIDE, 6)]


def test_a_number_pools_all_to_it(tmp_path):
    info = plan(tmp_path, feature_dim=5).info
    assert [info.feature_dim_of(i) for i in range(3)] == [5, 5, 5]
    assert info.feature_dims == [5]


def test_hooks_see_the_width_of_their_client(tmp_path):
    federation = toyfed.Toy(plan(tmp_path))
    server = federation.views()[1]
    assert [federation.views(i)[0].feature_dim for i in range(4)] == [WIDE, 6, 8, WIDE]
    assert server.feature_dims == [6, 8, WIDE]
    with pytest.raises(pf.UsageError, match="have the widths 6, 8, 11") as error:
        _ = server.feature_dim
    assert error.value.do == "read server.clients[i].feature_dim"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"method": "fedproto"}, "fedproto"),
        ({"method": "lg-fedavg"}, "lg-fedavg"),
        ({"use": {"server_aggregate": "coordinate-median"}}, "coordinate-median"),
        ({"add": ["fedproto.align"]}, "fedproto"),
    ],
)
def test_a_method_that_needs_one_width_is_refused(tmp_path, options, named):
    with pytest.raises(pf.UsageError) as error:
        plan(tmp_path, **options)
    assert error.value.what.startswith(f"{named} needs features of one width")
    assert error.value.near == f"methods that take native widths: {', '.join(ABLE)}"
    assert error.value.do == "give a number: --feature-dim 8"


@pytest.mark.parametrize("value", ["0", "-3", "nativ", "1.5"])
def test_other_words_and_numbers_are_refused(tmp_path, value):
    with pytest.raises(pf.UsageError, match=f"--feature-dim {value}") as error:
        plan(tmp_path, feature_dim=value)
    assert error.value.near == "expected N|native"


@pytest.mark.slow
def test_flops_count_own_widths(tmp_path):
    found = plan(tmp_path)
    flops = count_flops(found)
    C = found.info.num_classes
    assert [flops[i].forward for i in (0, 1)] == [2 * K * (PIXELS + C) for K in (WIDE, 6)]


def test_features_of_several_widths_are_not_observed(tmp_path):
    with pytest.raises(pf.UsageError, match="the clients' have 6, 8, 11"):
        check_observing(plan(tmp_path, observe=["features"]))
    check_observing(plan(tmp_path, observe=["prototypes"]))
    check_observing(plan(tmp_path, models=toyfed.group(toyfed.NARROW), observe=["features"]))


def uploads_of(federation):
    return {i: pf.Payload.from_bytes(b) for i, b in federation.pool.uploads(0).items()}


@pytest.mark.parametrize("models", [WIDTHS, ONE_ELSE])
def test_payload_validation_knows_the_width_of_an_architecture_that_it_has_not_seen(
    tmp_path, models
):
    found = plan(tmp_path, models=models)
    learned = dry_run(found)
    federation = toyfed.Toy(found)
    federation.server.learned.update(learned)
    federation.rounds(2)
    shapes = {i: u["prototypes"].shape[1] for i, u in uploads_of(federation).items()}
    assert shapes == {i: found.info.feature_dim_of(i) for i in range(4)}


@pytest.mark.parametrize("client", [1, 2])
def test_an_upload_of_another_width_is_a_fault(tmp_path, client):
    found = plan(tmp_path)
    learned = dry_run(found)
    federation = toyfed.Toy(found)
    federation.rounds(1)
    blobs = dict(federation.pool.uploads(0))
    upload = pf.Payload.from_bytes(blobs[client])
    upload["prototypes"] = torch.zeros(len(upload["prototypes"]), 7)
    blobs[client] = upload.to_bytes()
    declared = found.composition.declarations("upload_payload")
    server = pf.Server(federation.server, "fedsaf")
    codec = found.composition.upload
    validation = UploadValidation(found.info, declared, learned, (64, 0), codec, server)
    uploads, faults = validation.admit(blobs, torch.device("cpu"))
    assert [*faults] == [client]
    assert faults[client].rule == "shape"
    assert {*uploads} == {0, 1, 2, 3} - {client}


@pytest.mark.parametrize("method", quick(ABLE, "ds-fl", "fedavg", "fedkd", "scaffold"))
def test_every_method_that_declares_them_trains_with_them(method):
    contract = type("Installed", (MethodContract,), {"plugin": method})()
    contract.setup_method()
    assert contract.cls.native_widths
    contract.test_native_widths()
    contract.teardown_method()


@pytest.mark.always
@pytest.mark.slow
def test_a_run_keeps_its_widths_when_it_is_resumed(tmp_path):
    options = {"models": "htfe9", "clients": 2, "subset": 120, "partition": "iid"}
    options |= {"feature_dim": "native", "backend": "local"}
    whole = pf.run("fedsaf", rounds=2, out=tmp_path / "whole", **options)
    pf.run("fedsaf", rounds=1, out=tmp_path / "parts", **options)
    pf.run(resume=True, rounds=2, out=tmp_path / "parts", backend="local")
    assert json.loads((tmp_path / "parts/config.json").read_text())["feature_dim"] == "native"
    run, other = pf.load_run(tmp_path / "parts"), pf.load_run(whole.folder)
    assert [run.model(i).feature_dim for i in range(2)] == [64, 128]
    found, expected = run.global_state(), other.global_state()
    assert {n for n in found if "." not in n} == {"prototypes/64", "prototypes/128"}
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    run.export(1, tmp_path / "client.safetensors")
    exported = load_file(tmp_path / "client.safetensors")
    assert [*exported["weights/model.head.weight"].shape] == [10, 128]
