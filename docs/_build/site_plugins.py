"""Pages on plugins and on the wire, from what the plugins declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protofl.data.spec import in_words
from protofl.hooks.discovery.registry import Registry
from protofl.federation.plan.run_data import kinds_of
from protofl.system.options.plugin_options import Config, VariantConfig
from protofl.system.options.table import CHOOSING
from protofl.system.options.value_text import value_text
from protofl.hooks.plugin.providers import Baseline
from protofl.hooks.plugin.members import choose
from protofl.hooks.wire.keys import RUNTIME, RUNTIME_KEYS, Key, declared_keys, meaning_of, shape_of
from protofl_cli.options.options import AFTER_NAME, plugin_option_rows
from markdown_tables import code, table
from site_official import official_line
from site_text import first_line


def own_plugins(kind: str) -> dict[str, type]:
    """The plugins of a kind that this repository has, as far as their distributions are installed.

    Methods that are there for others alone count as the kind ``defence``.
    """
    registry, kind_of_all = Registry(), "method" if kind == "defence" else kind
    found = {
        plugin.name: registry.load(kind_of_all, plugin.name)
        for plugin in registry.plugins(kind_of_all)
        if plugin.distribution.startswith("protofl")
    }
    if kind_of_all != "method":
        return found
    return {n: p for n, p in found.items() if hasattr(p, "donates") == (kind == "defence")}


def method_table() -> str:
    """All methods: what they do, what travels, their loss terms."""
    rows = [
        (
            f"[{name}]({name}.md)",
            first_line(method),
            _keys(getattr(method, "uploads", {})),
            _keys(getattr(method, "downloads", {})),
            ", ".join(map(code, getattr(method, "terms", Baseline.terms))),
        )
        for name, method in own_plugins("method").items()
    ]
    return table(("name", "what it does", "up", "down", "loss terms"), rows)


def task_table() -> str:
    """Return the methods that take other tasks than classification."""
    data = {
        "multilabel": "several labels per sample",
        "regression": "a number",
        "language-model": "language models",
    }
    methods = own_plugins("method")
    rows = [
        (
            words,
            ", ".join(
                code(name)
                for name, method in methods.items()
                if task in getattr(method, "tasks", ())
            ),
        )
        for task, words in data.items()
    ]
    return table(("data", "methods"), rows)


def _keys(declared: Mapping[str, str | Key]) -> str:
    return ", ".join(map(code, declared)) or "–"


SECTIONS = {
    "model-group": (
        "Model groups",
        "`--models NAME`. `protofl show NAME` counts the parameters and FLOPs of each architecture.",
    ),
    "reproduction": (
        "Reproductions",
        "`protofl reproduce COLLECTION/NAME`; see [Reproduce tables](../how-to/reproduce-tables.md).",
    ),
    "dataset": (
        "Data sets",
        "`--dataset NAME`; see [Choose data](../how-to/choose-data.md).",
    ),
    "partitioner": (
        "Partitioners",
        "`--partition NAME`; see [Split data](../how-to/split-data.md).",
    ),
    "generator": (
        "Generators",
        "`--generator NAME`; see [Image generators](../how-to/use-image-generators.md).",
    ),
    "defence": (
        "Defences",
        "`--use server_aggregate=NAME`; see [Simulate attacks](../how-to/simulate-attacks.md#defences).",
    ),
    "payload-transform": (
        "Payload transforms",
        "`--with NAME`; may be repeated.",
    ),
    "metric": (
        "Metrics",
        "`--metrics NAME[,NAME…]`; see [the record](record.md#metrics).",
    ),
    "client-sampler": (
        "Client samplers",
        "`--sampling NAME`; see [Simulate devices](../how-to/simulate-devices.md#client-sampling).",
    ),
    "device-model": (
        "Device models",
        "`--devices NAME`; see [Simulate devices](../how-to/simulate-devices.md#device-models).",
    ),
    "schedule": (
        "Schedules",
        "`--schedule NAME`; see [Run without rounds](../how-to/run-without-rounds.md).",
    ),
    "tracker": (
        "Trackers",
        "`--track NAME[,NAME…]`; see [Use trackers](../how-to/use-trackers.md).",
    ),
    "engine": (
        "Engines",
        "`--engine NAME`; see [Choose an engine](../how-to/choose-an-engine.md).",
    ),
    "backend": (
        "Backends",
        "`--backend NAME`.",
    ),
}
"""Title and introduction of each kind's section."""


def plugin_reference() -> str:
    """Return all plugins that are not methods, by kind."""
    parts = [
        f"## {title}\n\n{intro}\n\n{plugins_of_kind(kind)}"
        for kind, (title, intro) in SECTIONS.items()
    ]
    return "\n\n".join(parts)


