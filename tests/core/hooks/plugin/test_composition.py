"""Tests of composition: which hooks the main method, donors and the baseline provide."""

from __future__ import annotations

import pytest
import torch
from recording_methods import CALLS, CLIENT, CLIENT_LIFE, SERVER, A, B, called, compose, run_of
from runtime_toys import Toy, lines_of, make_plan, open_federation

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.hookspecs.method import ROUND_HOOKS
from protofl.hooks.plugin.composition import BASELINE, Composition
from protofl_cli.screens.tables import providers


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def test_one_method_provides_everything():
    lines = run_of()
    assert called("a") == SERVER | CLIENT
    assert called("b") == set()
    assert all((name, weight) == ("a", 1.0) for name, _, weight, _ in CALLS)
    assert lines[0]["extra"] == {"a_extra": 1.0}
    assert set(lines[0]["loss_terms"]) == {"ce", "extra"}
    assert lines[0]["train_loss"] == pytest.approx(sum(lines[0]["loss_terms"].values()))


def test_the_baseline_fills_the_gaps():
    composition = Composition(Registry(), "local")
    assert {composition.provider(hook) for hook in ROUND_HOOKS} == {BASELINE}
    assert {composition.providers[hook] for hook in ROUND_HOOKS} == {"local"}
    assert providers(composition)["inference"] == "local (default)"
    assert providers(composition)["local_loss"] == "ce"
    assert providers(Composition(Registry(), "fedsa"))["inference"] == "fedsa"


@pytest.mark.parametrize("hook", ["server_aggregate", "server_train", "download_payload"])
def test_a_donor_on_the_server(hook):
    lines = run_of(use={hook: "b"})
    assert called("b") == {hook, "setup_server", "end_round"}
    assert called("a") == (SERVER | CLIENT) - {hook}
    assert all(weight == {"a": 1, "b": 2}[name] for name, _, weight, _ in CALLS)
    assert lines[0]["extra"] == {"a_extra": 1.0, "b_extra": 2.0}


@pytest.mark.parametrize("hook", ["upload_payload", "inference", "local_loss"])
def test_a_donor_on_the_client(hook):
    lines = run_of(use={hook: "b"})
    assert called("b") == {hook} | CLIENT_LIFE
    assert called("a") == (SERVER | CLIENT) - {hook}
    assert all(weight == {"a": 1, "b": 2}[name] for name, _, weight, _ in CALLS)
    assert lines[0]["extra"] == {"a_extra": 1.0}


class Sometimes(A):
    """Collects with one option alone."""

    after_batch_if = {"weight": 2.0}

    @pf.hookimpl
    def after_batch(self, client, batch, output):
        super().after_batch(client, batch, output)


class Always(Sometimes):
    """Defines the hook anew."""

    @pf.hookimpl
    def after_batch(self, client, batch, output):
        super().after_batch(client, batch, output)


@pytest.mark.parametrize(
    ("method", "weight", "asks"), [(Sometimes, 1, False), (Sometimes, 2, True), (Always, 1, True)]
)
def test_after_batch_is_called_with_the_options_that_need_it(method, weight, asks):
    options = {"clients": 1, "rounds": 1, "options": {"a": {"weight": weight}}}
    lines_of(make_plan("a", {"a": method}, **options))
    assert ("after_batch" in called("a")) == asks
    assert called("a") >= CLIENT - {"after_batch"}


def test_a_donor_on_both_sides():
    run_of(use={"inference": "b", "server_train": "b"})
    assert called("b") == {"inference", "server_train", "setup_server", "end_round"} | CLIENT_LIFE


def test_states_are_the_methods_own():
    run_of(use={"upload_payload": "b", "server_train": "b"}, clients=1, rounds=1)
    for name in "ab":
        for side in (SERVER, CLIENT):
            counts = [s["calls"] for n, hook, *_, s in CALLS if n == name and hook in side and s]
            # Evaluation also calls ``receive``, but does not change the state.
            assert counts == list(range(1, len(counts) + 1))


