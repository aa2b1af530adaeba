"""Tests of engines that fall back to eager, and of the reason that they give once."""

from __future__ import annotations

import pytest
import torch
from engine_toys import make_plan
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.federation.clients import host as together
from protofl.hooks.discovery.kinds import check_class
from protofl.testing import toy as toyfed
from protofl.testing.equality import DROPOUT, RESIDUAL, Run, assert_equal_runs


class Numbered:
    """A loss whose `given` holds a number that differs between clients."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.LossData:
        return {"scale": 1 + client.id}

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output, constants: pf.LossData) -> dict:
        return {"ce": constants["scale"] * cross_entropy(output.logits, batch.y)}


class Shaped(Numbered):
    """A loss whose `given` holds a table of another shape for each client."""

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.LossData:
        return {"table": {"rows": torch.ones(2 + client.id), "of": [client.id % 2]}}

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output, constants: pf.LossData) -> dict:
        return {"ce": constants["table"]["rows"].mean() * cross_entropy(output.logits, batch.y)}


class Peeks(Numbered):
    """A loss that reads the client's data."""

    @pf.hookimpl
    def local_loss(self, client: pf.Client, batch: pf.Batch, output: pf.Output) -> dict:
        y = client.train.y[batch.index]
        return {"ce": cross_entropy(output.logits, y)}


class Counts(Numbered):
    """A loss whose `given` holds a tensor that after_batch changes, and the class counts."""

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.LossData:
        seen = client.scratch["seen"] = torch.ones(client.num_classes)
        return {"seen": seen, "counts": client.class_counts}

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output, constants: pf.LossData) -> dict:
        weights = constants["seen"] + constants["counts"]
        return {"ce": cross_entropy(output.logits, batch.y, weight=weights / weights.sum())}

    @pf.hookimpl
    def after_batch(self, client: pf.Client, batch: pf.Batch, output: pf.Output) -> None:
        client.scratch["seen"].index_add_(0, batch.y, torch.ones(len(batch.y)))


def toy_plan(method, folder, members, **options):
    """Return a plan for an installed method or for a class that is not installed."""
    images = toyfed.make_images([[6, 5, 4, 1], [2, 7, 0, 6], [9, 0, 3, 2], [4, 4, 4, 4]])
    extra = {("method", "own"): method} if isinstance(method, type) else {}
    name = "own" if extra else method
    return toyfed.make_plan(
        name, folder, images, toyfed.group(*members), extra, backend="local", **options
    )


def pair(engine, method, folder, members=(RESIDUAL,), **options):
    """Run two rounds with eager and with another engine."""
    plans = [
        toy_plan(method, folder, members, **options, **own) for own in ({}, {"engine": engine})
    ]
    return [Run(plan, rounds=2) for plan in plans]


@pytest.mark.parametrize(
    ("method", "members", "why"),
    [
        (Numbered, [RESIDUAL], "its loss is given other values or shapes"),
        (Shaped, [RESIDUAL], "its loss is given other values or shapes"),
        ("fedproto", [DROPOUT], "random operation"),
    ],
    ids=["value", "shape", "dropout"],
)
def test_vmapped_gives_to_eager(method, members, why, tmp_path):
    wanted, found = pair("vmapped", method, tmp_path, members)
    (note,) = found.notes
    assert why in note and "trained by eager" in note and members[0].name in note
    assert_equal_runs(found, wanted, 0.0)


@pytest.mark.parametrize("engine", ["eager", "vmapped", "cuda-graphs"])
def test_a_loss_that_reads_the_client_is_told_what_to_do(engine, tmp_path):
    with pytest.raises(pf.RunFailure) as caught:
        Run(toy_plan(Peeks, tmp_path, [RESIDUAL], engine=engine))
    assert "own.local_loss reads client.train" in caught.value.what
    assert "before_training" in caught.value.do


@pytest.mark.parametrize(
    "method", [Numbered, Shaped, "fedproto"], ids=["value", "shape", "dropout"]
)
def test_single_clients_need_not_be_alike(method, tmp_path):
    """A step is recorded again if a client's values differ; dropout draws as eager does."""
    wanted, found = pair("cuda-graphs", method, tmp_path, [DROPOUT])
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vmapped", "cuda-graphs"])
def test_what_after_batch_changes_is_read_anew(engine, tmp_path):
    wanted, found = pair(engine, Counts, tmp_path, local_epochs=2)
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-4)


