"""Hooks and options without an effect: the dry run sees what hooks read, write and replace.

``server_train`` runs right after ``server_aggregate``. If another method trains on the server, it
may replace all that the aggregation returned, so that a part of the main method is switched off.
Nothing is wrong with such a mix, but its user should know.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

from torch import Tensor

from protofl.errors import ProtoflError
from protofl.federation.plan.plan import Plan
from protofl.hooks.plugin.members import Member
from protofl.hooks.transport.return_values import BEFORE
from protofl.hooks.views.server import Server
from protofl.hooks.views.server_state import ServerState
from protofl.hooks.wire.payload import GlobalState, Payload
from protofl.runs.dry_run.state_checks import as_it_is, changed, weights_as_they_are
from protofl.system.options.plugin_options import Config, option_names

FIRST, SECOND = "server_aggregate", "server_train"
"""Hooks whose results are merged into the global state one right after the other."""


class _ReadState(dict[str, Any]):
    """State of a method on the server that notes which hook reads and writes a key."""

    def __init__(self, values: Mapping[str, Any], owner: str, checks: EffectChecks) -> None:
        super().__init__(values)
        self._owner, self._checks = owner, checks

    def _read(self, key: object) -> None:
        self._checks.reads_state(self._owner, key)

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - whatever a method keeps
        self._read(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._read(key)
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self._read(key)
            yield key

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401
        self._read(key)
        return super().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:  # noqa: ANN401
        self._read(key)
        return super().setdefault(key, default)

    def pop(self, key: str, *default: Any) -> Any:  # noqa: ANN401
        self._read(key)
        return super().pop(key, *default)

    def items(self) -> Any:  # noqa: ANN401 - a view of a dict
        [*map(self._read, self.keys())]
        return super().items()

    def values(self) -> Any:  # noqa: ANN401 - a view of a dict
        [*map(self._read, self.keys())]
        return super().values()


class _ReadGlobalState(GlobalState):
    """The server's global state during a hook; notes the names of the tensors that it reads."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Tensor:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401
        self.read.add(key)
        return super().get(key, default)

    def items(self) -> Any:  # noqa: ANN401 - a view of a dict
        self.read.update(self.keys())
        return super().items()

    def values(self) -> Any:  # noqa: ANN401 - a view of a dict
        self.read.update(self.keys())
        return super().values()

    def __iter__(self) -> Iterator[str]:  # without it, {**global_state} would not call __getitem__
        return super().__iter__()

    def select(self, *names: str) -> Payload:
        """See `Payload.select`."""
        result = Payload(dict(super().items())).select(*names)
        self.read.update(result.keys())
        return result

    def under(self, prefix: str) -> dict[str, Tensor]:
        """See `Payload.under`."""
        self.read.update(key for key in self.keys() if key.startswith(prefix + "/"))
        return Payload(dict(super().items())).under(prefix)


def _names(update: Mapping[str, Tensor]) -> set[str]:
    """Return the names of tensors, but for those that say whose rows others have."""
    return {name for name in update or () if name != "classes" and not name.endswith(".classes")}


