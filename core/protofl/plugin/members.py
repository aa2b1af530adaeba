"""Who takes part in a run: the main method, donors and wrappers, with what each declares."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from protofl.discovery.registry import Registry
from protofl.errors import UsageError
from protofl.gate.returned import expect_returned
from protofl.options.declared import Config, parse_config
from protofl.plugin.baseline import Baseline
from protofl.plugin.choice import Choice
from protofl.plugin.loss import LossSource, checked
from protofl.views.client import Client
from protofl.views.run import RunInfo

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
