"""Tests of attacks: forged uploads, choice of malicious clients, accuracy of honest clients."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise

import pytest
import torch

import protofl as pf
from protofl import Client
from protofl.testing import toy as toyfed
from protofl.testing.toy_plugins import Prototypes
from protofl_plugins.payload_transforms.noise_attack import NoiseAttack

ATTACKS = ["sign-flip", "scaling", "noise-attack", "stale", "class-swap", "alie", "label-flip"]


class Sender:
    """Sends class rows, counts, weights and statistics that differ by round and client."""

    uploads = {
        name: "something"
        for name in ("prototypes", "counts", "latents", "head/*", "head/buffer/*", "public_logits")
    }
    upload_rules = {"latents": "any", "latents.classes": "any", "public_logits": "any"}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        numbers = torch.Generator().manual_seed(100 * client.round + client.id)
        rows = torch.rand(3, 4, generator=numbers) + 1
        return pf.Payload(
            {"head/weight": torch.rand(2, 2, generator=numbers), "head/buffer/var": torch.ones(2)},
            prototypes=rows,
            latents=rows[:2] + 1,
            public_logits=rows + 2,
            counts=torch.tensor([5, 6, 7]),
            classes=torch.tensor([0, 1, 3]) if client.id % 2 else torch.tensor([0, 2, 3]),
            **{"latents.classes": torch.tensor([3, 1])},
        )


@pytest.fixture
def federation(tmp_path):
    """Return ``federation(attack, **options of the attack)``: two of four clients are malicious."""

    def make(attack="", method="sender", run=(), **options):
        given = dict(run)
        if attack:
            given = {"malicious": 0.5, "transforms": [attack], **given}
            given["options"] = {attack: options} if options else {}
        extra = {("method", "sender"): Sender, ("method", "carrier"): Prototypes}
        return toyfed.Toy(toyfed.make_plan(method, tmp_path, extra=extra, **given))

    return make


def sent(found, client, round=0):
    """Return a client's upload in a round."""
    record = found.client(client)
    record.round = round
    view = Client(record, found.plan.composition.main)
    return found.call("upload_payload", client=view)


def pairs(found, plain, round=0):
    """Return (forged upload, the client's honest upload) for all malicious clients."""
    malicious = sorted(found.server.malicious)
    assert len(malicious) == 2
    return [(sent(found, c, round), sent(plain, c, round)) for c in malicious]


FLOATING = {"prototypes", "latents", "head/weight", "public_logits"}


def changed(forged, honest):
    assert forged.keys() == honest.keys()
    return {name for name in honest if not torch.equal(forged[name], honest[name])}


# --- forged numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "options", "factor"),
    [
        ("sign-flip", {}, -1.0),
        ("sign-flip", {"a": 3}, -3.0),
        ("scaling", {}, 10.0),
        ("scaling", {"a": 0.5}, 0.5),
    ],
)
def test_multiples(federation, attack, options, factor):
    for forged, honest in pairs(federation(attack, **options), federation()):
        assert changed(forged, honest) == FLOATING
        for name in FLOATING:
            torch.testing.assert_close(forged[name], factor * honest[name])


def test_noise_is_as_large_as_it_says(federation):
    found = federation("noise-attack", method="carrier", s=2.0)
    view = Client(found.client(min(found.server.malicious)), "carrier")
    rows = torch.rand(3, 20_000) * 7
    forged = NoiseAttack().forged(view.bound_to("noise-attack"), "prototypes", rows)
    noise = (forged - rows) / (2.0 * rows.square().mean().sqrt())
    assert abs(noise.std() - 1) < 0.02 and abs(noise.mean()) < 0.02


def test_noise_depends_on_the_seed_the_round_and_the_client(federation):
    found, again = federation("noise-attack"), federation("noise-attack")
    one, other = sorted(found.server.malicious)
    first = sent(found, one)["prototypes"]
    assert torch.equal(first, sent(again, one)["prototypes"])
    honest = federation()
    noises = [
        sent(found, c, r)["prototypes"] - sent(honest, c, r)["prototypes"]
        for c, r in ((one, 0), (one, 1), (other, 0))
    ]
    assert not any(torch.equal(a, b) for a, b in pairwise(noises))


