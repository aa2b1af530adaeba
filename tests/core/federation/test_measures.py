"""Tests of --measure: each figure against a slow count; nothing else in the run changes."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from runtime_toys import install, make_plan, train, without_times

import protofl as pf
from protofl.federation.round.federation import Federation
from protofl.federation.round.public_logits import check_public_logits
from protofl.hooks.models.flops import training_flops
from protofl.runs.dry_run.short_rounds import count_flops
from protofl.testing import toy

ALL = "train-accuracy,global-accuracy,public-logits,flops"
TABLE_8 = (0.013, 1.530, 0.314, 0.117, 0.218, 1.305, 2.532, 5.330)
"""FedTGP, Table 8: forward FLOPs of HtFE8's architectures on Cifar100, in billions."""


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def rounds(plan, count):
    """Run `count` rounds; return the federation, the lines, and the uploads of the last round."""
    pool = toy.WatchedPool(plan)
    federation = Federation(plan, pool)
    federation.start_trial(0)
    lines = [federation.round(number)[0] for number in range(count)]
    sent = pool.uploads(count - 1) if count else {}
    return federation, lines, {c: pf.Payload.from_bytes(blob) for c, blob in sent.items()}


def near(found, wanted):
    """Return True if the numbers are approximately equal; None equals only None."""
    return all(
        a is b if b is None else a == pytest.approx(b, rel=1e-4)
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize(
    ("method", "key"),
    [("fedmd", "public_logits"), ("fedpkd", "public_logits"), ("ds-fl", "public_probabilities")],
)
def test_public_logits(method, key):
    options = {"fedpkd": {"server_model": "dense8"}} if method == "fedpkd" else {}
    plan = make_plan(method, public=24, measure="public-logits", rounds=1, options=options)
    _, lines, uploads = rounds(plan, 1)
    ours = lines[0]["measures"]["public_logits"]
    labels = plan.data.y[plan.split(0).public].tolist()

    def by_class(scores):
        hits = {c: [] for c in range(4)}
        for row, label in zip(scores, labels, strict=True):
            hits[label].append(row.index(max(row)) == label)
        return [sum(h) / len(h) if h else None for h in hits.values()]

    scores = {client: upload[key].tolist() for client, upload in uploads.items()}
    assert ours["clients"].keys() == {str(client) for client in scores}
    assert all(near(ours["clients"][str(c)], by_class(own)) for c, own in scores.items())
    count = len(scores)
    mean = [
        [sum(s[n][c] for s in scores.values()) / count for c in range(4)]
        for n in range(len(labels))
    ]
    assert near(ours["mean"], by_class(mean))
    spread = {c: [torch.tensor(row).var().item() for row in s] for c, s in scores.items()}
    weighted = [
        [sum(spread[i][n] * s[n][c] for i, s in scores.items()) for c in range(4)]
        for n in range(len(labels))
    ]
    assert near(ours["variance"], by_class(weighted))


def test_training_accuracy():
    plan = make_plan("local", measure="train-accuracy", rounds=1, local_epochs=5)
    federation, lines, _ = rounds(plan, 1)
    hits = []
    for client in range(4):
        model = federation.pool.host.client(client).model.eval()
        with torch.no_grad():
            for row in plan.split(0).train(client).tolist():
                x = plan.data.x[row : row + 1].float() / 127.5 - 1
                hits.append((client, int(model(x).argmax()) == int(plan.data.y[row])))
    shares = [[hit for c, hit in hits if c == client] for client in range(4)]
    each = torch.tensor([sum(own) / len(own) for own in shares], dtype=torch.float64)
    assert lines[0]["measures"] == {
        "train_accuracy": pytest.approx(sum(hit for _, hit in hits) / len(hits)),
        "client_train_accuracy": pytest.approx(float(each.mean())),
        "train_accuracy_std": pytest.approx(float(each.std(correction=0))),
    }


def test_global_accuracy_is_on_equally_many_samples_of_each_class():
    plan = make_plan("local", measure="global-accuracy", rounds=1, local_epochs=5)
    rows = plan.balanced_samples(0, channels_last=False)._rows.tolist()
    tests = [row for client in range(4) for row in plan.split(0).test(client).tolist()]
    counts = Counter(int(plan.data.y[row]) for row in tests)
    assert Counter(int(plan.data.y[row]) for row in rows) == dict.fromkeys(
        counts, min(counts.values())
    )
    assert {*rows} <= {*tests} and len({*rows}) == len(rows)
    federation, lines, _ = rounds(plan, 1)
    shares = []
    for client in range(4):
        model = federation.pool.host.client(client).model.eval()
        x = torch.stack([plan.data.x[row].float() / 127.5 - 1 for row in rows])
        with torch.no_grad():
            right = [
                int(c) == int(plan.data.y[r]) for c, r in zip(model(x).argmax(1), rows, strict=True)
            ]
        shares.append(sum(right) / len(rows))
    each = torch.tensor(shares, dtype=torch.float64)
    assert lines[0]["measures"] == {
        "global_accuracy": pytest.approx(float(each.mean())),
        "client_global_accuracy": pytest.approx(float(each.mean())),
        "global_accuracy_std": pytest.approx(float(each.std(correction=0))),
        "global_samples_per_class": min(counts.values()),
    }


def test_no_more_than_two_thousand_samples_are_balanced(monkeypatch):
    monkeypatch.setattr("protofl.data.split.BALANCED", 9)
    plan = make_plan("local", measure="global-accuracy")
    classes = len(plan.data.y.unique())
    assert len(plan.balanced_samples(0, channels_last=False)) == 9 // classes * classes
    assert make_plan("local").balanced_samples(0, channels_last=False) is None


# --- FLOPs ----------------------------------------------------------------------------------------


def test_table_12_from_table_8():
    """20 clients; FML and FedKD train the 4-layer CNN in addition to each client's own model."""
    own = [TABLE_8[client % 8] for client in range(20)]
    assert f"{training_flops(own):.2f}" == "98.77"
    assert f"{training_flops([cost + TABLE_8[0] for cost in own]):.2f}" == "99.81"


def dense(width):
    """Return the FLOPs of a toy model's forward pass: 64 pixels, width, K = 6, 4 classes."""
    return 2 * (64 * width + width * 6 + 6 * 4)


def test_flops_of_plain_training():
    plan = make_plan("local", measure="flops", rounds=1, participation=0.75)
    federation, _, _ = rounds(plan, 0)
    federation.flops = count_flops(plan)
    line, clients = federation.round(0)
    found = line["measures"]["flops"]
    forward = [dense(8) if client % 2 == 0 else dense(5) for client in clients]
    assert found["forward"] == sum(forward)
    assert found["training"] == 4 * sum(forward)
    # Backward: twice the forward pass, minus the gradient of the images, which is not needed.
    step = [
        3 * f - 2 * 64 * (8 if c % 2 == 0 else 5) for c, f in zip(clients, forward, strict=True)
    ]
    samples = [len(plan.split(0).train(client)) for client in clients]
    assert found["counted"] == sum(s * n for s, n in zip(step, samples, strict=True))


def test_flops_of_an_auxiliary_model():
    plan = make_plan("fml", models="toy1", measure="flops")
    (found,) = count_flops(plan)
    assert found.forward == 2 * dense(8)
    assert found.counted == found.samples * 2 * (3 * dense(8) - 2 * 64 * 8)


class Sums:
    """Sends a number; all downloads are equal."""

    far = 0.0
    uploads = {"sum": pf.Key("[]", "a number")}

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(sum=torch.tensor(self.far if client.round else 0.0))


class Diverging(Sums):
    """Sends infinity from the second round on."""

    far = math.inf


def test_nets_that_diverge_on_the_first_batch_are_counted():
    whole = count_flops(make_plan(Sums))
    assert whole[0].counted > 0
    assert count_flops(make_plan(Diverging)) == whole


def test_counting_trains_no_client_and_draws_nothing():
    plan = make_plan("fedproto", measure="flops")
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    count_flops(plan)
    assert torch.equal(torch.rand(3), wanted)


# --- nothing else changes -------------------------------------------------------------------------


def plain(rows):
    """Return the rows without the measures."""
    return [{k: v for k, v in row.items() if k != "measures"} for row in without_times(rows)]


@pytest.mark.parametrize("backend", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_on_and_off_are_one_run(toys, tmp_path, backend):
    given = {"public": 24, "rounds": 2, "set": {"server_model": "dense8"}, "workers": 2}
    off = train("fedpkd", tmp_path / "off", **given)
    on = train("fedpkd", tmp_path / "on", measure=ALL, backend=backend, **given)
    assert not any("measures" in row for row in off.record)
    assert plain(on.record) == plain(off.record)
    assert on.client_accuracies == off.client_accuracies
    for row in on.record:
        assert row["measures"].keys() == {
            "train_accuracy",
            "client_train_accuracy",
            "train_accuracy_std",
            "global_accuracy",
            "client_global_accuracy",
            "global_accuracy_std",
            "global_samples_per_class",
            "public_logits",
            "flops",
        }


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_them(toys, tmp_path, monkeypatch):
    given = {"rounds": 4, "measure": "train-accuracy,flops"}
    whole = train("fedproto", tmp_path / "whole", **given)
    seen = []

    def stop(event):
        if isinstance(event, pf.events.RoundDone):
            seen.append(event)
            if len(seen) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("fedproto", tmp_path / "cut", progress=stop, **given)
    again = train("fedproto", tmp_path / "cut", resume=True)
    assert without_times(again.record) == without_times(whole.record)


# --- refused figures ------------------------------------------------------------------------------


def test_an_unknown_figure():
    with pytest.raises(pf.UsageError) as caught:
        make_plan("local", measure="flop")
    assert "unknown figure of --measure 'flop'" in caught.value.what
    assert "flops" in caught.value.near


@pytest.mark.parametrize(
    ("method", "measure", "options", "what"),
    [
        ("fedproto", "public-logits", {"public": 24}, "don't send public_logits or"),
    ],
)
def test_what_a_run_cannot_give(method, measure, options, what):
    with pytest.raises(pf.UsageError) as caught:
        check_public_logits(make_plan(method, measure=measure, **options))
    assert what in caught.value.what


def test_names_are_put_in_order():
    assert make_plan("local", measure=["flops", "train-accuracy"]).settings.measure == [
        "train-accuracy",
        "flops",
    ]
