"""The loss of local training: `local_loss` of all methods of a run, as plain callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from protofl.errors import RunFailure
from protofl.hooks.models.architecture import SplitModel
from protofl.hooks.transport.return_values import description, expect_terms
from protofl.hooks.views.batch import Batch, LossData, Output, PerStep
from protofl.hooks.views.client import Learner

NO_GRADIENT = "it was made of numbers (.item(), float(), NumPy), of argmax, or detached"
"""Why a loss term has no gradient."""

WITH_GRADIENT = "compute it of output.features or output.logits with torch, all the way"
"""Advice for a loss term without a gradient."""


@dataclass(frozen=True)
class LossSource:
    """One method's `local_loss` on one client.

    Attributes:
        method: The method's name.
        function: Its `local_loss`, or the baseline's.
        arguments: The arguments that it takes.
        learner: The client as the loss sees it.
        labels: {term: label} of the terms in the sum.
        declared: All terms that the method declares.
        constants: The return value of its `before_training`.
    """

    method: str
    function: Callable[..., Mapping[str, Tensor]]
    arguments: tuple[str, ...]
    learner: Learner
    labels: Mapping[str, str]
    declared: frozenset[str]
    constants: LossData


FACTORS = ""
"""Key of the transforms' factors in `Loss.constants`: {label: factor}. No method has this name."""


class Loss:
    """The named terms of a client's loss, as plain callables.

    Args:
        sources: The methods' losses.
        factors: {label: factor} of terms in this phase, as tensors that engines pass on with the
            constants, so that a recorded step takes the factor of its round.
    """

    def __init__(
        self, sources: list[LossSource], factors: Mapping[str, Tensor] | None = None
    ) -> None:
        self._sources = sources
        self._constants = {s.method: s.constants for s in sources}
        if factors:
            self._constants[FACTORS] = factors
        self._drawn = {
            method: constants
            for method, constants in self._constants.items()
            if any(isinstance(leaf, PerStep) for leaf in tree_leaves(constants))
        }

    def __call__(self, batch: Batch, output: Output, step: int) -> dict[str, Tensor]:
        """Return the terms of one batch in the sum, by their labels.

        Raises:
            RunFailure: A hook returned invalid terms, or no term has a gradient.
        """
        terms = self.terms(batch, output, self.constants(step))
        if torch.is_grad_enabled() and not any(term.requires_grad for term in terms.values()):
            hooks = " and ".join(f"{s.method}.local_loss" for s in self._sources)
            raise RunFailure(
                f"{hooks}: no gradient in {', '.join(map(repr, terms))}", NO_GRADIENT, WITH_GRADIENT
            )
        return terms

    @property
    def kind(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The methods and labels that identify the composition of a loss."""
        return tuple((s.method, tuple(s.labels.values())) for s in self._sources)

    def constants(self, step: int) -> dict[str, LossData]:
        """Return each method's ``constants`` in a step, {method: tree of tensors}.

        It is the same object in all steps where none of them has tensors of its own.
        """
        if not self._drawn:
            return self._constants
        rows = {
            method: tree_map_only(PerStep, lambda p: p.rows[step], constants)
            for method, constants in self._drawn.items()
        }
        return self._constants | rows

    def on(self, model: SplitModel, modules: Mapping[str, Mapping[str, nn.Module]]) -> Loss:
        """Return the same loss with another model and {method: modules}."""
        return Loss(
            [
                replace(s, learner=s.learner.on(model, modules.get(s.method, {})))
                for s in self._sources
            ],
            self._constants.get(FACTORS),
        )

    def terms(
        self, batch: Batch, output: Output, constants: Mapping[str, LossData]
    ) -> dict[str, Tensor]:
        """Return the terms of one batch, with each method's ``constants``.

        Raises:
            RunFailure: A hook returned invalid terms, or no hook returned a term.
        """
        terms: dict[str, Tensor] = {}
        for source in self._sources:
            seen = {
                "client": source.learner,
                "batch": batch,
                "output": output,
                "constants": constants[source.method],
            }
            returned = source.function(*[seen[a] for a in source.arguments])
            expect_terms(source.method, returned, source.declared)
            for name, value in returned.items():
                if name in source.labels:
                    if value.is_leaf:  # a parameter, or a constant: the step may change its memory
                        value = _copied(value, name, source)
                    terms[source.labels[name]] = value
        for label, factor in constants.get(FACTORS, {}).items():
            if label in terms:
                terms[label] = factor * terms[label]
        if not terms:
            do = "drop fewer terms: the first round needs one"
            raise RunFailure("no method returned a loss term", do=do)
        return terms


def _copied(term: Tensor, name: str, source: LossSource) -> Tensor:
    """Return a copy of a term that no operation made, with its gradient.

    Raises:
        RunFailure: The term asks for a gradient, and is not a parameter of the client.
    """
    learner = source.learner
    modules = [learner.module("model"), *learner.modules.values()]
    if term.requires_grad and not any(term is p for m in modules for p in m.parameters()):
        raise RunFailure(
            f"{source.method}.local_loss returned the term {name!r} as a new tensor with "
            "requires_grad: no gradient reaches the model",
            NO_GRADIENT,
            WITH_GRADIENT,
        )
    return term.clone()


def checked_constants(constants: object, method: str, steps: int) -> LossData:
    """Check the return value of a ``before_training``, and return it.

    Raises:
        RunFailure: The value is not a mapping, holds a type that engines can't pass on, or a
            `per_step` tensor has another number of rows than there are steps.
    """
    if constants is None:
        return {}
    hook = f"{method}.before_training"
    if not isinstance(constants, Mapping):
        do = "return a mapping, {'name': tensor}, or {}"
        raise RunFailure(f"{hook} returned {description(constants)}", do=do)
    for name, constant in constants.items():
        for leaf in tree_leaves(constant):
            if isinstance(leaf, PerStep):
                if leaf.rows.dim() == 0 or len(leaf.rows) != steps:
                    shape = list(leaf.rows.shape)
                    what = f"{hook} returned {name!r} per step in shape {shape}, for {steps} steps"
                    raise RunFailure(what, do="its leading axis has client.steps entries")
            elif not (leaf is None or isinstance(leaf, (Tensor, bool, int, float, str))):
                raise RunFailure(
                    f"{hook} returned {name!r} as {description(leaf)}",
                    do="return tensors, numbers and strings, in mappings, lists and tuples; "
                    "modules go to client.add_module",
                )
    return constants


def on_device(constants: LossData, device: torch.device) -> LossData:
    """Return the same tree with all of its tensors on a device.

    A CPU tensor without dimensions works in most operations on a GPU, but a recorded step keeps
    its value, and clients' tensors cannot be stacked.
    """
    if not constants:
        return constants

    def move(value: Tensor | PerStep) -> Tensor | PerStep:
        return value.to(device) if isinstance(value, Tensor) else PerStep(value.rows.to(device))

    moved: LossData = tree_map_only((Tensor, PerStep), move, constants)
    return moved


class Watch:
    """Calls hooks; the dry run's watch also checks what they do."""

    def call(
        self, method: str, hook: str, arguments: Mapping[str, Any], do: Callable[[], Any]
    ) -> Any:  # noqa: ANN401 - as the hook says
        """Call a method's hook."""
        return do()

    def loss(self, source: LossSource) -> LossSource:
        """Return the loss of a method on a client, as engines call it."""
        return source

    def options(self, configs: Mapping[str, Any]) -> dict[str, Any]:
        """Return {method: its options}, as hooks see them."""
        return dict(configs)
