"""Plugins of a run with their options, members of a composition, and loss terms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from protofl.errors import Overtime, RunFailure, UsageError, ends_hook, error_text, unknown
from protofl.hooks.discovery.kinds import after_batch_if, hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.loss import LossSource, checked_constants, on_device
from protofl.hooks.plugin.providers import Baseline
from protofl.hooks.transport.return_values import expect_returned
from protofl.hooks.views.client import Client
from protofl.hooks.views.run_info import Phase, RunInfo
from protofl.system.files.home import expand_user
from protofl.system.options.plugin_options import Config, VariantConfig, parse_config
from protofl.system.options.table import SEVERAL


class Choice:
    """The plugin of a kind that a run has chosen.

    Attributes:
        kind: The kind.
        name: The plugin's name.
        plugin: Its class.
        config: Its options.
        argument: The text after its name (``npz:PATH``).
        instance: Its only instance in this run.
        hooks: The hooks that it implements.
    """

    def __init__(
        self, kind: str, name: str, plugin: type, config: Config, argument: str = ""
    ) -> None:
        self.kind, self.name, self.plugin = kind, name, plugin
        self.config, self.argument = config, argument
        self.instance = plugin()
        self.hooks = hooks_of(kind, plugin)
        self._arguments: dict[str, tuple[str, ...]] = {}

    @property
    def text(self) -> str:
        """``NAME`` or ``NAME:ARGUMENT``."""
        return f"{self.name}:{self.argument}" if self.argument else self.name

    @property
    def trains_groups(self) -> bool:
        """True if it is an engine that trains several clients at once."""
        return "train_group" in self.hooks

    @property
    def replays(self) -> bool:
        """True if it is an engine that records steps and replays them."""
        return bool(getattr(self.plugin, "replays", False))

    def anew(self) -> Choice:
        """Return the same choice with an instance of its own."""
        return Choice(self.kind, self.name, self.plugin, self.config, self.argument)

    def bound(self, hook: str, **arguments: Any) -> Callable[[], Any]:  # noqa: ANN401
        """Return a hook with the arguments that it takes, its options among them."""
        function = getattr(self.instance, hook)
        arguments["config"] = self.config
        return partial(function, **{name: arguments[name] for name in self._taken(hook, function)})

    def _taken(self, hook: str, function: Callable[..., Any]) -> tuple[str, ...]:
        """Return the arguments that a hook takes."""
        if hook not in self._arguments:  # signatures are slow, and some hooks run at every step
            self._arguments[hook] = (*inspect.signature(function).parameters,)
        return self._arguments[hook]

    def call(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call a hook (see `bound`); return None if the plugin does not implement it."""
        try:
            return self.bound(hook, **arguments)() if hook in self.hooks else None
        except BaseException as end:
            if isinstance(end, (Exception, Overtime)) or not ends_hook(end):
                raise
            raise RunFailure(f"{self.kind}/{self.name}, {hook}: {error_text(end)}") from end

    def run_defaults(self) -> dict[str, Any]:
        """Return defaults of the run's options: its variant's, and those of its hook."""
        defaults = dict[str, Any]()
        if isinstance(self.config, VariantConfig) and self.config.variant == "official":
            defaults |= self.config.official
        return defaults | (self.call("run_defaults") or {})

    def dump(self) -> dict[str, Any]:
        """Return its options as JSON values, without the argument after its name."""
        argument = {getattr(self.plugin, "argument", "")}
        return self.config.model_dump(mode="json", by_alias=True, exclude=argument)


def choose(
    registry: Registry, kind: str, text: str, options: Mapping[str, Any] | None = None
) -> Choice:
    """Load the plugin ``NAME[:ARGUMENT]`` with its options.

    Raises:
        UsageError: The plugin does not exist, takes no argument, or needs one.
    """
    name, colon, argument = text.partition(":")
    plugin = registry.load(kind, name)
    argument_name = getattr(plugin, "argument", None)
    if colon and not argument_name:
        raise UsageError(f"{kind} {name!r} takes no argument, got {argument!r}")
    if argument_name and not argument:
        raise UsageError(
            f"{kind} {name!r} needs an argument", do=f"write {name}:{argument_name.upper()}"
        )
    values = dict(options or {})
    if argument_name:
        if argument_name == "path":
            argument = str(expand_user(argument).resolve())
        elif argument_name in ("name_or_path", "names_or_paths"):
            names = argument.split(",") if argument_name == "names_or_paths" else [argument]
            paths = ((name, expand_user(name.strip())) for name in names)
            argument = ",".join(str(p.resolve()) if p.is_dir() else name for name, p in paths)
        values[argument_name] = argument
    config = parse_config(getattr(plugin, "Config", Config), values, f"{kind}/{name}")
    return Choice(kind, name, plugin, config, argument)