def test_class_swap_renumbers_all_rows(federation):
    for forged, honest in pairs(federation("class-swap", shift=3), federation()):
        assert changed(forged, honest) == {"classes", "latents.classes"}
        for name in ("classes", "latents.classes"):
            wanted = [(c + 3) % 4 for c in honest[name].tolist()]
            assert forged[name].tolist() == wanted
        rows, _ = forged.table("prototypes", 4)
        own, _ = honest.table("prototypes", 4)
        assert torch.equal(rows, own.roll(3, 0))


@pytest.mark.parametrize(("k", "wanted"), [(1, [0, 0, 1, 2, 3]), (3, [0, 0, 0, 0, 1])])
def test_stale_sends_what_it_made_k_rounds_ago(federation, k, wanted):
    found, plain = federation("stale", k=k), federation()
    client = min(found.server.malicious)
    for round, old in enumerate(wanted):
        forged = sent(found, client, round)
        assert not changed(forged, sent(plain, client, old))
        kept = found.client(client).state["stale"]["made"]
        assert len(kept) <= k + 1


def test_stale_with_rounds_missed(federation):
    """After rounds 0, 4 and 5, the client sends its payload of round 4 in round 7 (k = 3)."""
    found, plain = federation("stale", k=3), federation()
    client = min(found.server.malicious)
    olds = [changed(sent(found, client, r), sent(plain, client, 0)) for r in (0, 4, 5)]
    assert olds == [set(), set(), set()]
    assert not changed(sent(found, client, 7), sent(plain, client, 4))


@pytest.mark.slow
def test_a_stale_client_survives_a_file(federation, tmp_path):
    run = {"rounds": 6, "participation": 0.5, "clients": 4}
    lines = []
    for store in ("memory", "disk"):
        found = federation("stale", method="carrier", run={**run, "client_store": store}, k=2)
        found.rounds(6)
        lines.append(toyfed.fingerprint(found)[:2])
    assert toyfed.same(*lines)


