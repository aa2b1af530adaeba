"""Contract of model groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from protofl.data.spec import KINDS, SampleSpec
from protofl.errors import NotReplayable, UsageError
from protofl.federation.clients.step_trace import StepTrace, Waits
from protofl.federation.plan.run_data import kinds_of
from protofl.federation.plan.task_checks import tasks_of
from protofl.hooks.models.architecture import Architecture, SplitModel, unset_model
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.system.randomness import global_stream
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, refusal, skip
from protofl.testing.toy_plugins import Prototypes, Weights

CLASSES = 5


class ModelGroupContract(Contract):
    """The checks of a model group.

    Attributes:
        sides: Sides of images in pixels; those below the group's ``min_side`` are brought to it by
            the runtime and left out here.
        samples: Samples of the other kinds.
        widths: Feature widths K beside the group's own; None for that.
    """

    kind = "model-group"
    sides: ClassVar[tuple[int, ...]] = (28, 32, 64)
    samples: ClassVar[tuple[SampleSpec, ...]] = (
        SampleSpec((1, 16), "series"),
        SampleSpec((3, 50), "series"),
        SampleSpec((12,), "tokens", vocabulary=30, padding=0),
        SampleSpec((40,), "tokens", vocabulary=200),
        SampleSpec((4,), "table"),
        SampleSpec((30,), "table"),
    )
    widths: ClassVar[tuple[int | None, ...]] = (None, 24)

    # --- what it has ----------------------------------------------------------------------------

    def members(self) -> list[Architecture]:
        """The clients' architectures."""
        choice = self.choice()
        architectures = choice.call("architectures")
        expect(
            isinstance(architectures, list) and bool(architectures),
            f"architectures returns {architectures!r}",
        )
        return list(architectures)

    def server_members(self) -> list[Architecture]:
        """The further architectures of a server."""
        choice = self.choice()
        return list(choice.call("server_architectures") or [])

    @property
    def width(self) -> int:
        """The group's own K."""
        return int(getattr(self.cls, "feature_dim", 512))

    @property
    def least(self) -> int:
        """The smallest side that its models see."""
        return int(getattr(self.cls, "min_side", 32))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of samples that it takes."""
        return kinds_of(self.cls)

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels of images that its models may be given."""
        declared = getattr(self.cls, "channels", None)
        return (1, 3) if declared is None else (int(declared),)

    def taken(self) -> list[SampleSpec]:
        """Samples that the group's models may get, the usual first; one image is not square."""
        if "classification" not in tasks_of(self.cls, self.kind):
            skip("its nets predict next tokens, without features and a head")
        result = [sample for sample in self.samples if sample.kind in self.kinds]
        if "image" not in self.kinds:
            return result
        sides = [side for side in self.sides if side >= self.least] or [self.least]
        images = [(c, sides[0], sides[0]) for c in self.channels]
        images += [(self.channels[-1], side, side) for side in sides[1:]]
        images.append((self.channels[-1], sides[0], 2 * sides[0]))
        return [*map(SampleSpec, images), *result]

    @property
    def usual(self) -> SampleSpec:
        """The smallest that its models may be given."""
        if "image" in self.kinds:
            return SampleSpec((self.channels[0], self.least, self.least))
        return self.taken()[0]

    # --- declarations ---------------------------------------------------------------------------

    def test_declarations(self) -> None:
        """The group's feature_dim, min_side, channels and named architectures are valid."""
        expect(self.width >= 1, f"feature_dim is {self.width}")
        expect(
            1 <= self.least <= 64, f"min_side is {self.least}; it is a number of pixels up to 64"
        )
        strange = [kind for kind in self.kinds if kind not in KINDS]
        expect(not strange, f"kinds holds {strange}; kinds are {', '.join(KINDS)}")
        expect(bool(self.kinds), "kinds is empty; it names what samples its models take")
        channels = getattr(self.cls, "channels", None)
        expect(
            channels in (None, 1, 3),
            f"channels is {channels!r}; it is 1, 3, or None for the data's own",
        )
        names = [a.name for a in (*self.server_members(), *self.members())]
        for key in ("server_architecture", "auxiliary_architecture"):
            named = getattr(self.cls, key, None)
            known = named is None or named in names
            expect(known, f"{key} {named!r} is none of {', '.join(names)}")

    def test_architectures(self) -> None:
        """The group's architectures have different names, and distinguishable heads."""
        members = self.members()
        for group in (members, self.server_members()):
            for member in group:
                expect(
                    isinstance(member, Architecture), f"{member!r} is not a pf.models.Architecture"
                )
            names = [a.name for a in group]
            twice = sorted({n for n in names if names.count(n) > 1})
            expect(not twice, f"two architectures are named {', '.join(twice)}")
        expect(
            [a.name for a in self.members()] == [a.name for a in members],
            "a second call returns other architectures, or another order",
        )
        shapes: dict[str, Any] = {}
        for member in members:
            head = self._unset(member).head.state_dict()
            shape = {name: tuple(t.shape) for name, t in head.items()}
            other = shapes.setdefault(member.head, shape)
            expect(other == shape, f"{member.name}: a head of other shapes is called {member.head}")

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The group keeps nothing on self."""
        choice = self.choice()
        choice.call("architectures")
        held = vars(choice.instance)
        expect(not held, f"self holds {', '.join(held)}")

    # --- shapes ---------------------------------------------------------------------------------

    def test_feature_width_and_scores(self) -> None:
        """Features are B×K and scores B×C, for every sample and width that it may get."""
        if "image" in self.kinds:
            left_out = [str(side) for side in self.sides if side < self.least]
            if left_out:
                self.remarks.append(
                    f"{', '.join(left_out)} px: brought to {self.least} px by the runtime"
                )
            if len(self.channels) == 1:
                self.remarks.append(f"{self.channels[0]} channels only, as it declares")
        samples = self.taken()
        for member in (*self.members(), *self.server_members()):
            for sample in samples:
                for width in self.widths if sample == samples[0] else (None,):
                    self._check_shapes(member, sample, width or self.width)

    def _check_shapes(self, member: Architecture, sample: SampleSpec, K: int) -> None:
        try:
            model = self._unset(member, sample, K).eval()
        except UsageError as error:
            if sample.kind == "image" and sample.shape[1] != sample.shape[2]:
                self.remarks.append(f"{member.name} takes square images only: {refusal(error)}")
                return
            if K != self.width:  # a net may be bound to some widths
                self.remarks.append(f"{member.name} refuses K={K}: {refusal(error)}")
                return
            raise
        place = f"{member.name} with {sample} and K={K}"
        with torch.no_grad():
            features = model.features(sample.zeros(2))
            scores = model.head(torch.zeros(2, K))
        expect(features.shape == (2, K), f"{place}: features {tuple(features.shape)}")
        expect(scores.shape == (2, CLASSES), f"{place}: scores {tuple(scores.shape)}")

    def _unset(
        self, member: Architecture, sample: SampleSpec | None = None, K: int = 0
    ) -> SplitModel:
        """A model with unset weights; quick to build."""
        made = unset_model(member, sample or self.usual, CLASSES, K or self.width)
        expect(isinstance(made, SplitModel), f"{member.name} builds no pf.models.SplitModel")
        return made

    # --- training -------------------------------------------------------------------------------

    def test_gradients(self) -> None:
        """A gradient reaches every parameter but those that the group declares, and is finite."""
        declared: dict[str, Sequence[str]] = getattr(self.cls, "untrained", {})
        for member in self.members():
            idle = {*declared.get(member.name, ())}
            model = self._drawn(member, 0).train()
            unknown = idle - {name for name, _ in model.named_parameters()}
            expect(not unknown, f"{member.name}: untrained names no parameter: {unknown}")
            x, target = toy.random_batch(self.usual, 4), torch.arange(4) % CLASSES
            gradients = _step(model, x, target)
            for (name, parameter), gradient in zip(
                model.named_parameters(), gradients, strict=True
            ):
                expect(gradient is not None, f"{member.name}: no gradient reaches {name}")
                assert gradient is not None
                expect(bool(gradient.isfinite().all()), f"{member.name}: gradient of {name} is NaN")
                if name in idle:
                    expect(
                        not gradient.any(),
                        f"{member.name}: {name} is declared untrained, and has a gradient",
                    )
                    continue
                expect(  # a bias before BatchNorm gets none, nor a unit that ReLU has shut
                    bool(gradient.any()) or parameter.dim() <= 1,
                    f"{member.name}: the gradient of {name} is zero",
                )

    def test_recorded_steps_can_be_replayed(self) -> None:
        """A recorded step computes what the code does, so that engines can replay it."""
        for member in self.members():
            model = self._drawn(member, 0).train()
            x, target = toy.random_batch(self.usual, 4), torch.arange(4) % CLASSES
            step = partial(_step, model, x, target)
            memory = [x, target, *model.parameters(), *model.buffers()]
            step()
            trace = StepTrace(step, memory)
            try:
                trace()
                trace()
            except NotReplayable as error:
                raise AssertionError(f"{member.name}: {refusal(error)}") from error
            except Waits as error:
                self.remarks.append(f"{member.name} is trained by eager: {error}")

    def test_initial_weights(self) -> None:
        """Weights are drawn from torch's global generator, which the runtime seeds, alone."""
        for member in self.members():
            first, again, other = (self._drawn(member, seed).state_dict() for seed in (0, 0, 1))
            expect(toy.same(first, again), f"{member.name}: one seed gives two sets of weights")
            expect(not toy.same(first, other), f"{member.name}: two seeds give the same weights")
            bad = [n for n, t in first.items() if t.is_floating_point() and not t.isfinite().all()]
            expect(not bad, f"{member.name}: {', '.join(bad)} is not finite at the start")

    def _drawn(self, member: Architecture, seed: int) -> SplitModel:
        with global_stream(seed, "contract", member.name):
            return member.build(self.usual, CLASSES, self.width)

    def test_samples_are_scored_alone(self) -> None:
        """The scores of a sample do not depend on the others of its batch in evaluation."""
        for member in self.members():
            model = self._drawn(member, 0).eval()
            x = toy.random_batch(self.usual, 3)
            with torch.no_grad():
                whole, single = model(x), torch.cat([model(sample[None]) for sample in x])
            apart = float((whole - single).abs().max() / whole.abs().max().clamp(min=1e-6))
            expect(
                apart < 1e-3, f"{member.name}: scores differ by {apart:.0e} alone and in a batch"
            )

    def test_it_runs(self) -> None:
        """Two clients train with it, exchange prototypes or weights, and are evaluated."""
        data = toy.make_data(self._in_runs(), toy.MIXED)
        options = {"models": self.chosen} if self.chosen else {}
        methods = [Prototypes] + [Weights] * (len(self.members()) == 1)
        for method in methods:
            plan = toy.make_plan(
                "toy",
                self.folder,
                data,
                extra={("method", "toy"): method, **self.extra},
                models=self.text,
                options=options,
                block=self.block,
            )
            dry_run(plan)

    def _in_runs(self) -> SampleSpec:
        if "image" in self.kinds:
            side = max(self.least, toy.SIDE)
            return SampleSpec((toy.CHANNELS, side, side))
        return self.usual


def _step(model: SplitModel, x: Tensor, target: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the cross-entropy."""
    loss = nn.functional.cross_entropy(model(x), target)
    return torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
