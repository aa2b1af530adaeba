"""Tests of payload validation: hostile uploads and downloads, and the errors they cause."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hostile_uploads import (
    ALL,
    DOWNLOAD,
    DOWNLOADS,
    HOSTILE,
    MORE,
    OPTIONS,
    ROUND,
    TABLE,
    changed,
    entry,
    federation,
    notes_of,
    options_of,
    put,
    raw,
)
from runtime_toys import make_plan, without_times
from slowness import quick

import protofl as pf
from protofl.backends import Host
from protofl.federation.jobs.jobs import Evaluate, StartTrial, Train
from protofl.hooks.transport.rules import RULES, Declarations, Fault
from protofl.hooks.transport.tensor_specs import check_ranks
from protofl.hooks.views.snapshots import pack_server, unpack_server
from protofl.hooks.wire.keys import Keys
from protofl.records.row import Row
from protofl.system.files.tensors import TensorEntry, read_tensors, tensor_header, write_tensors


def honest_first(changes, *, rounds, **options):
    """Return a federation without a dry run, whose first round is honest."""
    return federation(changes, dry=False, rounds=rounds, **options)


def resumed(changes, **options):
    """Return a federation resumed after round 0; its dry run's rules are in the checkpoint."""
    first = federation({}, **options)
    first.round(0)
    again = federation(changes, dry=False, **options)
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder, "server"), *pack_server(first.server))
        unpack_server(again.server, read_tensors(Path(folder, "server")))
    again._server_side.build_validation()
    return again


def replayed(changes, *, rounds, **options):
    """Return a federation that replays an honest run without its last client."""
    recorded = {(0, number): Row({"answered": [0, 1, 2]}) for number in range(rounds)}
    return federation(changes, dry=False, recorded=recorded, rounds=rounds, **options)


@pytest.mark.parametrize("begin", quick([honest_first, resumed, replayed], resumed))
def test_where_no_dry_run_ran_the_rules_are_the_same(begin):
    """tests/docs/test_faults_page.py tests the same after a dry run, with all messages."""
    for what, found in notes_of(TABLE | MORE, begin).items():
        _, key, rule = ALL[what]
        assert len(found) == 1, (what, found)
        assert f"client {HOSTILE} sent " in found[0] and f"({rule})" in found[0], (what, found)
        assert key in found[0] and len(found[0]) < 500 and found[0].isprintable(), (what, found)


@pytest.mark.parametrize("what", ["NaN", "another width", "a place twice"])
def test_by_default_a_hostile_upload_stops_the_run(what):
    change, key, rule = ALL[what]
    found = federation(change, **options_of(what))
    found.round(0)
    with pytest.raises(pf.RunFailure) as caught:
        found.round(ROUND)
    error = caught.value
    assert f"client {HOSTILE} sent " in error.what and f"in round {ROUND + 1}" in error.what
    assert key in error.what and error.what.isprintable()
    assert error.near == (RULES[rule] if rule == "finite" else f"{rule}: {RULES[rule]}")
    assert "--on-bad-upload skip" in error.do


def test_a_form_of_much_costs_nothing():
    """The form is refused before memory is allocated for its tensors."""
    resource = pytest.importorskip("resource")
    what = "a form of 4 GB"
    found = federation(ALL[what][0], on_bad_upload="skip", **options_of(what))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(2):
        found.round(number)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


@pytest.mark.slow
def test_one_that_is_left_out_is_as_if_it_had_sent_nothing():
    """The server's state does not depend on what the skipped client sent."""
    servers = []
    for what in ("NaN", "class 9 of 4", "garbage", "nothing"):
        found = federation(ALL[what][0], on_bad_upload="skip")
        for number in range(2):
            found.round(number)
        servers.append(found.server.global_state)
    for server in servers[1:]:
        assert all(torch.equal(server[name], servers[0][name]) for name in servers[0])


@pytest.mark.slow
def test_in_workers(tmp_path):
    result = pf.run(
        "fedproto",
        models="cnn4",
        dataset="digits",
        clients=2,
        rounds=1,
        backend="process",
        workers=1,
        upload_bound=1e-12,
        on_bad_upload="skip",
        min_clients=0,
        out=tmp_path / "run",
        local_epochs=1,
    )
    assert [row["skipped_uploads"] for row in result.record] == [[0, 1]]


# --- learned rules --------------------------------------------------------------------------------


def test_without_a_dry_run_the_rules_are_those_of_most_clients():
    narrow = changed(prototypes=lambda p: p[:, :3])
    for who in (0, 3):
        found = federation(narrow, dry=False, who=who, when=0)
        with pytest.raises(pf.RunFailure, match=f"client {who} sent 'prototypes' of shape"):
            found.round(0)
    late = federation(narrow, dry=False)
    late.round(0)
    with pytest.raises(pf.RunFailure, match="client 2 sent 'prototypes' of shape"):
        late.round(ROUND)