class EffectChecks:
    """Finds hooks and options of a composition that change nothing."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._composition = plan, plan.composition
        self._hook = ""  # the hook that runs now
        self._options: dict[str, dict[str, set[str]]] = {}  # {method: {hook: options it reads}}
        self._state: dict[str, set[str]] = {}  # {METHOD/KEY: hooks that read it}
        self._made: set[str] = set()
        self._replaced: set[str] = set()
        self._written: set[str] = set()

    # --- what hooks read and write ----------------------------------------------------------------

    def options(self, configs: Mapping[str, Config]) -> dict[str, Config]:
        """Return {method: its options}, which note what hooks read of them."""
        return {name: self._noted(name, config) for name, config in configs.items()}

    def _noted(self, owner: str, config: Config) -> Config:
        kind, fields, reads = type(config), {*type(config).model_fields}, self._reads_option

        def read(self: Config, name: str) -> Any:  # noqa: ANN401 - an option
            if name in fields:
                reads(owner, name)
            return super(kind, self).__getattribute__(name)

        # The class stays a subclass of the method's own, so isinstance and its methods work.
        named = {"__getattribute__": read, "__module__": kind.__module__}
        twin = config.model_copy()
        object.__setattr__(twin, "__class__", type(kind.__name__, (kind,), named))
        return twin

    def _reads_option(self, owner: str, name: str) -> None:
        if self._hook:
            self._options.setdefault(owner, {}).setdefault(self._hook, set()).add(name)

    def reads_state(self, owner: str, key: object) -> None:
        """Note that the hook that runs now reads a key of a method's state on the server."""
        if self._hook:
            self._state.setdefault(f"{owner}/{key}", set()).add(self._hook)

    def call(self, hook: str, server: Server | None, do: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a hook and note what it reads, writes and returns."""
        server_state = None if server is None else server._state
        before = self._on_server(server_state) if server_state and hook == FIRST else {}
        outer, self._hook = self._hook, hook
        try:
            if server_state is None or hook != SECOND:
                result = do()
            else:  # a hook only reads the global state, so it may see a copy
                known, read = server_state.global_state, _ReadGlobalState(server_state.global_state)
                server_state.global_state = read
                try:
                    result = do()
                finally:
                    server_state.global_state = known
                self._replaced = self._made & _names(result) - read.read
        finally:
            self._hook = outer
        if server_state and hook == FIRST:
            self._made, self._replaced = _names(result), set()
            self._written |= {*changed(before, self._on_server(server_state))}
        return result

    def _on_server(self, server_state: ServerState) -> dict[str, Any]:
        """Return a snapshot of the methods' state and modules on the server."""
        result: dict[str, Any] = {}
        for owner in self._composition.members:
            state = server_state.state.get(owner, {})
            if not isinstance(state, _ReadState):
                server_state.state[owner] = state = _ReadState(state, owner, self)
            result |= {f"{owner}/{key}": as_it_is(value) for key, value in dict.items(state)}
            modules = server_state.modules.get(owner, {})
            result[f"{owner}, modules"] = [*modules], weights_as_they_are(modules.values())
        return result

    # --- what follows -----------------------------------------------------------------------------

    def notes(self) -> Iterator[tuple[str, str]]:
        """Yield {name: line} of what has no effect, after both rounds."""
        if self._replaced:
            yield "replaced", self._replacement()
        if len(self._composition.methods) > 1:
            for member in self._composition.methods:
                if unread := self._unread(member):
                    names = ", ".join(f"{member.name}.{name}" for name in unread)
                    verb = "are" if len(unread) > 1 else "is"
                    line = f"{names} {verb} set, and no hook of this mix reads "
                    line += "them" if len(unread) > 1 else "it"
                    yield f"unread options of {member.name}", line

    def _replacement(self) -> str:
        """Return the note about an aggregation that training on the server replaces."""
        composition = self._composition
        first, second = (" and ".join(composition.makers(hook)) for hook in (FIRST, SECOND))
        keys = ", ".join(map(repr, sorted(self._replaced)))
        line = f"{SECOND} of {second} replaces {keys} of {FIRST} of {first}, and nothing reads "
        line += "it in between" if len(self._replaced) == 1 else "them in between"
        others = {hook for key in self._written for hook in self._state.get(key, {FIRST})} - {FIRST}
        trained = any(key.endswith(", modules") for key in self._written)
        if self._made > self._replaced or others or trained or FIRST in composition.beside:
            return line
        line += f": {FIRST} of {first} has no effect"
        options = self._only_in(first, FIRST)
        if options:
            phrase = "nor have its options" if len(options) > 1 else "nor has its option"
            line += f", {phrase} {', '.join(options)}"
        return line

    def _unread(self, member: Member) -> list[str]:
        """Return options of a method that were set and that no hook has read."""
        usual = Member(self._plan.registry, member.kind, member.name, {})
        try:
            usual.resolve(self._plan.info)
        except ProtoflError:  # the method needs the options that were set
            return []
        now, then = member.config, usual.config
        read = {**self._options.get(member.name, {}), **self._outside(member.name)}
        known: set[str] = set().union(*read.values(), {"variant"})
        if getattr(now, "variant", "") != getattr(then, "variant", ""):
            known |= {*getattr(now, "deviations", ())}  # the variant sets them
        return [
            name
            for name, field in option_names(type(now)).items()
            if field not in known and getattr(now, field) != getattr(then, field)
        ]

    def _only_in(self, owner: str, hook: str) -> list[str]:
        """Return the options that one hook of a method reads, and no other."""
        read = {**self._options.get(owner, {}), **self._outside(owner)}
        others: set[str] = set().union(*(names for h, names in read.items() if h != hook))
        kind = type(self._composition.members[owner].config)
        return [
            n for n, field in option_names(kind).items() if field in read.get(hook, set()) - others
        ]

    def _outside(self, owner: str) -> dict[str, set[str]]:
        """Return {hook: options} of hooks that take ``config`` or that run before the round."""
        member, result = self._composition.members[owner], dict[str, set[str]]()
        for hook in member.hooks:
            if "config" not in inspect.signature(getattr(member.instance, hook)).parameters:
                continue
            result[hook] = {*type(member.config).model_fields}
            if hook in BEFORE:  # it has been called already
                twin, mine = copy(member), EffectChecks(self._plan)
                twin.config = mine.options({owner: member.config})[owner]
                with suppress(ProtoflError):
                    made = mine.call(hook, None, partial(twin.call, hook, run=self._plan.info))
                    # An option that `resolve` only fills in has no effect by that.
                    filled = {*made} if hook == "resolve" and made else set()
                    result[hook] = mine._options.get(owner, {}).get(hook, set()) - filled
        return result
