"""Tests of warm-up: the weight of terms in each round, which terms, and equal engines."""

from __future__ import annotations

import pytest
import torch

import protofl as pf
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy as toyfed
from protofl_plugins.payload_transforms.warm_up import WarmUp

LABELS = torch.tensor([0, 2, 2, 1, 0, 0, 3])


@pytest.fixture
def toy(tmp_path):
    def make(method="fedproto", warm_up=None, **options):
        if warm_up is not None:
            options |= {"transforms": ["warm-up"]}
            options["options"] = {"warm-up": warm_up, **options.get("options", {})}
        return toyfed.Toy(toyfed.make_plan(method, tmp_path, **options))

    return make


def terms_in(federation, round):
    """Return the loss terms of a batch in a round, with prototypes of all classes."""
    generator = torch.Generator().manual_seed(0)
    P, z = (torch.randn(n, 8, generator=generator, dtype=torch.float64) for n in (4, 7))
    federation.client(0).round = round
    record = federation.prepare(0, pf.Payload(prototypes=P, classes=torch.arange(4)))
    return {name: term.item() for name, term in federation.terms(record, z, LABELS).items()}


@pytest.mark.parametrize(("round", "a"), [(0, 0), (1, 0.25), (3, 0.75), (4, 1), (9, 1)])
def test_the_weight_grows_with_the_round(toy, round, a):
    plain, warm = terms_in(toy(), round), terms_in(toy(warm_up={"rounds": 4}), round)
    assert warm["ce"] == plain["ce"]
    assert warm["align"] == pytest.approx(a * plain["align"], rel=1e-9)


def test_the_loss_of_another_model_has_the_same_weights(toy):
    """Engines compute the loss with copies of a client's model."""
    found = toy(warm_up={"rounds": 4})
    terms_in(found, 1)  # sets the round and the prototypes
    record, client = found.client(0), found.views()[0]
    loss = found.plan.composition.loss(client, found.given[0], pf.Phase())
    z = torch.randn(7, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = pf.Batch(torch.empty(7, 0), LABELS, torch.arange(7))
    output = pf.Output(z, record.model.head(z))
    one, other = (each(batch, output, 0) for each in (loss, loss.on(record.model, {})))
    assert one == other and one.keys() == {"ce", "align"}


@pytest.mark.parametrize(
    ("pattern", "scaled"),
    [("*", {"align", "fedsa.mcl"}), ("align", {"align"}), ("x, fedsa.*", {"fedsa.mcl"})],
)
def test_it_scales_the_terms_that_match(toy, pattern, scaled):
    mixed = {"add": ["fedsa.mcl"]}
    plain = terms_in(toy(**mixed), 1)
    warm = terms_in(toy(warm_up={"rounds": 2, "terms": pattern}, **mixed), 1)
    assert plain.keys() == warm.keys() == {"ce", "align", "fedsa.mcl"}
    for name in plain:
        factor = 0.5 if name in scaled else 1
        assert warm[name] == pytest.approx(factor * plain[name], rel=1e-9)


def test_weight_0_trains_as_without_the_term_and_then_with_it(toy):
    dropped = toy(drop=["align"]).rounds(3)
    late = toy(warm_up={"rounds": 1_000_000_000}).rounds(3)
    whole, zero = toy().rounds(3), toy(warm_up={"rounds": 0}).rounds(3)
    ce = [[line["loss_terms"]["ce"] for line in lines] for lines in (dropped, late, whole, zero)]
    assert ce[0] == pytest.approx(ce[1], rel=1e-5)
    assert ce[2] == ce[3] != ce[0]


@pytest.mark.parametrize("engine", ["vmapped", "cuda-graphs"])
def test_engines_take_the_weight_of_each_round(toy, engine):
    """An engine that records a step must not keep the weight of the first one."""
    eager = toy("fedtgp", warm_up={"rounds": 3}, engine="eager").rounds(4)
    other = toy("fedtgp", warm_up={"rounds": 3}, engine=engine).rounds(4)
    for a, b in zip(eager, other, strict=True):
        assert b["loss_terms"] == pytest.approx(a["loss_terms"], rel=1e-4)
    assert eager[1]["loss_terms"]["align"] > 0


@pytest.mark.parametrize(("method", "terms"), [("local", "*"), ("fedproto", "algin")])
def test_without_a_matching_term_it_is_refused(toy, method, terms):
    with pytest.raises(pf.UsageError, match=r"warm-up: no loss term matches"):
        dry_run(toy(method, warm_up={"terms": terms}).plan)


@pytest.mark.parametrize(("method", "notes"), [("afl", 1), ("centralised", 1), ("fedproto", 0)])
def test_a_note_says_that_it_has_no_effect(toy, method, notes):
    """Clients of AFL train nothing, and `centralised` trains on the server alone."""
    lines = []
    dry_run(toy(method, warm_up={}).plan, note=lines.append)
    assert sum(line == "warm-up has no effect: clients train no loss" for line in lines) == notes


def test_factors_of_terms_that_the_run_lacks_are_an_error(toy):
    class Wrong(WarmUp):
        @pf.hookimpl
        def loss_factors(self, terms):
            return {"algin": 0.5}

    found = toy("fedproto", transforms=["wrong"], extra={("payload-transform", "wrong"): Wrong})
    with pytest.raises(pf.RunFailure, match=r"wrong\.loss_factors.*'algin'"):
        found.rounds(1)