def plugins_of_kind(kind: str) -> str:
    """Return the plugins of a kind with their options."""
    words = {k: word for word, k in CHOOSING.items()}
    parts = []
    for name, plugin in own_plugins(kind).items():
        argument = getattr(plugin, "argument", None)
        title = f"{name}:{argument.upper()}" if argument else name
        parts += [f"### `{title}` {{ #{kind}-{name} }}", f"{first_line(plugin)}."]
        if kind == "model-group" and not argument:
            parts.append(f"Takes {in_words(kinds_of(plugin))}. {_architectures(name)}")
        rows = option_rows(plugin, f"{words.get(kind, name)}.")
        if rows:
            parts.append(table(("option", "default", "range", "meaning"), rows))
    return "\n\n".join(parts)


def option_rows(plugin: type, prefix: str) -> list[tuple[str, str, str, str]]:
    """Return option, default, range and meaning of a plugin's options.

    Args:
        plugin: The plugin.
        prefix: Word before the option, as ``--set`` takes it.
    """
    return [
        (code(prefix + key), default, accepted, meaning)
        for key, default, accepted, meaning in plugin_option_rows(plugin)
        if default != AFTER_NAME  # users write it after the name of the plugin
    ]


def option_table(method: str) -> str:
    """Return the options of a method, and how published code differs; empty if it has none."""
    plugin = own_plugins("method")[method]
    rows = option_rows(plugin, "")
    options = table(("option", "default", "range", "meaning"), rows) if rows else ""
    config: type[Config] = getattr(plugin, "Config", Config)
    if not issubclass(config, VariantConfig):
        return options
    compared, deviations = official_line(method), config.deviations
    if not deviations:
        return f"{options}\n\n{compared}"
    different = [
        (code(name), d.where, value_text(d.paper), value_text(d.official), d.note)
        for name, d in deviations.items()
    ]
    head = "option", "where", "paper", "official", "difference"
    published = "The published code differs, and `--set variant=official` follows it:"
    return f"{options}\n\n{published}\n\n{table(head, different)}\n\n{compared}"


def _architectures(name: str) -> str:
    choice = choose(Registry(), "model-group", name)
    names = [a.name for a in choice.call("architectures")]
    several = "Architectures, client i gets number i mod " + str(len(names))
    return f"{several if len(names) > 1 else 'Architecture'}: {', '.join(map(code, names))}."


def wire_table() -> str:
    """The keys of the runtime and of the methods, and which methods send them."""
    rows = [
        (
            code(name),
            row.shape,
            row.meaning + ("; rows by class" if row.by_class else ""),
            ", ".join(f"[{n}](methods/{n}.md)&nbsp;{a}" for n, a in row.methods.items()),
        )
        for name, row in declared_by(own_plugins("method")).items()
    ]
    return table(("key", "shape", "meaning", "methods"), rows)


@dataclass(frozen=True)
class WireRow:
    """A key on the page of the wire.

    Attributes:
        shape: Its shape; empty if no declaration gives one.
        meaning: Its content: the runtime's words, or those of the first method that gives a shape.
        by_class: True if its rows belong to classes.
        methods: {method: ``↑`` to the server, ``↓`` to a client, or both}.
    """

    shape: str
    meaning: str
    by_class: bool
    methods: dict[str, str]


def declared_by(methods: Mapping[str, type]) -> dict[str, WireRow]:
    """Return all keys that methods declare by name: those of the runtime, then others.

    Args:
        methods: {name: class}.
    """
    keys: dict[str, str | Key] = dict(RUNTIME_KEYS)
    senders: dict[str, dict[str, str]] = {name: {} for name in RUNTIME_KEYS}
    runtime_names = {key: name for name, key in RUNTIME_KEYS.items()}
    for method, plugin in methods.items():
        for attribute, arrow in (("uploads", "↑"), ("downloads", "↓")):
            for declared, key in declared_keys(plugin, attribute).items():
                known = RUNTIME.find(declared)
                name = runtime_names[known] if known in runtime_names else declared
                if isinstance(key, Key) and isinstance(keys.get(name, ""), str):
                    keys[name] = key
                keys.setdefault(name, key)
                arrows = senders.setdefault(name, {}).get(method, "")
                senders[name][method] = arrows + arrow * (arrow not in arrows)
    further = sorted(keys.keys() - RUNTIME_KEYS.keys())
    return {name: _wire_row(name, keys[name], senders[name]) for name in (*RUNTIME_KEYS, *further)}


def _wire_row(name: str, declared: str | Key, methods: dict[str, str]) -> WireRow:
    by_class = declared.by_class if isinstance(declared, Key) else RUNTIME.is_by_class(name)
    return WireRow(shape_of(name, declared), meaning_of(declared), by_class, methods)