def choose_several(
    registry: Registry, settings: Mapping[str, Any], members: Mapping[str, Choice]
) -> dict[str, Choice]:
    """Load the plugins that options of `SEVERAL` name, by ``KIND/NAME``.

    Args:
        registry: The installed plugins.
        settings: The options of a run.
        members: Its methods and transforms by name.

    Raises:
        UsageError: A name is unknown, or another plugin of the run has the same name.
    """
    owners = {name: member.kind for name, member in members.items()}
    result: dict[str, Choice] = {}
    for option, kind in SEVERAL.items():
        for name in settings[option]:
            if name in owners:
                raise UsageError(
                    f"--{option} {name}: the run has a {owners[name]} of the same name",
                    do=f"block the {kind} (--block {kind}/{name}), or leave it out",
                )
            result[f"{kind}/{name}"] = choose(registry, kind, name, settings["options"].get(name))
        owners |= dict.fromkeys(settings[option], kind)
    return result


def plugins_of_kinds(choices: Mapping[str, Choice], *kinds: str) -> list[Choice]:
    """Select the plugins of some kinds."""
    return [choice for choice in choices.values() if choice.kind in kinds]


_VIEWS = ("client", "server")


class Member(Choice):
    """A method or a transform of the composition."""

    def __init__(self, registry: Registry, kind: str, name: str, options: dict[str, Any]) -> None:
        plugin = registry.load(kind, name)
        config = parse_config(getattr(plugin, "Config", Config), options, name)
        super().__init__(kind, name, plugin, config)
        needed = after_batch_if(plugin)
        if any(getattr(config, option) != value for option, value in needed.items()):
            self.hooks.remove("after_batch")

    def call(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call a hook with the client or the server bound to this plugin."""
        result = super().call(hook, **bound_to(self.name, arguments))
        if self.kind == "method":
            expect_returned(hook, self.name, result, arguments)
        return result

    @property
    def terms(self) -> dict[str, str]:
        """The declared loss terms; the baseline's if the plugin has no ``local_loss``."""
        if "local_loss" not in self.hooks:
            return Baseline.terms
        declared = getattr(self.instance, "terms", None)
        if not declared:
            raise UsageError(
                f"method/{self.name} has a local_loss and declares no terms",
                do="write: terms = {'ce': 'cross-entropy', …}",
            )
        return dict(declared)

    def resolve(self, run: RunInfo) -> None:
        """Fill in its options whose default depends on the run."""
        if changes := self.call("resolve", run=run):
            values = self.config.model_dump() | changes
            self.config = parse_config(type(self.config), values, self.name)

    def loss(self, client: Client, labels: Mapping[str, str], constants: object) -> LossSource:
        """Return its loss on a client. Tensors of ``constants`` move to the client's device.

        Args:
            client: The client, bound to any method.
            labels: {term: label} of the terms in the sum.
            constants: The return value of its ``before_training``.
        """
        has_loss = "local_loss" in self.hooks
        function = self.instance.local_loss if has_loss else Baseline().local_loss
        return LossSource(
            self.name,
            function,
            self._taken("local_loss", function),
            client.bound_to(self.name).learner(),
            labels,
            frozenset(self.terms),
            on_device(checked_constants(constants, self.name, client._state.steps), client.device),
        )


def bound_to(owner: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hook's arguments with the client or the server bound to a plugin."""
    return {k: v.bound_to(owner) if k in _VIEWS else v for k, v in arguments.items()}


def donation(plugin: type, name: str, hook: str) -> str:
    """Return the option with which a method takes a hook of a plugin that only donates hooks."""
    if hook != "local_loss":
        return f"--use {hook}={name}"
    term = next(iter(getattr(plugin, "terms", {})), "TERM")
    return f"--add local_loss={name}.{term}"


# --- loss terms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """A loss term of the run.

    Attributes:
        method: The method that computes it.
        name: Its name in the method.
        label: Its name in the record: ``METHOD.TERM`` for a donor's.
    """

    method: str
    name: str
    label: str

    def is_trained(self, phase: Phase) -> bool:
        """Return True if a phase trains the term; terms of donors train on private data."""
        if self.label != self.name:
            return phase.data == "private"
        return not phase.terms or self.name in phase.terms


def chosen_terms(
    main: str, source: str, join: Callable[[str], Member], add: Iterable[str], drop: Iterable[str]
) -> list[Term]:
    """Return the loss terms that are summed.

    Args:
        main: The main method.
        source: The method that provides ``local_loss``.
        join: Adds a method to the composition and returns it.
        add: Terms ``METHOD.TERM`` to add.
        drop: Terms ``TERM`` or ``METHOD.TERM`` to leave out.

    Raises:
        UsageError: A term is unknown, added twice, or dropped and absent; or no term is left.
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
        matching = [t for t in terms if text in (t.label, f"{t.method}.{t.name}")]
        if not matching:
            labels = [t.label for t in terms]
            raise unknown("loss term", text, labels, "--drop takes a term of the composition")
        terms.remove(matching[0])
    if not terms:
        raise UsageError("no loss term is left", do="drop fewer terms")
    return terms