@pytest.mark.always
@pytest.mark.slow
def test_a_stale_run_that_is_resumed_equals_one_that_was_not(tmp_path, few):
    class Killed(BaseException):
        pass

    def end(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 1:
            raise Killed

    given = {
        "models": "cnn4",
        "dataset": few,
        "clients": 4,
        "rounds": 4,
        "malicious": 0.5,
        "with": ["stale"],
        "set": {"stale.k": 2},
        "backend": "local",
    }
    whole = pf.run("fedproto", out=tmp_path / "whole", **given)
    with pytest.raises(Killed):
        pf.run("fedproto", out=tmp_path / "cut", progress=end, **given)
    pf.run(out=tmp_path / "cut", resume=True, backend="local")
    rows = [json.loads(line) for line in (tmp_path / "cut/metrics.jsonl").read_text().splitlines()]
    for row, wanted in zip(rows, whole.record, strict=True):
        for key in ("test_accuracy", "loss_terms", "malicious", "honest_accuracy"):
            assert row[key] == wanted[key]


# --- ALIE ---------------------------------------------------------------------------------------


def received(found, round=0):
    """Return all uploads as sent, and as the server's hooks receive them."""
    uploads = {c: sent(found, c, round) for c in range(found.plan.info.num_clients)}
    server = found.views()[1]
    return uploads, found.plan.composition.pass_on(
        "receive_uploads", "uploads", uploads, server=server
    )


def slow_alie(values, z):
    mean = statistics.fmean(values)
    return mean - z * statistics.pstdev(values)


@pytest.mark.parametrize("knows", ["malicious", "all"])
def test_alie_is_mean_minus_z_deviations(federation, knows):
    found = federation("alie", z=1.5, knows=knows)
    uploads, seen = received(found)
    malicious = sorted(found.server.malicious)
    known = [*uploads] if knows == "all" else malicious
    assert [*seen] == [*uploads]
    for client in set(uploads) - set(malicious):
        assert seen[client] is uploads[client]
    for client in malicious:
        assert changed(seen[client], uploads[client]) <= FLOATING
        for i in range(2):
            for j in range(2):
                values = [float(uploads[c]["head/weight"][i, j]) for c in known]
                wanted = slow_alie(values, 1.5)
                assert float(seen[client]["head/weight"][i, j]) == pytest.approx(wanted, rel=1e-5)
        for row, label in enumerate(uploads[client]["classes"].tolist()):
            for j in range(4):
                tables = [(uploads[c]["classes"].tolist(), uploads[c]["prototypes"]) for c in known]
                values = [float(P[cs.index(label), j]) for cs, P in tables if label in cs]
                found_value = float(seen[client]["prototypes"][row, j])
                assert found_value == pytest.approx(slow_alie(values, 1.5), rel=1e-5)


def test_alie_takes_z_from_the_numbers_of_clients(federation):
    """With two of four clients malicious, Φ(z) = (2 − 1)/2, so z is 0 and they send their mean."""
    _, seen = received(federation("alie"))
    _, zero = received(federation("alie", z=0))
    assert all(not changed(seen[c], zero[c]) for c in seen)


# --- label flip ---------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["opposite", "next", "permutation"])
def test_label_flip(federation, to):
    found, plain = federation("label-flip", method="fedproto", to=to), federation(method="fedproto")
    C, maps = found.plan.info.num_classes, []
    for client in range(4):
        record, honest = found.client(client), plain.client(client)
        assert torch.equal(record.test.y, honest.test.y)
        if client not in found.server.malicious:
            assert torch.equal(record.train.y, honest.train.y)
            continue
        seen = {*zip(honest.train.y.tolist(), record.train.y.tolist(), strict=True)}
        assert len(seen) == len({y for y, _ in seen}), "one class became two"
        maps.append(dict(seen))
        counts = torch.zeros(C, dtype=torch.int64)
        for y in honest.train.y.tolist():
            counts[dict(seen)[y]] += 1
        assert torch.equal(record.class_counts, counts)
    wanted = {"opposite": lambda y: C - 1 - y, "next": lambda y: (y + 1) % C}
    for flipped in maps:
        for y, new in flipped.items():
            assert 0 <= new < C
            if to in wanted:
                assert new == wanted[to](y)
            else:
                assert new != y
                assert all(m.get(y, new) == new for m in maps), "one permutation for all"


@pytest.mark.slow
def test_flipped_labels_are_learned(federation):
    """A client that trains on the next class's labels has low accuracy in the run's own test."""
    run = {"rounds": 12, "local_epochs": 5}
    found = federation("label-flip", method="local", run=run, to="next")
    last = found.rounds(12)[-1]
    worst = max(last["clients"][c] for c in found.server.malicious)
    assert worst < 0.4 < last["client_honest_accuracy"]


class Broken:
    """Returns labels that are not classes."""

    @pf.hookimpl
    def train_labels(self, labels):
        return labels + 1000


def test_labels_that_are_none_are_refused(tmp_path):
    extra = {("payload-transform", "broken"): Broken}
    with pytest.raises(pf.RunFailure, match=r"train_labels returned labels from 1000 to"):
        toyfed.Toy(toyfed.make_plan("local", tmp_path, extra=extra, transforms=["broken"])).rounds(
            1
        )


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("prototypes", {"prototypes"}),
        ("head/*, latents", {"head/weight", "latents"}),
        ("*_logits", {"public_logits"}),
    ],
)
def test_keys(federation, keys, wanted):
    for attack in ("sign-flip", "scaling", "noise-attack"):
        for forged, honest in pairs(federation(attack, keys=keys), federation()):
            assert changed(forged, honest) == wanted


def test_keys_that_name_nothing_are_refused_before_training(tmp_path, few):
    with pytest.raises(pf.UsageError, match=r"keys=prototype .*") as error:
        pf.run(
            "fedproto",
            models="cnn4",
            dataset=few,
            clients=4,
            malicious=0.5,
            set={"scaling.keys": "prototype"},
            out=tmp_path / "run",
            **{"with": ["scaling"]},
        )
    assert "prototypes" in str(error.value)
    assert not (tmp_path / "run").exists()


# --- malicious clients --------------------------------------------------------------------------


def malicious(folder, **options):
    given = {"clients": 20, "malicious": 0.2, "transforms": ["scaling"], **options}
    data = toyfed.make_images([[3, 3, 3]] * 20)
    method = given.pop("method", "fedproto")
    return toyfed.Toy(toyfed.make_plan(method, folder, data=data, **given)).server.malicious


