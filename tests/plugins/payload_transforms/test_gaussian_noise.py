"""Tests of the Gaussian noise of FedKTL's Table 10: strength, tensors, direction, seeds."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch

import protofl as pf
from protofl import Client, Server
from protofl.testing import toy as toyfed

NOISE = "gaussian-noise"
K = 128


class Sender:
    """Sends one tensor of every kind, up and down."""

    uploads: dict[str, str] = {}
    downloads: dict[str, str] = {}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        return everything()

    @pf.hookimpl
    def download_payload(self, server: pf.Server, client_id: int) -> pf.Payload:
        return everything()


class Doubling:
    """Doubles the prototypes that a client sends."""

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client: pf.Client) -> Generator[None, pf.Payload, pf.Payload]:
        payload = yield
        return pf.Payload(payload, prototypes=2 * payload["prototypes"])


VECTORS = ("prototypes", "latents", "global_prototypes")


def everything():
    """Return zeros where noise is expected, so the values are the noise; ones elsewhere."""
    ones = ("head/weight", "model/buffer/x", "public_logits", "class_logits")
    return pf.Payload(
        {name: torch.zeros(100, K) for name in VECTORS}
        | {name: torch.ones(100, K) for name in ones},
        images=torch.zeros(100, 3, 8, 8),
        classes=torch.arange(100),
        counts=torch.arange(100),
        samples=torch.tensor(7),
    )


@pytest.fixture
def noisy(tmp_path):
    """Return ``noisy(transforms, **options)``: a federation with the method `Sender`."""

    def make(transforms=(NOISE,), method="sender", **options):
        plan = toyfed.make_plan(
            method,
            tmp_path,
            transforms=list(transforms),
            options={NOISE: options} if NOISE in transforms else {},
            extra={("method", "sender"): Sender, ("payload-transform", "doubling"): Doubling},
        )
        return toyfed.Toy(plan)

    return make


def sent(found, client=0, direction="up", round=0):
    record, server = found.client(client), found.server
    record.round = server.round = round
    main = found.plan.composition.main
    if direction == "up":
        return found.call("upload_payload", client=Client(record, main))
    return found.call("download_payload", server=Server(server, main), client_id=client)


def is_normal(values, scale):
    """Check that mean, deviation and fourth moment are within five standard errors."""
    v = values.double().flatten() / scale
    n = len(v)
    assert abs(v.mean()) < 5 / n**0.5
    assert abs(v.std() - 1) < 5 / (2 * n) ** 0.5
    assert abs((v**4).mean() - 3) < 5 * (96 / n) ** 0.5
    return True


@pytest.mark.parametrize("direction", ["up", "down"])
def test_the_noise_is_normal_with_deviation_s(noisy, direction):
    given = {"s": 0.7, "p": 0.3, "s_images": 2.0, "p_images": 0.25}
    payload = sent(noisy(**given), direction=direction)
    for name in VECTORS:
        assert is_normal(payload[name], 0.7)
    assert is_normal(payload["images"], 2.0)


def test_p_is_the_share_of_the_value_that_is_taken_away(noisy):
    """Each number is FedPCL's v·(1 − p) + N(0, s²); p does not scale the noise."""
    clean = sent(noisy((), method="fedproto"))["prototypes"]
    alone = sent(noisy(method="fedproto", s=0.7, p=1.0))["prototypes"]
    assert clean.abs().max() > 0.1
    for p in (0.0, 0.2):
        found = sent(noisy(method="fedproto", s=0.7, p=p))["prototypes"]
        for row, value, noise in zip(found, clean, alone, strict=True):
            numbers = zip(row.tolist(), value.tolist(), noise.tolist(), strict=True)
            assert all(got == pytest.approx(v * (1 - p) + e, abs=1e-5) for got, v, e in numbers)


def test_the_defaults_are_those_of_table_10(noisy):
    payload = sent(noisy())
    assert is_normal(payload["prototypes"], 0.05)
    assert is_normal(payload["images"], 0.2)
    silent = sent(noisy(method="fedproto", s=0))["prototypes"]
    clean = sent(noisy((), method="fedproto"))["prototypes"]
    torch.testing.assert_close(silent, 0.8 * clean)


def test_the_tensors_noises_are_not_the_same(noisy):
    payload = sent(noisy())
    a, b = payload["prototypes"].flatten(), payload["global_prototypes"].flatten()
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.03


@pytest.mark.parametrize("direction", ["up", "down"])
def test_nothing_but_vectors_and_images_is_touched(noisy, direction):
    payload, plain = sent(noisy(), direction=direction), everything()
    assert payload.keys() == plain.keys()
    for name, tensor in plain.items():
        touched = name in (*VECTORS, "images")
        assert torch.equal(payload[name], tensor) != touched, name
        assert (payload[name].shape, payload[name].dtype) == (tensor.shape, tensor.dtype)


def test_noise_keeps_the_values_under_it(noisy, tmp_path):
    """FedProto's clients send 0.8 times each prototype plus noise."""
    clean, found = noisy((), method="fedproto"), noisy(method="fedproto", direction="up")
    for number in range(4):
        a, b = sent(clean, number), sent(found, number)
        assert torch.equal(a["classes"], b["classes"])
        assert torch.equal(a["counts"], b["counts"])
        difference = (b["prototypes"] - 0.8 * a["prototypes"]).abs().max()
        assert 0 < float(difference) < 6 * 0.05


