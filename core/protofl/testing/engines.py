"""Contract of engines: the results of `eager`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

import protofl as pf
from protofl.errors import UsageError
from protofl.federation.clients.host import chunks
from protofl.federation.plan.plan import Plan
from protofl.hooks.models.architecture import Architecture
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skip
from protofl.testing.equality import (
    DROPOUT,
    EXACT,
    ONE_STEP,
    RESIDUAL,
    Run,
    assert_equal_runs,
    double_precision,
    ragged_images,
)
from protofl.testing.toy_plugins import Prototypes, Weights

_WEIGHT = [1.0]


class Fading(Prototypes):
    """A bad method: its loss reads a number of this module, which is another in each round."""

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.LossData:
        """Change the number."""
        _WEIGHT[0] = 1.0 / (1 + client.round)
        return super().before_training(client)

    @pf.hookimpl
    def local_loss(
        self, batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> dict[str, Tensor]:
        """Read it."""
        terms = super().local_loss(batch, output, constants)
        return terms | {"ce": _WEIGHT[0] * terms["ce"]}


class EngineContract(Contract):
    """The checks of an engine: rounds of toy federations, held against `eager`'s.

    Attributes:
        runs: {words: options of a run}: what is trained in float64.
    """

    kind = "engine"
    runs: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "SGD": {},
        "momentum": {"momentum": 0.9},
        "Adam": {"optimizer": "adam", "lr": 0.003},
        "weight decay": {"weight_decay": 0.1, "clip": 0.5},
        "Adam with weight decay": {"optimizer": "adam", "lr": 0.003, "weight_decay": 0.1},
        "another of torch's optimisers": {"optimizer": "rmsprop", "lr": 0.002},
        "a rate that falls": {"lr_schedule": "exponential", "momentum": 0.5},
        "clipped gradients": {"clip": 0.1},
        "two and a half epochs": {"local_epochs": 2.5, "momentum": 0.5},
        "without the last batch": {"drop_last": True, "local_epochs": 2},
        "always in one order": {"shuffle": False, "local_epochs": 2},
        "half of the clients": {"participation": 0.5},
    }

    def plan(
        self,
        engine: str = "",
        method: type = Prototypes,
        *members: Architecture,
        **options: Any,  # noqa: ANN401 - the options of a run
    ) -> Plan:
        """A toy run under the engine, or under another one."""
        if not engine and self.chosen:
            options["options"] = {"engine": self.chosen}
        extra = {("method", "toy"): method, **self.extra}
        images = options.pop("data", None) or ragged_images()
        return toy.make_plan(
            "toy",
            self.folder,
            images,
            toy.group(*(members or (toy.CNN, RESIDUAL))),
            extra,
            block=self.block,
            backend="local",
            engine=engine or self.label,
            **options,
        )

    def compare(
        self,
        method: type,
        *members: Architecture,
        double: bool = True,
        rounds: int = 1,
        start: int = 0,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Run the same rounds under `eager` and under the engine."""
        with double_precision() if double else nullcontext():
            expected = Run(self.plan("eager", method, *members, **options), rounds, start)
            actual = Run(self.plan("", method, *members, **options), rounds, start)
            self.remarks += actual.notes
            assert_equal_runs(actual, expected, EXACT if double else ONE_STEP)

    def test_it_equals_eager(self) -> None:
        """Weights, buffers and loss terms are eager's in float64, under every optimiser."""
        for run_name, options in self.runs.items():
            try:
                self.compare(Prototypes, rounds=2, start=1, **options)
            except AssertionError as error:
                raise AssertionError(f"{run_name}: {error}") from error

    def test_several_rounds(self) -> None:
        """The engine reuses what it keeps from round to round."""
        self.compare(Weights, RESIDUAL, rounds=3)

    def test_the_first_step_in_float32(self) -> None:
        """A training step in float32 equals eager's up to rounding."""
        self.compare(Prototypes, double=False, rounds=2, start=1, batch_size=20)

    def test_dropout(self) -> None:
        """Draws of torch's global generators are those of the client's stream."""
        self.compare(Prototypes, DROPOUT)

    def test_equal_runs_are_equal(self) -> None:
        """Two runs under it are equal to the last bit, and leave torch's generator as it was."""
        before = torch.get_rng_state()
        runs = [Run(self.plan("", Prototypes, DROPOUT, toy.CNN), 2) for _ in range(2)]
        first, again = (run.tensors() for run in runs)
        expect(toy.same(first, again), "two runs of one seed differ")
        expect(torch.equal(before, torch.get_rng_state()), "torch's generator was drawn from")

    def test_few_samples(self) -> None:
        """A last batch of one sample, and a client with one sample, under BatchNorm."""
        images = toy.make_images([[3, 3, 0], [4, 4, 3], [1, 0, 0], [2, 2, 2]])
        for drop_last in (False, True):
            self.compare(Prototypes, toy.NORM, data=images, drop_last=drop_last, rounds=2, start=1)

    def test_groups(self) -> None:
        """An engine that trains several clients at once puts each of them into one group."""
        choice = self.choice()
        if not choice.trains_groups:
            skip("it trains one client at a time")
        expect("choose_groups" in choice.hooks, "train_group needs choose_groups beside it")
        for names in (["a", "b", "a", "b", "c"], ["a"] * 7, ["a"], []):
            chunks(choice, names)

    def test_it_finds_a_step_that_cannot_be_replayed(self) -> None:
        """An engine with replays = True refuses, in the dry run, a number that it cannot see."""
        if not self.choice().replays:
            skip("it does not replay steps")
        try:
            dry_run(self.plan("", Fading, toy.CNN))
        except UsageError as error:
            expect("step" in error.what, f"the dry run fails by something else: {error.what}")
        else:
            expect(False, "a loss with a number that changes each round passes the dry run")
