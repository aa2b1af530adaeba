"""``protofl show``: the page of a plugin, or of the machine."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from protofl.system.options.value_text import value_text
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.completion import plugin_names
from protofl_cli.options.options import Block, Debug, plugin_option_rows
from protofl_cli.screens import render
from protofl_cli.screens.model_tables import group_values, model_group

if TYPE_CHECKING:
    from protofl.hooks.discovery.kinds import Plugin
    from protofl.hooks.discovery.registry import Registry
    from protofl.system.options.plugin_options import Config


@prints_json
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[KIND/]NAME",
            autocompletion=plugin_names(prefixed=True, further=["machine"]),
            help="Plugin, with its argument if it has one (torchvision:resnet18); FILE.py:CLASS of "
            "a plugin that is not installed; machine: versions, processor, devices and extras, for "
            "a bug report.",
        ),
    ],
    classes: Annotated[
        int,
        typer.Option("--classes", min=1, help="Classes of a model group's architectures."),
    ] = 10,
    block: Block = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a plugin: paper, options, hooks, loss terms, traffic and deviations.

    For a model group: architectures with their parameters and forward FLOPs.
    """
    from protofl.hooks.discovery.registry import Registry

    if name == "machine":
        from protofl_cli.pages.machine_page import show_machine

        show_machine(as_json=as_json)
        return
    registry, name = _placed(name, block or []) if ":" in name else (Registry(block or ()), name)
    text, colon, argument = name.partition(":")
    kind, short, others = resolve(registry, text)
    plugin = registry.find(kind, short)
    with render.waiting(f"loading {plugin.label}"), contextlib.redirect_stdout(sys.stderr):
        plugin_class = registry.load(kind, short)
    if as_json:
        group = f"{short}{colon}{argument}"
        values = _values(registry, plugin, plugin_class, group=group, classes=classes)
        print_json({**values, "others": others})
        return
    render.heading(plugin.label, f"{plugin.distribution} {plugin.version} · {plugin.target}")
    render.text()
    for paragraph in _about(registry, plugin, plugin_class):
        render.line(paragraph)
    render.text()

    if kind == "command":
        render.pairs([("run it", f"protofl {short}"), ("options", f"protofl {short} --help")])
    elif kind == "reproduction":
        _reproductions(plugin_class)
    else:
        _options(kind, short, plugin_class)
    if kind == "method":
        _method(registry, plugin, plugin_class)
    elif kind == "model-group":
        model_group(registry, f"{short}{colon}{argument}", plugin_class, classes)
    elif kind == "dataset":
        _dataset(short, plugin_class)
    _hooks(kind, plugin_class)
    if others:
        render.text(f"Also of this name: {', '.join(f'{o}/{short}' for o in others)}", "dim")


def _values(
    registry: Registry,
    plugin: Plugin,
    plugin_class: Any,  # noqa: ANN401 - a plugin
    *,
    group: str,
    classes: int,
) -> dict[str, Any]:
    """Return the page of a plugin as JSON values.

    Args:
        registry: Registry of the plugin.
        plugin: The plugin.
        plugin_class: Its class.
        group: Its name with the argument, if any.
        classes: Number of classes C of a model group's architectures.
    """
    kind, short = plugin.kind, plugin.name
    without_options = kind in ("command", "reproduction")
    runs = kind == "method" and not hasattr(plugin_class, "donates")
    terms = _terms(plugin_class) if kind == "method" else None
    facts, architectures = None, None
    if kind == "dataset":
        facts = dict(_dataset_rows(short, plugin_class))
    elif kind == "model-group":
        facts, architectures = group_values(registry, group, plugin_class, classes)
    columns = ("option", "equation", "paper", "official", "note")
    return {
        "plugin": plugin.label,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.target,
        "text": "\n".join(_about(registry, plugin, plugin_class)),
        "options": None
        if without_options
        else [
            dict(zip(("option", "default", "range", "description"), row, strict=True))
            for row in plugin_option_rows(plugin_class)
        ],
        "hooks": [{"hook": h, "description": what} for h, what in _hook_rows(kind, plugin_class)],
        "terms": terms,
        "uploads": _keys(plugin_class, "uploads") if runs else None,
        "downloads": _keys(plugin_class, "downloads") if runs else None,
        "run_defaults": dict(run_defaults(plugin, plugin_class)) if runs else None,
        "deviations": [
            dict(zip(columns, row, strict=True)) for row in _deviations(_config(plugin_class))
        ]
        if runs
        else None,
        "ablations": getattr(plugin_class, "ablations", None) if runs else None,
        "facts": facts,
        "architectures": architectures,
        "reproductions": [
            dict(zip(("reproduction", "place", "title"), row, strict=True))
            for row in _reproduction_rows(plugin_class)
        ]
        if kind == "reproduction"
        else None,
    }