class Fails(Numbered):
    """A loss that raises an error."""

    @pf.hookimpl
    def local_loss(self, client: pf.Client, batch: pf.Batch, output: pf.Output) -> dict:
        raise ValueError("no such thing")


@pytest.mark.parametrize("engine", ["vmapped", "cuda-graphs"])
def test_an_error_of_the_method_is_the_methods(engine, tmp_path):
    with pytest.raises(pf.RunFailure, match=r"local_loss, client \d, round 1.*no such thing"):
        Run(toy_plan(Fails, tmp_path, [RESIDUAL], engine=engine))


class Tells(Numbered):
    """A loss that counts its calls; on a GPU, replaying a recorded step does not call it."""

    calls = 0

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.LossData:
        return {}

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output) -> dict:
        Tells.calls += 1
        return {"ce": cross_entropy(output.logits, batch.y)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"lr_schedule": "exponential"}], ids=["", "scheduled"])
def test_one_recording_serves_all_clients_and_rounds(options, tmp_path):
    """Recording a step costs one call of the loss in addition to those for batches."""

    def calls(plan):
        Tells.calls = 0
        Run(plan, rounds=2)
        return Tells.calls

    steps = calls(toy_plan(Tells, tmp_path, [RESIDUAL]))
    options = {**options, "options": {"engine": {"streams": 2}}}
    plan = toy_plan(Tells, tmp_path, [RESIDUAL], engine="cuda-graphs", **options)
    sizes, lanes = 3, 2
    assert steps < calls(plan) <= steps + sizes * lanes
    assert calls(plan) == steps


def test_one_bad_architecture_of_a_group_is_found(tmp_path):
    """The engine trains the other architectures; the note names the one that it can't train."""

    class Reads(Numbered):
        """Gives client 0 a module that can't be copied."""

        @pf.hookimpl
        def setup_client(self, client: pf.Client) -> None:
            if client.id == 0:
                client.add_module("odd", Uncopied())

    plan = toy_plan(Reads, tmp_path, [RESIDUAL, toyfed.CNN], engine="cuda-graphs")
    found = Run(plan, rounds=2)
    (note,) = found.notes
    assert RESIDUAL.name in note and "no copies of this" in note


class Uncopied(torch.nn.Linear):
    """A module that refuses to be copied."""

    def __init__(self):
        super().__init__(2, 2)

    def __deepcopy__(self, memo):
        raise TypeError("no copies of this")


# --- groups -------------------------------------------------------------------------------------


def test_groups_are_bounded_and_of_one_architecture(tmp_path):
    plan = make_plan(
        "local", tmp_path, [RESIDUAL], engine="vmapped", parts={"engine": {"group": 2}}
    )
    names = ["a", "b", "a", "a", "b", "a", "a"]
    assert together.chunks(plan.choices["engine"], names) == [[0, 2], [3, 5], [6], [1, 4]]
    plan = make_plan(
        "local", tmp_path, [RESIDUAL], engine="cuda-graphs", parts={"engine": {"streams": 2}}
    )
    assert together.chunks(plan.choices["engine"], names) == [[0, 1], [2, 3], [4, 5], [6]]


def test_a_group_trainer_is_placed_in_this_process(tmp_path):
    assert make_plan("local", tmp_path, [RESIDUAL], engine="vmapped").settings.backend == "local"


def test_an_engine_that_forgets_a_client(tmp_path):
    class Forgets:
        """Leaves clients out of its groups."""

        @pf.hookimpl
        def choose_groups(self, architectures: list[str]) -> list[list[int]]:
            return [[0]]

        @pf.hookimpl
        def train_group(self, jobs: list[pf.backends.TrainJob]) -> list[dict[str, float]]:
            return []

    check_class("engine", "forgets", Forgets)
    images = toyfed.make_images(toyfed.MIXED)
    plan = toyfed.make_plan(
        "local",
        tmp_path,
        images,
        toyfed.group(RESIDUAL),
        {("engine", "forgets"): Forgets},
        engine="forgets",
    )
    with pytest.raises(pf.RunFailure, match="must name every client once"):
        Run(plan)
