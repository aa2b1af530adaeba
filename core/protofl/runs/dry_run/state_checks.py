"""Checks of what hooks write and read: plugins, state, and missing keys of downloads."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from protofl.errors import RunFailure, UsageError
from protofl.federation.jobs.jobs import Evaluate, Job, Train
from protofl.hooks.plugin.members import Member
from protofl.hooks.transport.return_values import description
from protofl.hooks.wire.payload import Payload
from protofl.system.files.tensors import TYPES, pack_state

_PLAIN = (str, bytes, bool, int, float, complex, type(None))


class _Itself:
    """A wrapper that equals only wrappers of the same object, and keeps that object alive."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._thing is other._thing

    __hash__ = None  # type: ignore[assignment]


def as_it_is(value: Any) -> Any:  # noqa: ANN401 - nested values
    """Return a snapshot of a nested value: equal to a later one if nothing was added or changed.

    Tensors are compared by identity and by how often they were written to, so nothing is copied
    and no device is waited for.
    """
    if isinstance(value, _PLAIN):
        return value if value == value else "nan"
    if isinstance(value, Tensor):
        return _Itself(value), value._version
    if isinstance(value, np.ndarray):
        return _Itself(value), hash(value.tobytes()) if value.dtype != object else 0
    if isinstance(value, Mapping):
        return {key: as_it_is(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_it_is(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return _Itself(value), len(value)
    return _Itself(value)


def weights_as_they_are(modules: Iterable[nn.Module]) -> Any:  # noqa: ANN401 - nested values
    """Return a snapshot of the weights and buffers of modules."""
    return [as_it_is([*module.parameters(), *module.buffers()]) for module in modules]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names whose values differ, in order."""
    names = dict.fromkeys([*before, *after])
    return [n for n in names if n not in before or n not in after or before[n] != after[n]]


class PluginState:
    """Attributes of plugins and of their classes, which hooks may not write.

    Raises:
        UsageError: A plugin holds a module or parameter after ``__init__``.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = [*members]
        self._before = self._now()
        for member in self._members:
            for name, value in getattr(member.instance, "__dict__", {}).items():
                if isinstance(value, (nn.Module, nn.Parameter)):
                    raise UsageError(
                        f"{member.name}.__init__ puts {description(value)} on self.{name}",
                        "it is not trained or saved, and all clients share it",
                        f"write client.add_module({name!r}, module) in setup_client, on the server "
                        f"server.modules[{name!r}] = module in setup_server",
                    )

    def written(self, who: str) -> str:
        """Return what was written since the last call, and by whom; empty for nothing.

        Args:
            who: The hook that was called, ``METHOD.HOOK``.
        """
        before, self._before = self._before, self._now()
        names = changed(before, self._before)
        if not names:
            return ""
        owner, _, name = names[0].partition("/")
        return f"{who if who.partition('.')[0] == owner else f'a hook of {owner}'} writes {name}"

    def _now(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for member in self._members:
            attributes = getattr(member.instance, "__dict__", {})
            owner = member.name
            result |= {
                f"{owner}/self.{name}": as_it_is(value) for name, value in attributes.items()
            }
            for cls in type(member.instance).__mro__[:-1]:
                for name, value in vars(cls).items():
                    if not (name.startswith("__") or inspect.isroutine(value)):
                        result[f"{owner}/{cls.__name__}.{name}"] = as_it_is(value)
        return result


def expect_state(state: Mapping[str, Any], side: str, who: str) -> None:
    """Check that state can be stored in a checkpoint, and holds no graph.

    Args:
        state: What a method remembers.
        side: ``client`` or ``server``.
        who: The hook that was called last, ``METHOD.HOOK``.

    Raises:
        RunFailure: It is not.
    """
    for name, value in state.items():
        place, tensors = f"{side}.state[{name!r}]", dict[str, Tensor]()
        try:
            pack_state({name: value}, tensors, f"{side}.state")
        except RunFailure as error:
            near = "state is written into checkpoints and moves between processes"
            raise RunFailure(f"{who}: {error.what}", near, error.do) from None
        for tensor in tensors.values():
            if isinstance(tensor, nn.Parameter):
                near = "a tensor of state is read back as a plain one"
                do = f"{side}.add_module(…)" if side == "client" else "server.modules[…] = module"
                raise RunFailure(f"{who} leaves a parameter in {place}", near, f"use {do}")
            if tensor.requires_grad:
                raise RunFailure(
                    f"{who} leaves a tensor with its graph in {place}, {list(tensor.shape)}",
                    "it would keep all of the step's activations, and is no longer there after "
                    "an interruption",
                    f"write {place} = tensor.detach()",
                )
            if tensor.dtype not in TYPES or tensor.layout is not torch.strided:
                what = f"{who} leaves {tensor.dtype}, {tensor.layout} in {place}"
                raise RunFailure(what, "a checkpoint cannot hold it", "keep dense real tensors")


class WatchedPayload(Payload):
    """A download that notes missing keys."""

    holder = "the download"

    def __init__(self, tensors: Mapping[str, Tensor], missing_keys: MissingKeys) -> None:
        super().__init__(tensors)
        self._missing_keys = missing_keys

    def __missing__(self, key: str) -> Tensor:
        self._missing_keys.missed(key)
        return super().__missing__(key)

    def __contains__(self, key: object) -> bool:
        result = super().__contains__(key)
        if not result and isinstance(key, str):
            self._missing_keys.missed(key)
        return result

    def under(self, prefix: str) -> dict[str, Tensor]:
        """See `Payload.under`."""
        result = super().under(prefix)
        if not result:
            self._missing_keys.missed(f"{prefix}/*")
        return result


class MissingKeys:
    """Keys that hooks of any client looked for and that downloads do not have.

    Attributes:
        training: In the downloads of the last round's training: {key: ``METHOD.HOOK``}.
        evaluation: The same in the last evaluation of a client.
        reader: The client's hook that was called last, ``METHOD.HOOK``; empty for another's.
    """

    def __init__(self) -> None:
        self.training: dict[str, str] = {}
        self.evaluation: dict[str, str] = {}
        self.reader = ""
        self._now = self.training
        self._round = -1

    def begin(self, job: Job) -> None:
        """Note the job that a host starts."""
        if isinstance(job, Evaluate):
            self._now = self.evaluation = {}
        elif isinstance(job, Train):
            if job.round != self._round:
                self.training, self._round = {}, job.round
            self._now = self.training

    def read(self, payload: Payload) -> Payload:
        """Return a download that notes missing keys."""
        self.reader = ""  # until a hook of this client is called
        return WatchedPayload(payload, self)

    def missed(self, key: str) -> None:
        """Note a key that a hook looked for in vain."""
        self._now.setdefault(key, self.reader)
