"""The loss of local training: `local_loss` of all methods of a run, frozen to plain callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from protofl.errors import RunFailure
from protofl.views.client import Batch, Client, Output

Draws = dict[str, dict[str, Tensor]]
"""What each method drew for one step, {method: {name: tensor}}."""


@dataclass(frozen=True)
class LossSource:
    """One method's `local_loss` on one client.

    Attributes:
        method: The method's name.
        function: Its `local_loss`, or the baseline's.
        arguments: The arguments that it takes.
        client: The client as the method sees it.
        labels: {term: label} of the terms that take part in the sum.
        declared: All terms that the method declares.
        draws: What its `before_training` drew, with a leading axis over steps.
    """

    method: str
    function: Callable[..., Mapping[str, Tensor] | None]
    arguments: list[str]
    client: Client
    labels: dict[str, str]
    declared: set[str]
    draws: Mapping[str, Tensor]


class Loss:
    """The named terms of a client's loss, as plain callables."""

    def __init__(self, sources: list[LossSource]) -> None:
        self._sources = sources

    def __call__(self, batch: Batch, output: Output, step: int) -> dict[str, Tensor]:
        """The terms of one batch that take part in the sum, by their labels."""
        return self.terms(batch, output, self.draws(step))

    @property
    def kind(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What tells losses of different composition apart: methods and labels."""
        return tuple((s.method, tuple(s.labels.values())) for s in self._sources)

    def draws(self, step: int) -> Draws:
        """What each method drew for a step; methods without draws are left out."""
        drawn = [s for s in self._sources if s.draws]
        return {s.method: {k: v[step] for k, v in s.draws.items()} for s in drawn}

    def seen_by(self, view: Callable[[str], Client]) -> Loss:
        """The same terms on another client, to be called with draws given.

        Args:
            view: Gives the client bound to a method.
        """
        return Loss([replace(s, client=view(s.method), draws={}) for s in self._sources])

    def terms(self, batch: Batch, output: Output, draws: Draws) -> dict[str, Tensor]:
        """The terms of one batch with the step's draws given.

        Raises:
            RunFailure: A hook returned nothing or a term that it does not declare, or there is
                no term at all.
        """
        terms: dict[str, Tensor] = {}
        for source in self._sources:
            seen = batch
            if source.method in draws:
                seen = replace(batch, draws=draws[source.method])
            given = {"client": source.client, "batch": seen, "output": output}
            found = source.function(*(given[a] for a in source.arguments))
            if found is None:
                raise RunFailure(f"{source.method}.local_loss returned nothing")
            if not found.keys() <= source.declared:
                extra = sorted(found.keys() - source.declared)[0]
                raise RunFailure(
                    f"{source.method}.local_loss returned the undeclared term {extra!r}",
                    f"declared: {', '.join(sorted(source.declared))}",
                    "add it to the method's terms",
                )
            for name, value in found.items():
                if name in source.labels:
                    terms[source.labels[name]] = value
        if not terms:
            raise RunFailure(
                "no loss term came into being", do="drop fewer terms: one must be there in round 0"
            )
        return terms