def test_a_key_of_one_client_is_not_taken_for_the_method_s():
    extra = changed(extra=torch.zeros(3))
    for who in (HOSTILE, {1, HOSTILE}):  # of four clients; a majority is more than half
        found = federation(extra, dry=False, when=0, who=who)
        with pytest.raises(
            pf.RunFailure, match=r"client [12] sent 'extra' which the server does not"
        ):
            found.round(0)


def test_what_was_learned_survives_a_resumed_run(tmp_path):
    """Voted rules are in the checkpoint, so clients do not vote again after a resume."""
    first = federation(changed(), dry=False, when=99)
    first.round(0)
    write_tensors(tmp_path / "server", *pack_server(first.server))
    again = federation(changed(prototypes=lambda p: p[:, :3]), dry=False, who={0, 1, 2})
    unpack_server(again.server, read_tensors(tmp_path / "server"))
    again._server_side.build_validation()
    with pytest.raises(pf.RunFailure, match="client 0 sent 'prototypes' of shape"):
        again.round(ROUND)


class Late:
    """Sends one key only from the third round on."""

    uploads = {"x": "a number", "late": "a number, from the third round on"}
    width = 3

    @pf.hookimpl
    def upload_payload(self, client):
        sent = pf.Payload(x=torch.ones(()))
        if client.round >= 2:
            sent["late"] = torch.ones(self.width)
        return sent


class LateUndeclared(Late):
    uploads = {"x": "a number"}


@pytest.mark.slow
def test_a_key_may_come_in_a_later_round_where_it_is_declared():
    found = federation(changed(), Late, when=99)
    for number in range(4):
        found.round(number)
    with pytest.raises(pf.RunFailure, match="'late' which the server does not expect") as caught:
        found = federation(changed(), LateUndeclared, when=99)
        for number in range(3):
            found.round(number)
    assert "declare it in the method's uploads" in caught.value.do


class Several:
    """Sends two rows per class, and an optional key whose width depends on the round."""

    uploads = {"prototypes": "two of each class", "classes": "of which", "free": "of any width"}

    @pf.hookimpl
    def upload_payload(self, client):
        classes = torch.arange(client.num_classes).repeat(2)
        sent = pf.Payload(prototypes=torch.ones(len(classes), 6), classes=classes)
        if client.round < 2 or client.id != HOSTILE:
            sent["free"] = torch.ones(2, 1 + client.round)
        return sent


class SeveralDeclared(Several):
    upload_rules = {"classes": "several", "free": "any optional"}


def test_exemptions_are_declared():
    with pytest.raises(pf.UsageError, match="with 8 rows of 4 at most"):
        federation(changed(), Several, when=99)
    found = federation(changed(), SeveralDeclared, when=99)
    for number in range(4):
        found.round(number)


def test_an_exemption_that_is_none_is_found_at_once():
    class Wrong(Several):
        upload_rules = {"classes": "sevral"}

    with pytest.raises(pf.UsageError, match="'sevral'") as caught:
        federation(changed(), Wrong)
    assert "'several'" in caught.value.near


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("several -2", "'several 9'"),
        ("optional 3", "not every client"),
    ],
)
def test_a_word_with_a_number_that_it_does_not_take(words, near):
    class Wrong(Several):
        upload_rules = {"classes": words}

    with pytest.raises(pf.UsageError, match=f"'classes' is '{words}'") as caught:
        federation(changed(), Wrong)
    assert near.strip("'") in caught.value.near


class SeveralBounded(Several):
    upload_rules = {"classes": "several 2", "free": "any optional"}


def test_several_rows_may_have_a_bound():
    three = changed(
        classes=torch.zeros(3, dtype=torch.int64), prototypes=lambda p: p[:3].contiguous()
    )
    found = federation(three, SeveralBounded)
    found.round(0)
    with pytest.raises(pf.RunFailure, match="class 0 3 times, at most 2 are declared"):
        found.round(ROUND)
    many = changed(classes=torch.zeros(9, dtype=torch.int64), prototypes=torch.ones(9, 6))
    found = federation(many, SeveralBounded)
    found.round(0)
    with pytest.raises(pf.RunFailure, match="with 9 rows of 8 at most"):
        found.round(ROUND)


