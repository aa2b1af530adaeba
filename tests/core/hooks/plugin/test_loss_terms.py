"""Tests of loss terms: labels, adding, dropping, and compositions that are refused."""

from __future__ import annotations

import pytest
import torch
from recording_methods import compose, run_of
from runtime_toys import lines_of, make_plan, without_times
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.runs.dry_run.short_rounds import dry_run


def labels(**options):
    return [term.label for term in compose(**options).terms]


def test_labels_of_terms():
    assert labels() == ["ce", "extra"]
    assert labels(add=["b.extra"]) == ["ce", "extra", "b.extra"]
    assert labels(drop=["extra"]) == ["ce"]
    assert labels(drop=["a.extra"]) == ["ce"]
    assert labels(add=["b.ce"], drop=["ce"]) == ["extra", "b.ce"]
    assert labels(add=["b.ce"], drop=["b.ce"]) == ["ce", "extra"]
    assert labels(use={"local_loss": "b"}) == ["b.ce", "b.extra"]
    assert labels(use={"local_loss": "b"}, add=["a.ce"], drop=["b.ce"]) == ["b.extra", "ce"]
    assert labels(add=["local.ce"]) == ["ce", "extra", "local.ce"]
    assert labels(use={"local_loss": "local"}) == ["local.ce"]


@pytest.mark.parametrize(
    ("options", "what", "near"),
    [
        ({"add": ["a.ce"]}, "holds it already", ""),
        ({"add": ["b.extra", "b.extra"]}, "holds it already", ""),
        ({"use": {"local_loss": "b"}, "add": ["b.ce"]}, "holds it already", ""),
        ({"add": ["b.extr"]}, "unknown loss term of b 'extr'", "'extra'"),
        ({"add": ["ce"]}, "no term", "METHOD.TERM"),
        ({"add": ["fedsaa.mcl"]}, "unknown method 'fedsaa'", "'fedsa'"),
        ({"drop": ["b.extra"]}, "unknown loss term 'b.extra'", "extra"),
        ({"drop": ["extra", "extra"]}, "unknown loss term 'extra'", "ce"),
        ({"use": {"local_loss": "b"}, "drop": ["ce"]}, "unknown loss term 'ce'", "'b.ce'"),
        ({"drop": ["ce", "extra"]}, "no loss term is left", "fewer"),
        ({"use": {"inferense": "b"}}, "unknown hook 'inferense'", "'inference'"),
        ({"use": {"receive": "b"}}, "unknown hook 'receive'", "HOOK=METHOD"),
        ({"use": {"inference": "nobody"}}, "unknown method 'nobody'", ""),
        ({"method": "nobody"}, "unknown method 'nobody'", ""),
        (
            {"options": {"b": {"weight": 1}}},
            "unknown plugin in --set 'b'",
            "a method or transform",
        ),
        ({"options": {"a": {"weigth": 1}}}, "unknown option of a 'weigth'", "'weight'"),
        ({"options": {"a": {"weight": -1}}}, "weight=-1 is not possible", "show a"),
        (
            {"transforms": ["gausian-noise"]},
            "unknown payload-transform 'gausian-noise'",
            "gaussian-noise",
        ),
    ],
)
def test_what_can_not_be_composed(options, what, near):
    with pytest.raises(pf.UsageError) as caught:
        compose(**options)
    assert what in caught.value.what
    assert near in str(caught.value)


def test_options_go_to_their_plugin():
    composition = compose(
        use={"inference": "b"},
        transforms=["gaussian-noise"],
        options={"a": {"weight": 5}, "b": {"weight": "0.25"}, "gaussian-noise": {"p": 0}},
    )
    assert [composition.configs[n].weight for n in "ab"] == [5.0, 0.25]
    assert composition.configs["gaussian-noise"].p == 0


def test_terms_are_the_donors_with_its_own_weight():
    line = run_of(add=["b.extra"], rounds=1)[0]
    terms = line["loss_terms"]
    assert set(terms) == {"ce", "extra", "b.extra"}
    assert terms["b.extra"] == pytest.approx(2 * terms["extra"])
    doubled = run_of(add=["b.extra"], rounds=1, options={"b": {"weight": 8}}, local_epochs=1)[0]
    assert doubled["loss_terms"]["b.extra"] == pytest.approx(8 * doubled["loss_terms"]["extra"])


def test_a_dropped_term_changes_training_as_its_weight_0_does():
    dropped, zero = run_of(drop=["extra"]), run_of(options={"a": {"weight": 0}})
    assert set(dropped[1]["loss_terms"]) == {"ce"}
    assert dropped[1]["loss_terms"]["ce"] == pytest.approx(zero[1]["loss_terms"]["ce"], rel=1e-6)
    assert dropped[1]["loss_terms"]["ce"] != run_of()[1]["loss_terms"]["ce"]