def test_generators_are_the_methods_own():
    seen = {}

    class Sink:
        @pf.hookimpl
        def server_aggregate(self, server, uploads):
            (upload,) = uploads.values()
            seen.update(upload)
            return {}

    methods = {"a": A, "b": B, "sink": Sink}
    for donor in "ab":
        options = {"upload_payload": donor, "server_aggregate": "sink"}
        lines_of(make_plan("a", methods, use=options, clients=1, rounds=1))
    assert not torch.equal(seen["a_up"], seen["b_up"])


def test_use_of_a_hook_that_the_donor_does_not_write():
    run_of(use={"inference": "local", "upload_payload": "local"})
    assert "inference" not in called("a")
    assert "upload_payload" not in called("a")
    composition = compose(use={"inference": "local"})
    assert composition.provider("inference") == BASELINE
    assert composition.providers["inference"] == "local"


def test_phases_defaults_and_optimiser_are_the_main_methods():
    class Defaults:
        @pf.hookimpl
        def run_defaults(self):
            return {"local_epochs": 3, "momentum": 0.5}

        @pf.hookimpl
        def phases(self):
            return [pf.Phase(epochs=2)]

    plan = make_plan("a", {"a": A, "d": Defaults}, use={"inference": "d"})
    assert (plan.settings.local_epochs, plan.settings.momentum) == (1, 0.0)
    assert plan.composition.phases(plan.info) == [pf.Phase()]
    plan = make_plan("d", {"a": A, "d": Defaults}, use={"inference": "a"}, momentum=0.9)
    assert (plan.settings.local_epochs, plan.settings.momentum) == (3, 0.9)
    assert plan.composition.phases(plan.info) == [pf.Phase(epochs=2)]


# --- before the run ------------------------------------------------------------------------------


def test_requires_of_every_member():
    class Picky:
        @pf.hookimpl
        def requires(self, run, config):
            return [f"{run.group} has {len(run.architectures)} architectures"]

    for options in ({"method": Picky}, {"method": "local", "use": {"inference": "picky"}}):
        method = options.pop("method")
        with pytest.raises(pf.UsageError) as caught:
            make_plan(method, {"picky": Picky}, **options)
        assert "cannot run with toy on tiny" in caught.value.what
        assert "toy has 2 architectures" in caught.value.near


def test_resolve_fills_in_options_which_are_recorded():
    class Resolving:
        class Config(pf.Config):
            width: int | None = pf.Field(None, description="w")
            lambda_: float = pf.Field(2.0, alias="lambda", description="λ")

        @pf.hookimpl
        def resolve(self, run, config):
            return {"width": run.feature_dim} if config.width is None else {}

    plan = make_plan(Resolving)
    assert plan.composition.configs["main"].width == Toy.feature_dim
    assert plan.settings.options["main"] == {"width": 6, "lambda": 2.0}
    plan = make_plan(Resolving, options={"main": {"width": 3, "lambda": "4"}})
    assert plan.settings.options["main"] == {"width": 3, "lambda": 4.0}


# --- starting global state
# --------------------------------------------------------------------------


def test_what_the_main_method_starts_with_stays():
    plan = make_plan("a", {"a": A, "b": B}, use={"server_train": "b"})
    global_state = open_federation(plan).server.global_state
    assert global_state["shared"] == 1.0
    assert global_state["a_key"].tolist() == [1.0] * 3
    assert global_state["b_key"].tolist() == [2.0] * 3


def starting(key, *classes):
    class Starting:
        @pf.hookimpl
        def setup_server(self, server):
            rows = torch.tensor(classes, dtype=torch.float32).unsqueeze(1)
            return pf.Payload({key: rows, "classes": torch.tensor(classes)})

    return Starting


def test_rows_that_two_methods_start_with_keep_their_classes():
    methods = {"one": starting("prototypes", 0, 1), "two": starting("class_logits", 1, 3)}
    plan = make_plan("one", methods, use={"server_train": "two"})
    global_state = open_federation(plan).server.global_state
    assert global_state.classes_of("prototypes").tolist() == [0, 1]
    assert global_state.classes_of("class_logits").tolist() == [1, 3]
    methods["two"] = starting("prototypes", 1, 3)
    plan = make_plan("one", methods, use={"server_train": "two"})
    global_state = open_federation(plan).server.global_state
    assert global_state.classes_of("prototypes").tolist() == [0, 1]
    assert global_state["prototypes"].flatten().tolist() == [0, 1]