def rows_of(count, classes):
    """Return a change to ``count`` prototypes with these classes."""
    return changed(prototypes=torch.ones(count, 6), classes=classes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rows_of(10**6, torch.zeros(10**6).long()), "'classes' with 1000000 rows of 1024 at most"),
        (rows_of(257, torch.zeros(257).long()), "'classes' with class 0 257 times"),
        (rows_of(2, torch.tensor([0, 9])), "'classes' with class 9 of 4"),
        (rows_of(2, torch.tensor([0, -1])), "'classes' with class -1 of 4"),
        (rows_of(3, torch.tensor([0, 1])), "'prototypes' with 3 rows where 'classes' has 2"),
        (changed(prototypes=put((0, 0), torch.nan)), "'prototypes' with NaN or infinity"),
        (changed(prototypes=lambda p: p[:, :3].contiguous()), r"'prototypes' of shape"),
        (changed(prototypes=None, classes=None), "nothing under"),
    ],
)
def test_hostile_prototypes_of_fedplvm(change, words):
    found = federation(change, "fedplvm", upload_limit=50)
    found.round(0)
    with pytest.raises(pf.RunFailure, match=f"client {HOSTILE} sent {words}"):
        found.round(ROUND)


class Ranks:
    """Sends factors whose rank depends on the client and the round."""

    uploads = {
        "factors/*/down": pf.Key("[r, columns]", "a change of a layer", varies=-2),
        "factors/*/up": pf.Key("[rows, r]", "a change of a layer", varies=-1),
    }

    @pf.hookimpl
    def upload_payload(self, client):
        rank = 1 + (client.id + max(client.round, 0)) % 3
        return pf.Payload(
            {"factors/a/down": torch.ones(rank, 6), "factors/a/up": torch.ones(4, rank)}
        )


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize("name", ["entangled_representation", "entangled_label"])
def test_the_length_of_a_vector_is_no_number_of_rows(name, dry):
    """Of all classes or features; FedRE's server stacks the vectors of all clients."""
    found = federation(changed(**{name: lambda vector: vector[:-1]}), "fedre", dry=dry)
    found.round(0)
    with pytest.raises(pf.RunFailure, match=rf"client {HOSTILE} sent '{name}' of shape"):
        found.round(ROUND)


class RanksUndeclared(Ranks):
    uploads = {"factors/*": "a change of a layer"}


def test_a_dimension_of_own_keys_may_vary():
    found = federation(changed(), Ranks, when=99)
    for number in range(3):
        found.round(number)
    with pytest.raises(pf.RunFailure, match=r"'factors/a/(down|up)' of shape"):
        federation(changed(), RanksUndeclared, dry=False, when=99).round(0)


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("down", "up", "words"),
    [
        ((2, 6), (4, 1), "with rank [12], and other factors with another"),
        ((0, 6), (4, 0), "with rank 0"),
        ((7, 6), (4, 7), "with rank 7"),
        ((2, 5), (4, 2), r"of shape \[2, 5\], it is F32\[[*], 6\]"),
        ((2, 6), (4, 1, 2), r"of shape \[4, 1, 2\]"),
    ],
)
def test_a_declared_rank_has_bounds(down, up, words, dry):
    hostile = changed(**{"factors/a/down": torch.ones(down), "factors/a/up": torch.ones(up)})
    found = federation(hostile, Ranks, dry=dry)
    found.round(0)
    with pytest.raises(pf.RunFailure, match=f"client {HOSTILE} sent .*{words}"):
        found.round(ROUND)


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(**{"model/head.bias": lambda b: b[:2]}), r"'model/head.bias' of shape \[2\]"),
        (changed(**{"model/head.bias": None}), "nothing under 'model/head.bias'"),
        (changed(**{"model/evil": torch.ones(3)}), "'model/evil' which the server does not expect"),
        (changed(samples=torch.tensor(-(10**9))), "'samples' with -1000000000 samples"),
        (changed(samples=torch.tensor(1 << 62)), f"'samples' with {1 << 62} samples"),
        (changed(samples=torch.tensor(0)), "'samples' with 0 samples"),
        (changed(samples=torch.ones(1).long()), r"'samples' of shape \[1\]"),
    ],
)
def test_weights_and_numbers_of_samples_name_the_client(change, words):
    found = federation(change, "fedavg", models="toy1")
    found.round(0)
    with pytest.raises(pf.RunFailure, match=f"client {HOSTILE} sent {words}"):
        found.round(ROUND)


@pytest.mark.slow
def test_weights_of_an_architecture_that_the_dry_run_had_not():
    """The dry run runs two of three architectures; the third model's weights are known anyway."""
    from runtime_toys import PARTS, _dense

    from protofl.testing import toy as toyfed

    group = toyfed.group(_dense(8), _dense(5), _dense(7), K=6, side=8)
    PARTS["model-group", "toy3"] = group
    key = "model/extractor.1.weight"
    given = {"models": "toy3", "public": 12}
    federation(changed(), "feddf", when=99, **given).round(0)
    for change, words in (
        (changed(**{key: lambda w: w[:5]}), f"'{key}' of shape"),
        (changed(**{key: None}), f"nothing under '{key}'"),
        (lambda upload: b"", "nothing under 'model/[*]'|nothing under 'samples'"),
    ):
        found = federation(change, "feddf", **given)
        found.round(0)
        with pytest.raises(pf.RunFailure, match=f"client 2 sent ({words})"):
            found.round(ROUND)


