"""Contract of methods: the checks of a method's runs, of its loss, and of engines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protofl.hooks.discovery.kinds import Plugin, hooks_of
from protofl.hooks.views.batch import Batch, Output
from protofl.hooks.views.client import Client
from protofl.hooks.views.run_info import Phase
from protofl.hooks.views.server import Server
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy
from protofl.testing.contract import expect, skip
from protofl.testing.equality import (
    EXACT,
    RESIDUAL,
    Run,
    assert_equal_runs,
    double_precision,
    ragged_images,
)
from protofl.testing.method_federations import (
    difference,
    expect_finite,
)
from protofl.testing.method_runs import RunChecks


class MethodContract(RunChecks):
    """The checks of a method, each on a toy federation of four clients."""

    # --- the loss -------------------------------------------------------------------------------

    def test_terms_are_scalars_with_gradients(self) -> None:
        """Each loss term of the second round is a finite scalar with a gradient."""
        for name, term in self._terms(self.fed(), 0)[0].items():
            expect(
                term.shape == (), f"term {name} has shape {tuple(term.shape)}, expected a scalar"
            )
        federation = self.fed()
        federation.rounds(1)
        composition = federation.plan.composition
        terms, parameters = self._terms(federation, 1)
        declared = [*composition.members[self.main].terms, *self.added]
        stray = sorted({*terms} - {*declared})
        expect(not stray, f"local_loss returns {', '.join(stray)}, which terms does not declare")
        if [phase.name for phase in composition.phases(federation.plan.info)] == ["private"]:
            missing = sorted({*declared} - {*terms})
            expect(not missing, f"local_loss does not return {', '.join(missing)} in round 1")
        for name, term in terms.items():
            expect_gradient(name, term, parameters)

    def _terms(self, federation: toy.Toy, round: int) -> tuple[Mapping[str, Tensor], list[Tensor]]:
        """The loss terms of client 0's first samples, and the parameters that it trains."""
        server = Server(federation.server, self.main)
        received = federation.call("download_payload", server=server, client_id=0)
        state = federation.client(0)
        state.round, state.steps = round, 1
        state = federation.prepare(0, received, double=False)
        nudge = torch.Generator().manual_seed(1)
        with torch.no_grad():  # a step away, so that a term at its minimum has a slope too
            for parameter in state.model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=nudge))
        x, y = state.train.inputs(slice(5)), state.train.y[:5]
        state.model.train()
        features = state.model.features(x)
        batch = Batch(x, y, torch.arange(len(y)))
        output = Output(features, state.model.head(features))
        loss = federation.plan.composition.loss(
            Client(state, self.main), federation.given[0], Phase()
        )
        trained = [state.model, *(slot.module for _, slot in state.slots() if slot.train)]
        weights = (p for module in trained for p in module.parameters())
        return loss(batch, output, 0), [p for p in weights if p.requires_grad]

    def test_the_loss_is_the_sum_of_its_terms(self) -> None:
        """The training loss is the sum of the terms, and all are finite."""
        lines = self.plain()[0].lines
        expect_finite(lines)
        for line in lines:
            whole, parts = line["train_loss"], sum(line["loss_terms"].values())
            expect(math.isclose(whole, parts, rel_tol=1e-6), f"train_loss {whole}, terms {parts}")

    def test_the_dry_run_leaves_no_trace(self) -> None:
        """The dry run leaves no trace."""
        first, after = self.plain()[1], self.fed()
        generator = torch.get_rng_state()
        dry_run(after.plan)
        expect(torch.equal(generator, torch.get_rng_state()), "torch's generator was drawn from")
        after.rounds(3)
        other = toy.fingerprint(after)
        expect(toy.same(first, other), f"the dry run shows: {difference(first, other)}")

    def test_it_learns(self) -> None:
        """After eight rounds on easy data, the accuracy is at least twice that of guessing."""
        images = toy.make_images([[12, 12, 12, 12]] * 4, [[6, 6, 6, 6]] * 4)
        federation = self.fed(data=images, rounds=8, eval_every=8, lr=0.1)
        accuracy = federation.rounds(8)[-1]["test_accuracy"]
        alone = (
            '; if the class only adds loss terms to other methods, write donates = ("local_loss",)'
            if {*hooks_of("method", self.cls)} == {"local_loss"}
            else ""
        )
        expect(
            accuracy > 0.5,
            f"accuracy {accuracy:.2f}, expected more than 0.50; guessing one of four classes has "
            f"0.25{alone}",
        )

    # --- engines --------------------------------------------------------------------------------

    def test_every_engine_equals_eager(self) -> None:
        """Every installed engine gives eager's weights and losses in float64."""
        engines = [p for p in self.registry.plugins("engine") if p.name != "eager"]
        usable = [p.name for p in engines if self.registry.status(p)[0] == "ok"]
        if not usable:
            skip("no other engine is installed")
        members = [toy.group(toy.CNN, RESIDUAL), toy.group(RESIDUAL)]
        images = ragged_images()
        failures, trained = [], False
        with double_precision():
            expected = Run(self.plan(members, data=images, backend="local"), start=1)
            for name in usable:
                options = getattr(self.registry.load("engine", name), "check_options", {})
                parts = {"engine": options}
                plan = self.plan(members, data=images, backend="local", engine=name, parts=parts)
                actual = Run(plan, start=1)
                trained |= sum("trained by eager" in n for n in actual.notes) < len(members)
                self.remarks += [f"{name}: {note}" for note in actual.notes]
                try:
                    assert_equal_runs(actual, expected, EXACT)
                except AssertionError as error:
                    failures.append(f"{name}: {error}")
        expect(not failures, "; ".join(failures))
        if not trained:
            skip("; ".join(dict.fromkeys(self.remarks)))

    def test_recorded_steps_can_be_replayed(self) -> None:
        """A recorded step computes what the code does: with an engine that replays, it is equal."""
        engines = [p.name for p in self.registry.plugins("engine") if self._replays(p)]
        if not engines:
            skip("no engine that replays steps is installed")
        for name in engines:
            parts = {"engine": getattr(self.registry.load("engine", name), "check_options", {})}
            plan = self.plan([toy.group(RESIDUAL)], backend="local", engine=name, parts=parts)
            dry_run(plan)

    def _replays(self, engine: Plugin) -> bool:
        usable = self.registry.status(engine)[0] == "ok"
        return usable and bool(getattr(self.registry.load("engine", engine.name), "replays", False))


def expect_gradient(name: str, term: Tensor, parameters: Sequence[Tensor]) -> None:
    """A loss term is a finite scalar, and its gradient is finite and not zero."""
    expect(bool(term.isfinite()), f"term {name} is {term.item()}")
    expect(term.requires_grad, f"term {name} has no gradient: it was detached or is a constant")
    gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
    reached = [g for g in gradients if g is not None]
    expect(bool(reached), f"term {name} reaches no parameter that the client trains")
    expect(all(bool(g.isfinite().all()) for g in reached), f"term {name}: NaN in a gradient")
    expect(any(float(g.abs().max()) > 0 for g in reached), f"term {name}: its gradient is zero")
