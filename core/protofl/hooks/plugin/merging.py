"""Hooks of several methods, whose results are merged, and of transforms around them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from protofl.errors import SentTwice, error_context
from protofl.hooks.hookspecs import hookimpl
from protofl.hooks.transport.return_values import expect_returned
from protofl.hooks.views.client import Client
from protofl.hooks.views.server import Server
from protofl.hooks.wire.payload import Payload, Uploads, class_indexed

SHARED = ("classes", "samples", "counts")
"""Names about the sender, which several methods may send if the tensors are equal."""


def merge_payloads(parts: Mapping[str, Mapping[str, Tensor]]) -> Payload:
    """Merge the tensors of several methods key by key.

    If ``classes`` differ from an earlier method's, the rows' classes become ``NAME.classes``.

    Args:
        parts: {method: the tensors of its hook}, in the order of ``--add``.

    Raises:
        SentTwice: Two methods send different tensors under the same name.
    """
    result, owners = Payload(), dict[str, str]()
    for owner, tensors in parts.items():
        for name, tensor in _beside(result, tensors).items():
            same = name in SHARED and name in result and _equal(result[name], tensor)
            if name in result and not same:
                raise SentTwice(name, owners[name], owner)
            result[name], owners[name] = tensor, owner
    return result


def _beside(merged: Payload, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Rename ``classes`` to ``NAME.classes``, if they differ from the merged ones."""
    classes = tensors.get("classes")
    if classes is None or "classes" not in merged or _equal(merged["classes"], classes):
        return tensors
    others = {name: tensor for name, tensor in tensors.items() if name != "classes"}
    rows = [name for name, tensor in others.items() if class_indexed(name, tensor, classes)]
    return {f"{name}.classes": classes for name in rows} | others


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


Call = Callable[..., Any]
"""Calls a plugin's hook by its name, with the hook's arguments."""


class HookWrapper:
    """A transform: its hooks see a client or server that is bound to it.

    Args:
        name: The transform, for errors; for the innermost the methods inside it.
        call: Calls the transform's hooks; by default what is inside is only checked.
    """

    def __init__(self, name: str, call: Call | None = None) -> None:
        self._name, self._call = name, call or _inside

    @hookimpl(wrapper=True)
    def upload_payload(self, client: Client) -> Generator[None, Any, Any]:
        """Call the transform's hook."""
        return (yield from self._checked("upload_payload", client=client))

    @hookimpl(wrapper=True)
    def download_payload(self, server: Server, client_id: int) -> Generator[None, Any, Any]:
        """Call the transform's hook."""
        return (yield from self._checked("download_payload", server=server, client_id=client_id))

    def _checked(self, hook: str, **arguments: Any) -> Generator[None, Any, Any]:  # noqa: ANN401
        result = yield from self._call(hook, **arguments)
        expect_returned(hook, self._name, result, arguments)
        return result


def _inside(hook: str, **arguments: Any) -> Generator[None, Any, Any]:  # noqa: ANN401
    return (yield)


class MergedProviders:
    """Several methods that provide a hook; their results are merged.

    Args:
        calls: {method: a function that calls its hooks}, in the order of ``--add``.
    """

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls

    def _merged(self, hook: str, **arguments: Any) -> Payload:  # noqa: ANN401 - as the hook says
        parts = {}
        for method, call in self._calls.items():
            with error_context(f"{hook} of {method}"):
                parts[method] = call(hook, **arguments)
        return merge_payloads(parts)

    @hookimpl
    def upload_payload(self, client: Client) -> Payload:
        """Merge the payloads of all methods."""
        return self._merged("upload_payload", client=client)

    @hookimpl
    def download_payload(self, server: Server, client_id: int) -> Payload:
        """Merge the payloads of all methods."""
        return self._merged("download_payload", server=server, client_id=client_id)

    @hookimpl
    def server_aggregate(self, server: Server, uploads: Uploads) -> Payload:
        """Merge the changes of all methods."""
        return self._merged("server_aggregate", server=server, uploads=uploads)

    @hookimpl
    def server_train(self, server: Server, uploads: Uploads) -> Payload:
        """Merge the changes of all methods."""
        return self._merged("server_train", server=server, uploads=uploads)
