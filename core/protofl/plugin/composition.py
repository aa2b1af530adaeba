"""Composition: which plugin provides which hook of a run, and the calls that follow from it.

Each method or wrapper is registered in a pluggy manager of the run. Its hooks see the client or
server of a call bound to it: its own options, state, modules and generators.
``local_loss`` runs for every batch, so it is frozen to plain callables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pluggy

from protofl.errors import ProtoflError, Refused, RunFailure, UsageError, unknown
from protofl.hookspecs.config import Config, parse_config
from protofl.hookspecs.method import LIFECYCLE_HOOKS, ROUND_HOOKS, MethodSpec
from protofl.plugin.baseline import Baseline
from protofl.plugin.kinds import hooks_of
from protofl.plugin.loss import Loss, LossSource, checked
from protofl.plugin.registry import Registry
from protofl.views.batch import Given
from protofl.views.client import Client
from protofl.views.run import Phase, RunInfo

BASELINE = "baseline"
_VIEWS = ("client", "server")


@dataclass(frozen=True)
class Term:
    """A loss term of the run: METHOD.TERM, and the name under which it is recorded."""

    method: str
    name: str
    label: str


@dataclass
class Member:
    """A plugin of the composition: the main method, a donor, or a wrapper."""

    name: str
    role: str
    instance: Any
    config: Config
    hooks: list[str]
    sides: set[str] = field(default_factory=set)

    def writes(self, hook: str) -> bool:
        """Whether the plugin implements the hook itself."""
        return hook in self.hooks


class Composition:
    """The plugins of a run and who provides what.

    Args:
        registry: Where plugins are found.
        method: The main method.
        options: {plugin name: its options}; the main method's under its own name.
        use: {hook: method} that replaces the main method's provider.
        add: Loss terms ``METHOD.TERM`` to add.
        drop: Loss terms (``TERM`` or ``METHOD.TERM``) to leave out of the sum.
        wrappers: Wrapper plugins, in the order in which they change a payload.

    Raises:
        UsageError: A name is unknown, a term is dropped that is not there or added that is, or
            options are given for a plugin that takes no part.
    """

    def __init__(
        self,
        registry: Registry,
        method: str,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        use: Mapping[str, str] | None = None,
        add: list[str] | None = None,
        drop: list[str] | None = None,
        wrappers: list[str] | None = None,
    ) -> None:
        options = dict(options or {})
        self.main = method
        self.members: dict[str, Member] = {}
        self._registry = registry
        self._manager = pluggy.PluginManager("protofl")
        self._manager.add_hookspecs(MethodSpec)
        self._manager.register(Baseline(), name=BASELINE)
        self._options = options
        self._join(method, "main")
        self.providers = dict.fromkeys(ROUND_HOOKS, method)
        for hook, donor in (use or {}).items():
            if hook not in ROUND_HOOKS:
                raise unknown("hook", hook, ROUND_HOOKS, "--use takes HOOK=METHOD")
            self._join(donor, "donor")
            self.providers[hook] = donor
        self.terms = self._choose_terms(add or [], drop or [])
        for name in wrappers or []:
            self._join(name, "wrapper")
        self._set_sides()
        self._manager.check_pending()
        unused = [name for name in options if name not in self.members]
        if unused:
            raise unknown(
                "plugin in --set",
                unused[0],
                self.members,
                "--set [NAME.]KEY=VALUE needs a NAME "
                "that takes part: the method, a donor, a wrapper, or a kind",
            )
        self._callers = self._make_callers()

    # --- putting it together ------------------------------------------------------------------

    def _join(self, name: str, role: str) -> None:
        kind = "wrapper" if role == "wrapper" else "method"
        if name in self.members:
            if (self.members[name].role == "wrapper") != (role == "wrapper"):
                raise UsageError(f"{name!r} can't be both a method and a wrapper of one run")
            return
        plugin = self._registry.load(kind, name)
        values = dict(self._options.get(name, {}))
        config = parse_config(getattr(plugin, "Config", Config), values, name)
        instance = plugin()
        member = Member(name, role, instance, config, hooks_of(kind, plugin))
        self.members[name] = member
        self._manager.register(instance, name=name)
        _bind(self._manager, instance, name)

    def _choose_terms(self, add: list[str], drop: list[str]) -> list[Term]:
        source = self.providers["local_loss"]
        prefix = "" if source == self.main else f"{source}."
        terms = [Term(source, t, f"{prefix}{t}") for t in self.declared_terms(source)]
        for text in add:
            method, _, name = text.partition(".")
            if not name:
                raise UsageError(f"--add local_loss={text}: no term", do="write METHOD.TERM")
            self._registry.find("method", method)
            self._join(method, "donor")
            declared = self.declared_terms(method)
            if name not in declared:
                raise unknown(f"loss term of {method}", name, declared)
            if any((t.method, t.name) == (method, name) for t in terms):
                raise UsageError(f"--add local_loss={text}: the composition holds it already")
            label = name if method == self.main else f"{method}.{name}"
            terms.append(Term(method, name, label))
        for text in drop:
            found = [t for t in terms if text in (t.label, f"{t.method}.{t.name}")]
            if not found:
                raise unknown(
                    "loss term", text, [t.label for t in terms], "--drop takes a term that is there"
                )
            terms.remove(found[0])
        if not terms:
            raise UsageError("no loss term is left", do="drop fewer terms")
        return terms

    def declared_terms(self, method: str) -> dict[str, str]:
        """The loss terms that a method declares; the baseline's where it writes no loss."""
        member = self.members[method]
        if not member.writes("local_loss"):
            return Baseline.terms
        declared = getattr(member.instance, "terms", None)
        if not declared:
            raise UsageError(
                f"method/{method} has a local_loss and declares no terms",
                do="write: terms = {'ce': 'what it is', …}",
            )
        return dict(declared)

    def _set_sides(self) -> None:
        self.members[self.main].sides = {"client", "server"}
        for hook, name in self.providers.items():
            self.members[name].sides.add(ROUND_HOOKS[hook])
        for term in self.terms:
            self.members[term.method].sides.add("client")

    def _make_callers(self) -> dict[tuple[str, str], Any]:
        wrappers = [m.name for m in self.members.values() if m.role == "wrapper"]
        callers = {}
        for hook in [*ROUND_HOOKS, *LIFECYCLE_HOOKS]:
            for name in [BASELINE, *self.members]:
                keep = {name, *(wrappers if hook in ROUND_HOOKS else ())}
                remove = [p for n, p in self._manager.list_name_plugin() if n not in keep]
                callers[hook, name] = self._manager.subset_hook_caller(
                    hook, [p for p in remove if p is not None]
                )
        return callers

    # --- calling ------------------------------------------------------------------------------

    def provider(self, hook: str) -> str:
        """The plugin whose implementation of a round's hook runs, `BASELINE` for the default."""
        name = self.providers[hook]
        return name if self.members[name].writes(hook) else BASELINE

    def owner(self, hook: str) -> str:
        """The method to which the view of a round's hook is bound."""
        return self.providers[hook]

    def call(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call one of the six hooks; its result is what its one provider returns.

        Raises:
            RunFailure: The provider returned None.
        """
        provider = self.provider(hook)
        for view in _VIEWS:
            if view in arguments and provider == BASELINE:
                arguments[view] = arguments[view].bound_to(self.owner(hook))
        _note_reader(arguments, self.owner(hook), hook)
        result = self._callers[hook, provider](**arguments)
        if result is None:
            raise RunFailure(
                f"{provider}.{hook} returned nothing",
                do="return an empty pf.Payload() or {} where there is nothing to send or change",
            )
        return result

    def lifecycle(self, hook: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401
        """Call a lifecycle hook of every method on its side; {method: what it returned}."""
        side = LIFECYCLE_HOOKS[hook]
        results = {}
        for m in self.members.values():
            if m.role != "wrapper" and side in m.sides and m.writes(hook):
                _note_reader(arguments, m.name, hook)
                results[m.name] = self._callers[hook, m.name](**arguments)
        return results

    def has(self, hook: str) -> bool:
        """Whether any method implements a lifecycle hook on its side."""
        side = LIFECYCLE_HOOKS[hook]
        return any(
            m.writes(hook) and side in m.sides for m in self.members.values() if m.role != "wrapper"
        )

    def of_main(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call a lifecycle hook of the main method alone; None where it has none."""
        return self._callers[hook, self.main](config=self.configs[self.main], **arguments)

    def reasons_against(self, run: RunInfo) -> list[str]:
        """Why the composition can't work with a run, from every method that takes part."""
        reasons = []
        for member in self.members.values():
            if member.role != "wrapper":
                caller = self._callers["requires", member.name]
                found = caller(run=run, config=member.config) or []
                reasons += [f"{member.name}: {reason}" for reason in found]
        return reasons

    def check_phases(self, run: RunInfo) -> None:
        """Find terms of donors for which the main method has no phase.

        Raises:
            Refused: A term belongs to a phase of its method's own, and phases are the main
                method's.
        """
        for term in self.terms:
            caller = self._callers["phases", term.method]
            phases = caller(config=self.configs[term.method], run=run) or []
            own = [p for p in phases if term.name in p.terms and p.data != "private"]
            if term.method != self.main and own:
                raise Refused(
                    f"the loss term {term.label!r} belongs to the phase {own[0].name!r} of "
                    f"{term.method}, which {self.main} does not have",
                    "phases of training are those of the main method alone",
                    f"drop it: --drop local_loss.{term.label}",
                    lacks="phase",
                    name=own[0].name,
                )

    def resolve(self, run: RunInfo) -> None:
        """Fill in options whose default depends on the run."""
        for member in self.members.values():
            changes = self._callers["resolve", member.name](run=run, config=member.config)
            if changes:
                values = member.config.model_dump(exclude_unset=False) | changes
                member.config = parse_config(type(member.config), values, member.name)

    def phases(self, run: RunInfo) -> list[Phase]:
        """The main method's phases of local training."""
        return self.of_main("phases", run=run) or [Phase()]

    @property
    def needs_generator(self) -> bool:
        """Whether a method that takes part on the server needs an image generator."""
        return any(
            getattr(m.instance, "needs_generator", False) and "server" in m.sides
            for m in self.members.values()
            if m.role != "wrapper"
        )

    @property
    def configs(self) -> dict[str, Config]:
        """The options of every plugin that takes part."""
        return {name: member.config for name, member in self.members.items()}

    def terms_of(self, phase: Phase) -> list[Term]:
        """The terms that a phase trains; a donor knows no phases, so its are for private data."""

        def trains(term: Term) -> bool:
            if term.method != self.main:
                return phase.data == "private"
            return not phase.terms or term.name in phase.terms

        return [term for term in self.terms if trains(term)]

    def loss(
        self,
        client: Client,
        given: Mapping[str, Given],
        phase: Phase = Phase(),  # noqa: B008 - immutable
    ) -> Loss:
        """The frozen local loss of one client.

        Args:
            client: The client, bound to any method.
            given: What each method's ``before_training`` returned.
            phase: The phase that is trained.
        """
        sources = []
        trained = self.terms_of(phase)
        for method in dict.fromkeys(term.method for term in trained):
            own = self.members[method].writes("local_loss")
            function = self.members[method].instance.local_loss if own else Baseline().local_loss
            sources.append(
                LossSource(
                    method,
                    function,
                    tuple(inspect.signature(function).parameters),
                    client.bound_to(method).learner(),
                    {t.name: t.label for t in trained if t.method == method},
                    frozenset(self.declared_terms(method)),
                    checked(given.get(method), method, client.steps),
                )
            )
        return Loss(sources)

    def describe(self) -> dict[str, str]:
        """{hook: provider} in words, for the screen and the record."""
        lines = {}
        for hook in ROUND_HOOKS:
            owner, provider = self.owner(hook), self.provider(hook)
            lines[hook] = owner if provider == owner else f"{owner} (default)"
        lines["local_loss"] = " + ".join(term.label for term in self.terms)
        return lines


def _note_reader(arguments: Mapping[str, Any], method: str, hook: str) -> None:
    """Tell the client's download who reads it now, for `Payload.asked`."""
    client = arguments.get("client")
    if client is not None:
        client.received.reader = f"{method}.{hook}"


def _bind(manager: pluggy.PluginManager, instance: object, name: str) -> None:
    """Have every hook of a registered plugin see the client or server bound to that plugin."""
    for caller in manager.get_hookcallers(instance) or ():
        for implementation in caller.get_hookimpls():
            if implementation.plugin is instance:
                function, arguments = implementation.function, implementation.argnames
                implementation.function = _bound(function, arguments, name)  # type: ignore[misc]


def _bound(function: Callable[..., Any], arguments: Sequence[str], name: str) -> Callable[..., Any]:
    rebind = [argument in _VIEWS for argument in arguments]

    def call(*given: Any) -> Any:  # noqa: ANN401 - as the hook says
        views = [a.bound_to(name) if r else a for a, r in zip(given, rebind, strict=True)]
        return function(*views)

    return call


class naming:
    """Add the place (hook, client, round) to whatever a hook raises inside."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ProtoflError):
            if self._place not in error.what:
                error.what = f"{self._place}: {error.what}"
                error.place = error.place or self._place
        elif isinstance(error, Exception):
            what = f"{self._place}: {type(error).__name__}: {error}"
            failure = RunFailure(what, do="--debug shows where")
            failure.place = self._place
            raise failure from error