def _placed(name: str, block: list[str]) -> tuple[Registry, str]:
    """Return the plugins with a class given by its place, and KIND/NAME of this class."""
    from protofl.hooks.discovery.registry import Registry
    from protofl.runs.request.plugin_names import places_in
    from protofl.runs.request.program_classes import ClassNames
    from protofl.system.consent import allow

    with contextlib.redirect_stdout(sys.stderr):
        allow(places_in({"class": name}).get("class", ()))
        names = ClassNames(block=block)
        plugin_name = names.of_text("", name)
    for label, where in names.classes.items():
        argument = plugin_name.partition(":")[1:]
        return Registry(names.block, classes={label: where}), "".join((label, *argument))
    return Registry(block), plugin_name


def resolve(registry: Registry, text: str) -> tuple[str, str, list[str]]:
    """Return kind and name of ``[KIND/]NAME``, and other kinds with this name.

    Raises:
        UsageError: The kind or the plugin is unknown.
    """
    from protofl.errors import Blocked, UsageError, unknown
    from protofl.hooks.discovery.kinds import KINDS

    kind, slash, short = text.partition("/")
    if slash:
        if kind not in KINDS:
            raise unknown("kind", kind, [*KINDS, "hook"], "see: protofl list-plugins")
        return kind, short, []
    plugins = registry.plugins()
    kinds = list(dict.fromkeys(p.kind for p in plugins if p.name == text))
    if not kinds:
        for each in KINDS if registry.block else ():
            try:
                registry.find(each, text)
            except Blocked:
                raise
            except UsageError:
                pass
        raise unknown("plugin", text, {p.name for p in plugins}, "see: protofl list-plugins")
    return kinds[0], text, kinds[1:]  # KINDS begins with the methods


def _about(registry: Registry, plugin: Plugin, plugin_class: type) -> list[str]:
    """Return the docstring of the module, after that of the class if there are several classes."""
    from protofl.hooks.discovery.command_help import summary

    module = plugin.target.partition(":")[0]
    if plugin.kind == "command":
        return [summary(plugin)[0]]
    if plugin.kind == "reproduction":
        return inspect.cleandoc(plugin_class.__doc__ or "").splitlines()
    shared = sum(p.target.partition(":")[0] == module for p in registry.plugins(plugin.kind)) > 1
    class_text = inspect.cleandoc(plugin_class.__doc__ or "")
    whole = inspect.cleandoc(sys.modules[plugin_class.__module__].__doc__ or "")
    texts = [class_text, whole] if shared or not whole else [whole]
    return "\n\n".join(text for text in texts if text).replace("``", "`").splitlines()


def _config(plugin_class: type) -> type[Config]:
    from protofl.system.options.plugin_options import Config

    config: type[Config] = getattr(plugin_class, "Config", Config)
    return config


def _options(kind: str, plugin: str, plugin_class: type) -> None:
    from protofl.system.options.table import CHOOSING

    prefixes = {k: word for word, k in CHOOSING.items()}
    rows = plugin_option_rows(plugin_class)
    prefix = {"method": ""}.get(kind, f"{prefixes.get(kind, plugin)}.")
    donor = f", or --set {plugin}.OPTION=VALUE of a donor" if kind == "method" else ""
    if rows:
        render.table(
            ("option", "default", "range", "description"),
            rows,
            title=f"Options: --set {prefix}OPTION=VALUE{donor}",
        )
    else:
        render.text("It has no options of its own.\n")


def _reproductions(plugin_class: Any) -> None:  # noqa: ANN401 - a plugin
    """Print the reproductions of a collection."""
    rows = _reproduction_rows(plugin_class)
    render.table(("reproduction", "place", "title"), rows, title="protofl reproduce REPRODUCTION")


def _reproduction_rows(plugin_class: Any) -> list[tuple[str, str, str]]:  # noqa: ANN401 - a plugin
    reproductions = [
        plugin_class.reproduction(name.partition("/")[2]) for name in plugin_class.names()
    ]
    return [(each.name, each.place, each.title) for each in reproductions]


LEARNS = "What a curious server may learn, by shape, not measured (protofl leak measures a run)"


def _method(registry: Registry, plugin: Plugin, plugin_class: Any) -> None:  # noqa: ANN401 - a plugin
    from protofl.hooks.plugin.members import donation

    for hook in getattr(plugin_class, "donates", ()):
        render.text(
            f"Use it in a method: protofl run METHOD {donation(plugin_class, plugin.name, hook)}\n"
        )
    terms = _terms(plugin_class)
    if terms is None:
        return
    render.table(
        ("term", "meaning"),
        terms.items(),
        title="Loss terms: --drop local_loss.TERM, --add local_loss="
        f"{plugin.name}.TERM for another method",
    )
    if hasattr(plugin_class, "donates"):
        return
    for title, attribute in (("Uploads", "uploads"), ("Downloads", "downloads")):
        keys = _keys(plugin_class, attribute)
        if keys:
            rows = [(key["key"], key["shape"], key["meaning"]) for key in keys]
            render.table(("key", "shape", "meaning"), rows, title=title)
            if attribute == "uploads":
                reveals = [(key["key"], key["reveals"]) for key in keys]
                render.table(("key", "reveals"), reveals, title=LEARNS)
        else:
            render.text(f"{title}: {'not declared' if keys is None else 'nothing'}\n")
    defaults = run_defaults(plugin, plugin_class)
    if defaults:
        render.table(("with", "run options"), defaults, title="Run defaults")
    if deviations := _deviations(_config(plugin_class)):
        render.table(
            ("option", "equation", "paper", "official", "what differs"),
            deviations,
            title="Deviations of the published code: --set variant=official applies all of them",
        )
    ablations = getattr(plugin_class, "ablations", None)
    if ablations:
        render.table(("ablation", "options"), ablations.items(), title="Ablations of the paper")