class Reads:
    """Reads a key that only some clients send."""

    uploads = {"x": "a number", "y": "a number, not of all"}
    upload_rules = {"y": "optional"}

    @pf.hookimpl
    def upload_payload(self, client):
        every = pf.Payload(x=torch.ones(()), y=torch.ones(()))
        return every if client.id != 3 else every.select("x")

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        return {"y": torch.stack([u["y"] for u in uploads.values()]).sum()}


def test_a_key_that_a_hook_misses_names_the_client():
    with pytest.raises(pf.ProtoflError, match="the upload of client 3 has no 'y'"):
        federation(changed(), Reads, when=99).round(0)


# --- downloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [Train, Evaluate])
def test_a_host_refuses_hostile_downloads(job):
    host = Host(make_plan("fedproto"))
    host.handle(StartTrial(0))
    host.handle(job(1, 0, blob=DOWNLOAD.to_bytes()))
    for what, (change, words) in DOWNLOADS.items():
        with pytest.raises(pf.RunFailure) as caught:
            host.handle(job(1, 0, blob=change(DOWNLOAD)))
        assert words in caught.value.what, what
        assert "client 1" in caught.value.what and "round 1" in caught.value.what, what
        assert "download_payload of fedproto" in caught.value.do, what


# --- errors of the server -------------------------------------------------------------------------


class Diverges:
    """A method whose server computes NaN in round 1."""

    uploads = {"x": "a number"}
    downloads = {"y": "a number"}

    @pf.hookimpl
    def download_payload(self, server, client_id):
        return server.global_state.select("y")

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(x=client.received.get("y", torch.ones(())))

    @pf.hookimpl
    def server_train(self, server, uploads):
        return {"y": torch.tensor(torch.nan if server.round == 1 else 1.0)}


def test_nan_of_the_server_names_its_hook_in_the_round_that_made_it():
    found = federation(changed(), Diverges, when=99, on_bad_upload="skip", dry=False)
    found.round(0)
    with pytest.raises(pf.RunFailure) as caught:
        found.round(1)
    assert "server_train" in caught.value.what and "'y'" in caught.value.what
    assert "round 2" in caught.value.what and "client" not in caught.value.what


# --- honest payloads ------------------------------------------------------------------------------


def test_payload_validation_changes_no_number():
    plain = federation(changed(), when=99)
    strict = federation(changed(), when=99, **OPTIONS)
    lines = [without_times([f.round(n)[0] for n in range(2)]) for f in (plain, strict)]
    assert lines[0] == lines[1]
    assert isinstance(plain.server.global_state, pf.Payload)


# --- rules of the header, checked before tensors are read -----------------------------------------


def two(first, second, places, data):
    """Return a payload of two small tensors with the given names and offsets."""
    found = [json.dumps(entry("U8", [end - start], start, end)) for start, end in places]
    return raw(f'{{"{first}":{found[0]},"{second}":{found[1]}}}', data)


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (two("a", "a", [(0, 1), (1, 2)], b"00"), "a name occurs twice"),
        (two("a", "b", [(0, 1), (2, 3)], b"000"), "overlap or leave gaps"),
        (two("a", "b", [(0, 1), (0, 1)], b"0"), "overlap or leave gaps"),
        (two("a", "b", [(0, 1), (1, 2)], b"000"), "overlap or leave gaps"),
        (b"\xff" * 7 + b"\0" + b"{}", "the header claims"),
    ],
)
def test_a_header_is_refused_before_any_tensor_is_made(blob, words):
    with pytest.raises(ValueError, match=words):
        tensor_header(blob)


def test_factors_of_one_tensor_have_one_rank():
    keys = Keys(
        {
            "factors/*/u": pf.Key("[rows, r]", "U", varies=-1),
            "factors/*/s": pf.Key("[r]", "Σ", varies=-1),
            "factors/*/vh": pf.Key("[r, columns]", "V", varies=-2),
        }
    )
    part, declared = "factors/head.weight", Declarations(keys=keys)
    header = {f"{part}/u": TensorEntry("F32", (4, 2)), f"{part}/s": TensorEntry("F32", (2,))}
    check_ranks({**header, f"{part}/vh": TensorEntry("F32", (2, 6))}, declared)
    with pytest.raises(Fault, match="with rank 3, and other factors with another"):
        check_ranks({**header, f"{part}/vh": TensorEntry("F32", (3, 6))}, declared)