def test_who_is_malicious_depends_on_the_seed_alone(tmp_path):
    first = malicious(tmp_path)
    assert len(first) == 4
    other = {"method": "fedtgp", "transforms": ["stale"], "rounds": 7, "participation": 0.5}
    assert malicious(tmp_path, **other) == first
    assert malicious(tmp_path, seed=1) != first
    assert len(malicious(tmp_path, malicious=0.01)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"malicious": 0.2}, "--malicious 0.2 is given, and no attack"),
        ({"with": ["alie"]}, "alie is an attack, and no client is malicious"),
        (
            {"malicious": 0.9, "with": ["alie"]},
            "0.9 of 4 clients leaves no honest client",
        ),
        ({"malicious": 1, "with": ["alie"]}, "--malicious 1 is not possible"),
    ],
)
def test_what_does_not_go_together_is_refused_before_training(tmp_path, few, options, words):
    with pytest.raises(pf.UsageError, match=words):
        pf.run("local", models="cnn4", dataset=few, clients=4, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# --- in a run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "attack"),
    [
        *(("fedproto", attack) for attack in ATTACKS),
        *((method, "alie") for method in ("fedtgp", "fedgh", "feddistill")),
    ],
)
def test_payload_validation_has_nothing_against_attacks(federation, method, attack):
    """All forged uploads pass payload validation, with the default --on-bad-upload stop."""
    lines = federation(attack, method=method).rounds(3)
    assert all(line["participants"] == 4 for line in lines)


@pytest.mark.slow
def test_weights_can_be_attacked_too(tmp_path):
    for attack in ("sign-flip", "noise-attack", "stale", "alie"):
        plan = toyfed.make_plan(
            "fedavg",
            tmp_path,
            models=toyfed.group(toyfed.NORM),
            transforms=[attack],
            malicious=0.25,
        )
        found = toyfed.Toy(plan)
        assert found.rounds(2)[-1]["honest_accuracy"] is not None


def test_the_accuracy_of_the_honest(federation):
    found, plain = federation("sign-flip", method="fedproto"), federation(method="fedproto")
    (line,), (clean,) = found.rounds(1), plain.rounds(1)
    honest = [c for c in range(4) if c not in found.server.malicious]
    sizes = [len(found.client(c).test) for c in honest]
    right = [line["clients"][c] * n for c, n in zip(honest, sizes, strict=True)]
    assert line["honest_accuracy"] == pytest.approx(sum(right) / sum(sizes))
    each = [line["clients"][c] for c in honest]
    assert line["client_honest_accuracy"] == pytest.approx(statistics.fmean(each))
    assert line["malicious"] == sorted(found.server.malicious)
    assert not any("honest" in key or key == "malicious" for key in clean)


@pytest.mark.slow
def test_the_summary_and_the_record(tmp_path, few):
    result = pf.run(
        "fedproto",
        models="cnn4",
        dataset=few,
        clients=4,
        rounds=2,
        trials=2,
        malicious=0.25,
        out=tmp_path / "run",
        backend="local",
        **{"with": ["scaling"]},
    )
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["malicious"] == 0.25
    for number, trial in enumerate(result.summary["trials"]):
        rows = [row for row in result.record if row["trial"] == number]
        assert trial["final_honest_accuracy"] == rows[-1]["honest_accuracy"]
        assert trial["best_honest_accuracy"] == max(row["honest_accuracy"] for row in rows)
        assert len(trial["malicious"]) == 1 and trial["malicious"] == rows[0]["malicious"]
    finals = [trial["final_honest_accuracy"] for trial in result.summary["trials"]]
    assert result.summary["mean"]["final_honest_accuracy"] == pytest.approx(
        statistics.fmean(finals)
    )


@pytest.mark.slow
def test_attacks_are_the_same_in_other_processes(tmp_path, few):
    """`stale` and `label-flip` keep state in the hosts; `alie` forges on the server."""
    rows = []
    for backend in ("local", "process"):
        result = pf.run(
            "fedproto",
            models="cnn4",
            dataset=few,
            clients=5,
            rounds=4,
            malicious=0.4,
            set={"stale.k": 2, "alie.z": 1},
            use={"server_aggregate": "multi-krum"},
            backend=backend,
            workers=2,
            out=tmp_path / backend,
            **{"with": ["label-flip", "stale", "alie"]},
        )
        rows.append(
            [(r["loss_terms"], r["honest_accuracy"], r["malicious"]) for r in result.record]
        )
    assert rows[0] == rows[1]
