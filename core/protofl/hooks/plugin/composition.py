"""Composition: the provider of each hook of a run, and the calls of hooks.

pluggy calls the hooks of a round with the transforms around them. Each hook sees a client or server
that is bound to its own method: its options, state, modules and generators. ``local_loss`` runs for
every batch, so it is a plain callable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

import pluggy
import torch
from torch import Tensor

from protofl.errors import RunFailure, UsageError, unknown
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.hookspecs.method import (
    LIFECYCLE_HOOKS,
    MERGED_HOOKS,
    ROUND_HOOKS,
    SHARED_HOOKS,
    MethodSpec,
)
from protofl.hooks.plugin.loss import Loss, Watch
from protofl.hooks.plugin.members import Member, Term, bound_to, chosen_terms
from protofl.hooks.plugin.providers import Baseline
from protofl.hooks.transport.encoding import Codec, coding_of
from protofl.hooks.transport.return_values import expect_returned
from protofl.hooks.transport.rules import Declarations
from protofl.hooks.views.batch import LossData
from protofl.hooks.views.client import Client
from protofl.hooks.views.run_info import Phase, RunInfo
from protofl.hooks.wire.keys import Keys
from protofl.system.options.plugin_options import Config

BASELINE = "baseline"


class _OfOneHook(pluggy.PluginManager):
    """Looks at one hook of each class: the search through all attributes is slow."""

    def __init__(self, hook: str) -> None:
        super().__init__("protofl")
        self._hook = hook

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:  # noqa: ANN401 - pluggy's plugins
        return super().parse_hookimpl_opts(plugin, name) if name == self._hook else None

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:  # noqa: ANN401
        return super().parse_hookspec_opts(module_or_class, name) if name == self._hook else None


class Composition:
    """The plugins of a run and the providers of its hooks.

    Args:
        registry: The installed plugins.
        method: The main method.
        options: {plugin name: its options}.
        use: {hook: method} that replaces the main method as provider.
        add: Loss terms ``METHOD.TERM`` to add, and further providers ``HOOK=METHOD``.
        drop: Loss terms (``TERM`` or ``METHOD.TERM``) to leave out of the sum.
        transforms: Transform plugins, in the order in which they change a payload.

    Attributes:
        trainer: The transform that trains clients in place of the engine; None for none.
        hidden: {plugin: {transform: why it hides the clients' samples from this plugin}}; "" has
            those that hide them from any other.

    Raises:
        UsageError: A name is unknown, an added term or provider is in the composition already, a
            dropped term is not, options name a plugin that is not, two plugins declare different
            shapes for one key, two transforms would train the clients, or one replaces uploads
            after a transform of uploads.
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
        transforms: list[str] | None = None,
    ) -> None:
        options = dict(options or {})
        self.main = method
        self.members: dict[str, Member] = {}
        self._registry, self._options = registry, options
        self._join("method", method)
        self.providers = dict.fromkeys(ROUND_HOOKS, method)
        for hook, donor in (use or {}).items():
            if hook not in ROUND_HOOKS:
                raise unknown("hook", hook, ROUND_HOOKS, "--use takes HOOK=METHOD")
            self._join("method", donor)
            self.providers[hook] = donor
        self.beside: dict[str, list[str]] = {}
        for text in add or []:
            if "=" in text:
                self._add_provider(*text.split("=", 1))
        self.terms = chosen_terms(
            method,
            self.providers["local_loss"],
            partial(self._join, "method"),
            [text for text in add or [] if "=" not in text],
            drop or [],
        )
        for name in transforms or []:
            self._join("payload-transform", name)
        if unused := [name for name in options if name not in self.members]:
            do = "NAME in --set NAME.KEY=VALUE is a method or transform of the run, or a kind"
            raise unknown("plugin in --set", unused[0], self.members, do)
        self.keys = Keys.of({name: member.plugin for name, member in self.members.items()})
        self.upload, self.download = (self._codec(name) for name in ("upload", "download"))
        self.trainer = self._only("train")
        self._check_order()
        self.hidden = {reader: self._hidden_from(reader) for reader in ("", *self.members)}
        self._callers = {hook: self._caller(hook) for hook in ROUND_HOOKS}
        self._callees = {
            hook: [
                *(m for m in self.methods if hook in m.hooks and side in self._sides(m.name)),
                *(m for m in self.transforms if hook in SHARED_HOOKS and hook in m.hooks),
            ]
            for hook, side in LIFECYCLE_HOOKS.items()
        }
        self._watch = Watch()

    # --- putting it together ------------------------------------------------------------------

    def _join(self, kind: str, name: str) -> Member:
        if name not in self.members:
            options = dict(self._options.get(name, {}))
            self.members[name] = Member(self._registry, kind, name, options)
        elif self.members[name].kind != kind:
            raise UsageError(f"{name!r} cannot be both a method and a transform of one run")
        return self.members[name]

    @property
    def secretive(self) -> list[str]:
        """Names of transforms that draw noise from the secrets of hosts."""
        declared = {m.name: getattr(m.plugin, "draws_secretly", False) for m in self.transforms}
        return [
            name
            for name, by in declared.items()
            if (getattr(self.members[name].config, by) if isinstance(by, str) else by)
        ]

    def _hidden_from(self, reader: str) -> dict[str, str]:
        """Return {transform: why it hides the clients' samples from a plugin}."""
        hidden = {}
        transforms = {m.name: m.plugin for m in self.transforms}
        named = [*transforms]
        before = named[: named.index(reader)] if reader in named else []
        for name, plugin in transforms.items():
            why = getattr(plugin, "hides_samples", "") if name != reader else ""
            if name in before:
                why = why or getattr(plugin, "hides_samples_later", "")
            if why:
                hidden[name] = why
        return hidden

    def _add_provider(self, hook: str, method: str) -> None:
        """``--add HOOK=METHOD``."""
        if hook not in MERGED_HOOKS:
            do = f"others have one provider: --use {hook}={method}" if hook in ROUND_HOOKS else ""
            raise unknown("hook that can be added to:", hook, MERGED_HOOKS, do)
        self._join("method", method)
        if method in self.makers(hook):
            raise UsageError(f"--add {hook}={method}: {method} provides it already")
        self.beside.setdefault(hook, []).append(method)

    def _sides(self, method: str) -> set[str]:
        """Return the sides on which a method provides hooks: ``client``, ``server``."""
        if method == self.main:
            return {"client", "server"}
        sides = {side for hook, side in ROUND_HOOKS.items() if method in self.makers(hook)}
        return sides | {"client" for term in self.terms if term.method == method}

    def _only(self, hook: str) -> Member | None:
        """Return the only transform that has a hook; None for none."""
        able = [member for member in self.transforms if hook in member.hooks]
        if len(able) > 1:
            names = " and ".join(f"--with {member.name}" for member in able)
            raise UsageError(f"{names}: one of them can train the clients", do="leave one out")
        return able[0] if able else None

    def _check_order(self) -> None:
        """Check that no transform of uploads is named before one that replaces them."""
        before = list[str]()
        for member in self.transforms:
            if before and getattr(member.plugin, "replaces_uploads", False):
                raise UsageError(
                    f"--with {before[0]} --with {member.name}: {member.name} replaces the upload, "
                    "whatever a transform before it sends",
                    do=f"name it after: --with {member.name} --with {before[0]}",
                )
            if {"upload_payload", "encode_upload"} & {*member.hooks}:
                before.append(member.name)

    def _caller(self, hook: str) -> pluggy.HookCaller:
        """Return a round hook of pluggy: its providers, and the transforms, the first innermost."""
        manager = _OfOneHook(hook)
        manager.add_hookspecs(MethodSpec)
        provider = self.provider(hook)
        if hook in self.beside:
            from protofl.hooks.plugin.merging import MergedProviders

            makers = [self.members[name] for name in self.makers(hook)]
            manager.register(MergedProviders({m.name: m.call for m in makers if hook in m.hooks}))
        else:
            manager.register(
                Baseline() if provider == BASELINE else self.members[provider].instance
            )
        if around := [member for member in self.transforms if hook in member.hooks]:
            from protofl.hooks.plugin.merging import HookWrapper

            manager.register(HookWrapper(" and ".join(self.makers(hook))))
            for member in around:
                manager.register(HookWrapper(member.name, member.call))
        caller: pluggy.HookCaller = getattr(manager.hook, hook)
        return caller

    def _codec(self, direction: str) -> Codec:
        """Return the encodings of the transforms in one direction."""
        calls = [(m, partial(self._called, m)) for m in self.transforms]
        return Codec(direction, (coding_of(direction, m.name, m.plugin, call) for m, call in calls))

    def watched(self, watch: Watch) -> Composition:
        """Return the same composition with its hooks called by a watch."""
        twin = copy(self)
        twin._watch = watch
        twin.upload, twin.download = twin._codec("upload"), twin._codec("download")
        return twin

    # --- calling ------------------------------------------------------------------------------

    def provider(self, hook: str) -> str:
        """Return the plugin that implements a round's hook, or `BASELINE` for the default."""
        name = self.providers[hook]
        return name if hook in self.members[name].hooks else BASELINE

    def makers(self, hook: str) -> list[str]:
        """Return the methods that provide a round's hook: one, and those that ``--add`` names."""
        return [self.providers[hook], *self.beside.get(hook, ())]

    def call(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call one of the six hooks of a round.

        Raises:
            RunFailure: The provider returned an invalid value.
        """
        owner = self.providers[hook]
        bound = bound_to(owner, arguments)

        def do() -> Any:  # noqa: ANN401
            result = self._callers[hook](**bound)
            expect_returned(hook, " and ".join(self.makers(hook)), result, bound)
            return result

        return self._watch.call(owner, hook, bound, do)

    def declarations(self, hook: str) -> Declarations:
        """Return the declarations of all plugins that make a payload, for a payload hook.

        A download comes from the global state, which all methods of the run change.
        """
        makers = [self.members[name] for name in self.makers(hook)]
        others = [m for m in self.transforms if hook in m.hooks]
        if hook == "download_payload":
            others += [m for m in self.methods if m not in makers]
        providers, further = ([(m.name, m.plugin) for m in ms] for ms in (makers, others))
        return Declarations.of(hook, providers, further, self.keys)

    def pass_on(
        self,
        hook: str,
        name: str,
        value: Any,  # noqa: ANN401 - as the hook says
        expect: Callable[[str, Any, Any], None] = lambda who, returned, before: None,
        **arguments: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Pass a value through a hook of all transforms (in the order of ``--with``), then methods.

        ``expect`` checks each result; its arguments are ``NAME.HOOK``, the result, and the value.
        """
        transforms = [m for m in self.transforms if hook in m.hooks]
        for member in (*transforms, *self._callees.get(hook, ())):
            returned = self._called(member, hook, **{name: value}, **arguments)
            if returned is None:
                raise RunFailure(f"{member.name}.{hook} returned nothing", do=f"return the {name}")
            expect(f"{member.name}.{hook}", returned, value)
            value = returned
        return value

    @property
    def transforms(self) -> list[Member]:
        """The transforms, in the order of ``--with``."""
        return [m for m in self.members.values() if m.kind == "payload-transform"]

    @property
    def methods(self) -> list[Member]:
        """The main method and the donors."""
        return [m for m in self.members.values() if m.kind == "method"]

    def lifecycle(self, hook: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401
        """Call a lifecycle hook of every method on its side; return {method: its result}.

        Hooks of `SHARED_HOOKS` are those of the transforms too.
        """
        return {m.name: self._called(m, hook, **arguments) for m in self._callees[hook]}

    def _called(self, member: Member, hook: str, **arguments: Any) -> Any:  # noqa: ANN401
        """Call one member's hook through the watch."""
        bound = bound_to(member.name, arguments)
        return self._watch.call(member.name, hook, bound, partial(member.call, hook, **bound))

    def has(self, hook: str) -> bool:
        """Return True if a method implements a lifecycle hook on its side."""
        return bool(self._callees[hook])

    def phases(self, run: RunInfo) -> list[Phase]:
        """Return the main method's phases of local training."""
        return self.members[self.main].call("phases", run=run) or [Phase()]

    def has_follow_up(self, run: RunInfo) -> bool:
        """Return True if clients also train after the server's step."""
        return any(phase.when == "after_server" for phase in self.phases(run))

    @property
    def needs_generator(self) -> bool:
        """True if a method with server hooks declares that it needs an image generator."""
        able = [m for m in self.methods if "server" in self._sides(m.name)]
        return any(getattr(m.plugin, "needs_generator", False) for m in able)

    @property
    def needs_public(self) -> bool:
        """True if the main method needs public data."""
        return getattr(self.members[self.main].plugin, "needs_public", False)

    @property
    def configs(self) -> dict[str, Config]:
        """The options of every method and transform, as hooks see them."""
        return self._watch.options({name: m.config for name, m in self.members.items()})

    def terms_of(self, phase: Phase) -> list[Term]:
        """Return the terms that a phase trains."""
        return [term for term in self.terms if term.is_trained(phase)]

    def loss(self, client: Client, constants: Mapping[str, LossData], phase: Phase) -> Loss:
        """Return the local loss of one client.

        Args:
            client: The client, bound to any method.
            constants: The return value of each method's ``before_training``.
            phase: The phase that is trained.
        """
        sources = []
        trained = self.terms_of(phase)
        for method in dict.fromkeys(term.method for term in trained):
            labels = {t.name: t.label for t in trained if t.method == method}
            source = self.members[method].loss(client, labels, constants.get(method))
            sources.append(self._watch.loss(source))
        return Loss(sources, self._loss_factors(client))

    def _loss_factors(self, client: Client) -> dict[str, Tensor]:
        """Return {label: factor} of the terms that transforms scale.

        Raises:
            RunFailure: A transform returned a factor of a term that the run does not have.
        """
        labels, factors = tuple(term.label for term in self.terms), dict[str, float]()
        for member in self.transforms:
            if "loss_factors" in member.hooks:
                found = self._called(member, "loss_factors", client=client, terms=labels) or {}
                for label, factor in found.items():
                    if label not in labels:
                        what = f"{member.name}.loss_factors returned a factor of {label!r}"
                        raise RunFailure(what, f"the loss terms are {', '.join(labels)}")
                    factors[label] = factors.get(label, 1.0) * float(factor)
        return {name: torch.tensor(f, device=client.device) for name, f in factors.items()}
