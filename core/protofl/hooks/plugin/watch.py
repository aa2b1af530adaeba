"""Who carries out the calls of hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protofl.hooks.plugin.loss import LossSource


class Watch:
    """Carries out the calls of hooks; the dry step's looks at what they do."""

    def call(
        self, method: str, hook: str, arguments: Mapping[str, Any], do: Callable[[], Any]
    ) -> Any:  # noqa: ANN401 - as the hook says
        """Carry out the call of a method's hook, whose views are bound to the method."""
        return do()

    def loss(self, source: LossSource) -> LossSource:
        """The loss of a method on a client, as it is to be called."""
        return source