def _terms(plugin_class: Any) -> dict[str, str] | None:  # noqa: ANN401 - a plugin
    """Return the loss terms of a method; None if it only provides other hooks of methods."""
    from protofl.hooks.discovery.kinds import hooks_of
    from protofl.hooks.plugin.providers import Baseline

    if "local_loss" not in getattr(plugin_class, "donates", ("local_loss",)):
        return None
    has_loss = "local_loss" in hooks_of("method", plugin_class)
    return dict(getattr(plugin_class, "terms", {}) if has_loss else Baseline.terms)


def _keys(plugin_class: Any, attribute: str) -> list[dict[str, str]] | None:  # noqa: ANN401 - a plugin
    """Return the declared keys of ``uploads`` or ``downloads``; None if nothing is declared."""
    from protofl.hooks.wire.keys import meaning_of, reveals_of, shape_of

    declared = getattr(plugin_class, attribute, None)
    if declared is None:
        return None
    return [
        {
            "key": name,
            "shape": shape_of(name, key),
            "meaning": meaning_of(key),
            "reveals": reveals_of(name, key),
        }
        for name, key in declared.items()
    ]


def _deviations(config: type[Config]) -> list[tuple[str, str, str, str, str]]:
    from protofl.system.options.plugin_options import VariantConfig

    deviations = config.deviations if issubclass(config, VariantConfig) else {}
    return [
        (key, d.where, value_text(d.paper), value_text(d.official), d.note)
        for key, d in deviations.items()
    ]


def run_defaults(plugin: Plugin, plugin_class: type) -> list[tuple[str, str]]:
    """Return the run defaults of a method, and how its options change them."""
    from protofl.hooks.plugin.members import Choice
    from protofl.system.options.plugin_options import option_names, parse_config

    config = _config(plugin_class)

    def defaults_text(**values: str) -> str:
        chosen = parse_config(config, values, plugin.name)
        defaults = Choice(plugin.kind, plugin.name, plugin_class, chosen).run_defaults()
        return " ".join(f"--{k.replace('_', '-')} {value_text(v)}" for k, v in defaults.items())

    usual = defaults_text()
    rows = [("by default", usual)] if usual else []
    for option, name in option_names(config).items():
        kind = config.model_fields[name].annotation
        for choice in get_args(kind) if get_origin(kind) is Literal else ():
            changed = defaults_text(**{option: choice})
            if changed != usual:
                rows.append((f"{option}={choice}", changed or "none"))
    return rows


def _dataset(name: str, plugin_class: Any) -> None:  # noqa: ANN401 - a plugin
    render.pairs(_dataset_rows(name, plugin_class))
    render.text()


def _dataset_rows(name: str, plugin_class: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - a plugin
    argument = getattr(plugin_class, "argument", None)
    word = f"{name}:{argument.upper()}" if argument else name
    defaults = getattr(plugin_class, "defaults", {})
    rows = [("use it as", f"--dataset {word}")]
    if defaults:
        usual = dict(defaults)
        resized = usual.pop("resized", {})
        rows.append(("run defaults", _as_typed(usual)))
        if resized:
            rows.append(("with models for any side", _as_typed(resized)))
    return rows


def _as_typed(defaults: Mapping[str, Any]) -> str:
    """Return run defaults as the options of a command."""
    further = dict(defaults)
    options = further.pop("options", {})
    parts = [f"--{k.replace('_', '-')} {value_text(v)}" for k, v in further.items()]
    parts += [
        f"--set {owner}.{name}={value_text(value)}"
        for owner, values in options.items()
        for name, value in values.items()
    ]
    return " ".join(parts)


def _hooks(kind: str, plugin_class: type) -> None:
    """Print the hooks of a plugin."""
    if rows := _hook_rows(kind, plugin_class):
        render.table(("hook", "what it does"), rows, title="Hooks")


def _hook_rows(kind: str, plugin_class: type) -> list[tuple[str, str]]:
    """Return the hooks of a plugin, and the hooks of a round that it leaves to their defaults."""
    from protofl.hooks.discovery.kinds import hooks_of
    from protofl.hooks.hookspecs.method import ROUND_HOOKS

    rows = [
        (hook, _first_line(getattr(plugin_class, hook))) for hook in hooks_of(kind, plugin_class)
    ]
    if kind == "method" and not hasattr(plugin_class, "donates"):
        written = {hook for hook, _ in rows}
        rows += [(h, "(the default)") for h in ROUND_HOOKS if h not in written]
    return rows


def _first_line(function: Callable[..., Any]) -> str:
    text = inspect.cleandoc(function.__doc__ or "").replace("``", "`")
    return next(iter(text.splitlines()), "")