def test_a_method_must_declare_its_terms():
    class Undeclared:
        @pf.hookimpl
        def local_loss(self, client, batch, output):
            return {"ce": cross_entropy(output.logits, batch.y)}

    with pytest.raises(pf.UsageError, match="declares no terms"):
        make_plan(Undeclared)
    Undeclared.terms = {"other": "something else"}
    with pytest.raises(pf.RunFailure, match="undeclared term 'ce'") as caught:
        lines_of(make_plan(Undeclared))
    assert "client 0, round 1" in caught.value.what
    assert "other" in caught.value.near


@pytest.mark.parametrize("signature", ["output, batch, client", "batch, output"])
def test_local_loss_gets_its_arguments_by_name(signature):
    space = {"pf": pf, "cross_entropy": cross_entropy}
    exec(
        "class Ordered:\n"
        "    terms = {'ce': 'cross-entropy'}\n"
        "    @pf.hookimpl\n"
        f"    def local_loss(self, {signature}):\n"
        "        return {'ce': cross_entropy(output.logits, batch.y)}\n",
        space,
    )
    found, expected = lines_of(make_plan(space["Ordered"])), lines_of(make_plan("local"))
    assert without_times(found) == without_times(expected)


@pytest.mark.parametrize(
    "hook", ["download_payload", "upload_payload", "server_aggregate", "server_train", "inference"]
)
def test_none_is_an_error_and_never_falls_through(hook):
    arguments = {"server_aggregate": "server, uploads", "server_train": "server, uploads"}
    arguments |= {"inference": "client, x", "upload_payload": "client"}
    space = {"pf": pf}
    text = (
        f"class N:\n    @pf.hookimpl\n    def {hook}(self, {arguments.get(hook, 'server')}): pass"
    )
    exec(text, space)
    with pytest.raises(pf.RunFailure, match=rf"main\.{hook} returned nothing") as caught:
        lines_of(make_plan(space["N"]))
    assert hook in caught.value.what.split(":")[0]


def test_none_of_a_local_loss():
    class Nothing:
        terms = {"ce": "x"}

        @pf.hookimpl
        def local_loss(self, client, batch, output):
            return None

    with pytest.raises(pf.RunFailure, match=r"main\.local_loss returned nothing"):
        lines_of(make_plan(Nothing))


# --- terms without a gradient ---------------------------------------------------------------------


class Scale(nn.Module):
    """A module whose only parameter is a number."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(3.0))


def returning(make, *names):
    """Return a method whose term ``made`` is computed of the cross-entropy and its module."""

    class Making:
        terms = dict.fromkeys((*names, "made"), "a term")

        @pf.hookimpl
        def setup_client(self, client):
            client.add_module("scale", Scale())

        @pf.hookimpl
        def local_loss(self, client, batch, output):
            ce = cross_entropy(output.logits, batch.y)
            made = make(ce, client.module("scale"))
            return made if isinstance(made, dict) else {"made": made}

    return Making


@pytest.mark.parametrize("engine", ["eager", "vmapped"])
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda ce, m: torch.tensor(ce.item()), "no gradient in 'made'"),
        (lambda ce, m: ce.detach(), "no gradient in 'made'"),
        (lambda ce, m: {"ce": ce.detach(), "made": torch.zeros(())}, "in 'ce', 'made'"),
        (lambda ce, m: torch.tensor(1.0, requires_grad=True), "'made' as a new tensor"),
        (lambda ce, m: nn.Parameter(ce), "'made' as a new tensor"),
        (lambda ce, m: ce.detach().requires_grad_(), "'made' as a new tensor"),
        (lambda ce, m: ce.to_sparse(), "'made' as a sparse_coo tensor"),
        (lambda ce, m: ce.to("meta"), "'made' as a meta tensor"),
        (lambda ce, m: 3, "'made' as the int 3"),
    ],
)
def test_a_term_without_a_gradient(make, what, engine):
    plan = make_plan(returning(make, "ce"), engine=engine)
    for attempt in (dry_run, lines_of):
        with pytest.raises(pf.ProtoflError) as caught:
            attempt(plan)
        assert "local_loss, client 0, round 1: main.local_loss" in caught.value.what
        assert what in caught.value.what
        assert ".item()" in str(caught.value)


@pytest.mark.parametrize("engine", ["eager", "vmapped"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_term_that_is_a_parameter(engine, alone):
    method = returning(lambda ce, m: m.w)
    if not alone:
        method = returning(lambda ce, m: {"ce": ce, "made": m.w}, "ce")
    plan = make_plan(method, engine=engine, batch_size=100, local_epochs=1)
    dry_run(plan)
    lines = lines_of(plan, rounds=2)
    assert lines[0]["loss_terms"]["made"] == 3  # the value before the step
    assert lines[1]["loss_terms"]["made"] == pytest.approx(3 - plan.settings.lr)
