"""Members of a composition: the main method, donors and wrappers; the loss terms of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protofl.errors import UsageError, unknown
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.gate.returned import expect_returned
from protofl.hooks.plugin.baseline import Baseline
from protofl.hooks.plugin.choice import Choice
from protofl.hooks.plugin.loss import LossSource, checked
from protofl.hooks.views.client import Client
from protofl.hooks.views.run import Phase, RunInfo
from protofl.system.options.declared import Config, parse_config

_VIEWS = ("client", "server")


class Member(Choice):
    """A method or a wrapper of the composition."""

    def __init__(self, registry: Registry, kind: str, name: str, options: dict[str, Any]) -> None:
        plugin = registry.load(kind, name)
        config = parse_config(getattr(plugin, "Config", Config), options, name)
        super().__init__(kind, name, plugin, config)

    def call(self, hook: str, **given: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call a hook; the client or the server that it is given is bound to this plugin."""
        found = super().call(hook, **bound_to(self.name, given))
        if self.kind == "method":
            expect_returned(hook, self.name, found, given)
        return found

    @property
    def terms(self) -> dict[str, str]:
        """The loss terms that it declares; the baseline's where it writes no loss."""
        if "local_loss" not in self.hooks:
            return Baseline.terms
        declared = getattr(self.instance, "terms", None)
        if not declared:
            raise UsageError(
                f"method/{self.name} has a local_loss and declares no terms",
                do="write: terms = {'ce': 'what it is', …}",
            )
        return dict(declared)

    def resolve(self, run: RunInfo) -> None:
        """Fill in its options whose default depends on the run."""
        changes = self.call("resolve", run=run)
        if changes:
            values = self.config.model_dump(exclude_unset=False) | changes
            self.config = parse_config(type(self.config), values, self.name)

    def loss(self, client: Client, labels: Mapping[str, str], given: object) -> LossSource:
        """Its loss on a client.

        Args:
            client: The client, bound to any method.
            labels: {term: label} of the terms that take part in the sum.
            given: What its ``before_training`` returned.
        """
        own = "local_loss" in self.hooks
        function = self.instance.local_loss if own else Baseline().local_loss
        return LossSource(
            self.name,
            function,
            tuple(inspect.signature(function).parameters),
            client.bound_to(self.name).learner(),
            labels,
            frozenset(self.terms),
            checked(given, self.name, client.steps),
        )


def bound_to(owner: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A hook's arguments, the client or the server among them bound to a plugin."""
    return {k: v.bound_to(owner) if k in _VIEWS else v for k, v in arguments.items()}


# --- loss terms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """A loss term of the run.

    Attributes:
        method: Whose it is.
        name: Its name there.
        label: The name under which it is recorded: ``METHOD.TERM`` for a donor's.
    """

    method: str
    name: str
    label: str

    def is_trained(self, phase: Phase) -> bool:
        """Whether a phase trains it; a donor knows no phases, so its are for private data."""
        if self.label != self.name:
            return phase.data == "private"
        return not phase.terms or self.name in phase.terms


def chosen_terms(
    main: str, source: str, join: Callable[[str], Member], add: Iterable[str], drop: Iterable[str]
) -> list[Term]:
    """The terms that are summed.

    Args:
        main: The main method.
        source: The method whose loss it is.
        join: Has a method take part.
        add: Terms ``METHOD.TERM`` to add.
        drop: Terms ``TERM`` or ``METHOD.TERM`` to leave out.

    Raises:
        UsageError: One is unknown, added twice, or dropped and not there; or none is left.
    """

    def term(method: str, name: str) -> Term:
        return Term(method, name, name if method == main else f"{method}.{name}")

    terms = [term(source, name) for name in join(source).terms]
    for text in add:
        method, _, name = text.partition(".")
        if not name:
            raise UsageError(f"--add local_loss={text}: no term", do="write METHOD.TERM")
        declared = join(method).terms
        if name not in declared:
            raise unknown(f"loss term of {method}", name, declared)
        if term(method, name) in terms:
            raise UsageError(f"--add local_loss={text}: the composition holds it already")
        terms.append(term(method, name))
    for text in drop:
        found = [t for t in terms if text in (t.label, f"{t.method}.{t.name}")]
        if not found:
            labels = [t.label for t in terms]
            raise unknown("loss term", text, labels, "--drop takes a term that is there")
        terms.remove(found[0])
    if not terms:
        raise UsageError("no loss term is left", do="drop fewer terms")
    return terms
