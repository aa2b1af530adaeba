"""What is kept between runs: hosts that wait for the next one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol


class Closable(Protocol):
    """What can be ended."""

    def close(self) -> None:
        """End it."""
        ...


class Idle:
    """Hosts that a run has left and another one may begin with.

    A backend looks for one that is as it would start it (`take`), and leaves those that are whole
    when a run has ended (`put`).
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Hashable, Any]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Hashable, host: Closable) -> None:
        """Leave a host.

        Args:
            key: All that it was started with; one that asks for the same may have it.
            host: The host.
        """
        self._waiting.append((key, host))

    def take(self, key: Hashable, fits: Callable[[Any], bool] = lambda host: True) -> Any:  # noqa: ANN401
        """A host that was left under the key and fits, from now on the caller's; None if none."""
        for place, (own, host) in enumerate(self._waiting):
            if own == key and fits(host):
                del self._waiting[place]
                return host
        return None

    def close(self) -> None:
        """End all that wait."""
        while self._waiting:
            self._waiting.pop()[1].close()