@pytest.mark.parametrize(
    ("chosen", "noised"), [("up", "up"), ("down", "down"), ("both", "up down")]
)
def test_direction(noisy, chosen, noised):
    found = noisy(direction=chosen)
    for direction in ("up", "down"):
        unchanged = toyfed.same(dict(sent(found, direction=direction)), dict(everything()))
        assert unchanged == (direction not in noised.split())


def test_nothing_taken_away_and_no_noise_is_no_change(noisy):
    found = noisy(s=0, p=0, s_images=0, p_images=0)
    for direction in ("up", "down"):
        assert toyfed.same(dict(sent(found, direction=direction)), dict(everything()))


def test_the_noise_depends_on_seed_round_client_and_direction_alone(noisy):
    found = noisy()
    cases = [(c, d, r) for c in (0, 1) for d in ("up", "down") for r in (0, 3)]
    first = [sent(found, *case)["prototypes"] for case in cases]
    again = [sent(noisy(), *case)["prototypes"] for case in reversed(cases)][::-1]
    for i, a in enumerate(first):
        assert torch.equal(a, again[i])
        assert not any(torch.equal(a, b) for b in first[i + 1 :])


def test_torchs_own_generator_is_left_alone(noisy):
    found = noisy()
    before = torch.get_rng_state()
    sent(found)
    sent(found, direction="down")
    assert torch.equal(before, torch.get_rng_state())


def test_the_methods_own_payload_is_not_written_to(noisy):
    """A method may return tensors of its global state."""
    found = noisy(method="fedsa")
    anchors = found.server.global_state["prototypes"].clone()
    payload = sent(found, direction="down")
    assert not torch.equal(payload["prototypes"], anchors)
    assert torch.equal(found.server.global_state["prototypes"], anchors)


def test_transforms_change_a_payload_in_the_order_given(noisy):
    noise = sent(noisy())["prototypes"]
    doubled_first = sent(noisy(("doubling", NOISE)))["prototypes"]
    noise_first = sent(noisy((NOISE, "doubling")))["prototypes"]
    assert torch.equal(doubled_first, noise)
    assert torch.equal(noise_first, 2 * noise)


def test_a_run_with_noise_learns_from_noisy_prototypes(noisy):
    clean, found = noisy((), method="fedproto"), noisy(method="fedproto", s=5.0)
    a, b = clean.rounds(2), found.rounds(2)
    assert a[0]["loss_terms"] == b[0]["loss_terms"]  # nothing has been sent yet
    assert a[1]["loss_terms"]["align"] < b[1]["loss_terms"]["align"]
    traffic = [k for k in a[0] if k.endswith(("_floats", "_bytes"))]
    assert [[line[k] for k in traffic] for line in a] == [[line[k] for k in traffic] for line in b]


@pytest.mark.parametrize("wrong", [{"p": -1}, {"p": 1.5}, {"s": -1}])
def test_impossible_strengths_are_refused(noisy, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(pf.UsageError, match=f"{name}={value}"):
        noisy(**wrong)


def uploaded(plan, secret=b"", round=0, client=0):
    """Return the prototypes that a client sends from a host with this secret."""
    record = pf.backends.Host(plan, secret=secret).client(client)
    record.round = round
    view = Client(record, plan.composition.main)
    return plan.composition.call("upload_payload", client=view)["prototypes"]


def test_without_the_secret_the_noise_cannot_be_drawn_again(noisy):
    """The server knows the seed, but a host with a secret draws other noise."""
    plan = noisy(secret=True, s=1.0).plan
    secrets = [b"", b"one" * 10, b"two" * 10]
    drawn = [uploaded(plan, secret) for secret in secrets]
    for place, (secret, noise) in enumerate(zip(secrets, drawn, strict=True)):
        assert is_normal(noise, 1.0)
        assert torch.equal(noise, uploaded(plan, secret)), "a repeated round draws the same"
        others = [*drawn[:place], uploaded(plan, secret, round=1), uploaded(plan, secret, client=1)]
        for other in others:
            pair = torch.stack([noise.flatten(), other.flatten()])
            assert abs(torch.corrcoef(pair)[0, 1]) < 0.05


def test_a_secret_changes_nothing_that_does_not_ask_for_it(noisy):
    plan = noisy(s=1.0).plan
    assert torch.equal(uploaded(plan), uploaded(plan, b"one" * 10))
    one, two = (pf.backends.Host(plan, secret=secret).client(0) for secret in (b"", b"of the node"))
    assert toyfed.same(toyfed.own_state(one), toyfed.own_state(two))
    assert "of the node" not in repr(two)


def test_a_simulation_says_that_secret_noise_protects_nobody(noisy):
    assert any(
        "gaussian-noise: the noise of a simulation" in n for n in noisy(secret=True).plan.notes
    )
    assert not any("protects no client" in note for note in noisy(secret=False).plan.notes)


def test_a_transform_that_draws_secretly_must_declare_it(noisy):
    plan = noisy(secret=False, s=1.0).plan
    view = Client(pf.backends.Host(plan).client(0), "gaussian-noise")
    with pytest.raises(pf.UsageError, match="draws_secretly = True"):
        view.secret_stream("up")
