"""Several plugins around one hook, as pluggy calls them: wrappers, and methods that share it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from protofl.errors import naming
from protofl.hookspecs.markers import hookimpl
from protofl.transit.merging import merged
from protofl.views.client import Client
from protofl.views.server import Server
from protofl.wire.payload import Payload, Uploads

Call = Callable[..., Any]
"""Calls a plugin's hook by its name, with the hook's arguments."""


class Around:
    """A wrapper: its hooks see the client or the server bound to it."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @hookimpl(wrapper=True)
    def upload_payload(self, client: Client) -> Generator[None, Any, Any]:
        """The wrapper's."""
        return (yield from self._call("upload_payload", client=client))

    @hookimpl(wrapper=True)
    def download_payload(self, server: Server, client_id: int) -> Generator[None, Any, Any]:
        """The wrapper's."""
        return (yield from self._call("download_payload", server=server, client_id=client_id))


class Together:
    """Methods that provide a hook together: what they return is merged.

    Args:
        calls: {method: what calls its hooks}, in the order in which they are asked.
    """

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls

    def _merged(self, hook: str, **arguments: Any) -> Payload:  # noqa: ANN401 - as the hook says
        parts = {}
        for method, call in self._calls.items():
            with naming(f"{hook} of {method}"):
                parts[method] = call(hook, **arguments)
        return merged(parts)

    @hookimpl
    def upload_payload(self, client: Client) -> Payload:
        """What each sends."""
        return self._merged("upload_payload", client=client)

    @hookimpl
    def download_payload(self, server: Server, client_id: int) -> Payload:
        """What each sends."""
        return self._merged("download_payload", server=server, client_id=client_id)

    @hookimpl
    def server_aggregate(self, server: Server, uploads: Uploads) -> Payload:
        """What each changes."""
        return self._merged("server_aggregate", server=server, uploads=uploads)

    @hookimpl
    def server_train(self, server: Server, uploads: Uploads) -> Payload:
        """What each changes."""
        return self._merged("server_train", server=server, uploads=uploads)
