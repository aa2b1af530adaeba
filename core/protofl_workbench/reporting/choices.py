"""What a run was told to do: its options, what differs between runs, what departs from papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from protofl.errors import ProtoflError
from protofl.hooks.discovery.registry import Registry
from protofl.system.options.parsing import options_in
from protofl.system.options.plugin_options import Config, VariantConfig, option_names
from protofl.system.options.table import CHOOSING, OPTIONS, default_values
from protofl_workbench.reporting.numbers import NONE, count, listed
from protofl_workbench.reporting.parts import Section, Table
from protofl_workbench.reporting.told import own

NO_OPTIONS = {"data_dir", "recipe"}
"""Entries that say where, or whence, and not what."""


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run by the names that users write, those of plugins as ``PLUGIN.OPTION``."""
    values = {k: v for k, v in options_in(config).items() if k not in NO_OPTIONS}
    plugins = values.pop("options", {})
    found = {name.replace("_", "-"): value for name, value in values.items()}
    for owner, options in plugins.items():
        found |= {f"{owner}.{key}": value for key, value in options.items()}
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Options that are not the same in all runs that have them, in their order.

    An option that the others lack, as it is their method's or another plugin's, isn't one: the
    name of that differs.
    """
    tables = [flat(config) for config in configs]
    names = dict.fromkeys(name for table in tables for name in table)
    return [n for n in names if len({own(table[n]) for table in tables if n in table}) > 1]


def usual(config: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of the options, as far as they are known here, by the names of `flat`.

    Of plugins that are not installed, or are known by their place alone, none is: nothing that a
    run's folder names is executed.
    """
    found = {name.replace("_", "-"): value for name, value in default_values().items()}
    words = {kind: word for word, kind in CHOOSING.items()}
    for plugin in config.get("plugins", ()):
        owner = words.get(plugin["kind"], plugin["name"])
        declared = declared_of(plugin["kind"], plugin["name"])
        if declared is None or f"{plugin['kind']}/{plugin['name']}" in config.get("classes", {}):
            continue
        deviations = declared.deviations if issubclass(declared, VariantConfig) else {}
        for key, name in option_names(declared).items():
            field = declared.model_fields[name]
            if name in deviations and field.default is None:
                found[f"{owner}.{key}"] = deviations[name].paper
            elif not field.is_required():
                found[f"{owner}.{key}"] = field.get_default(call_default_factory=True)
    return found


@lru_cache(maxsize=256)
def declared_of(kind: str, name: str) -> type[Config] | None:
    """The options that an installed plugin declares; None where it can't be loaded."""
    try:
        plugin: Any = Registry().load(kind, name)
    except ProtoflError:
        return None
    declared: type[Config] = getattr(plugin, "Config", Config)
    return declared


def options_section(config: Mapping[str, Any]) -> Section:
    """The configuration of one run: what isn't at its default, then all."""
    values, defaults = flat(config), usual(config)
    about = {name.replace("_", "-"): option.help for name, option in OPTIONS.items()}
    given = [n for n, v in values.items() if n not in defaults or own(v) != own(defaults[n])]
    rows = [(n, own(values[n]), _default(defaults, n)) for n in given]
    changed = Table(
        "Options that aren't at their default",
        ("option", "here", "default"),
        rows,
        words=frozenset({1, 2}),
    )
    every = Table(
        f"All {len(values)} options, as they were resolved",
        ("option", "value", "what it is"),
        [(name, own(value), about.get(name, "")) for name, value in values.items()],
        folded=True,
        words=frozenset({1, 2}),
    )
    return Section("Configuration", [changed, every])


def _default(defaults: Mapping[str, Any], name: str) -> str:
    if name not in defaults:
        return NONE
    return "depends" if defaults[name] is None else own(defaults[name])


def differences_table(names: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> Table | None:
    """What differs between runs: a row an option, or of many runs a row a run; None for nothing."""
    keys = differing(configs)
    if not keys:
        return None
    tables = [flat(config) for config in configs]
    rows = [[own(table[key]) if key in table else NONE for key in keys] for table in tables]
    if len(names) > len(keys):
        by_run = [(name, *row) for name, row in zip(names, rows, strict=True)]
        return Table("Options that differ, by run", ("run", *keys), by_run, sortable=True)
    by_option = [(key, *values) for key, values in zip(keys, zip(*rows, strict=True), strict=True)]
    return Table("Options that differ", ("option", *names), by_option)


# --- departures from papers -----------------------------------------------------------------------


def departures(config: Mapping[str, Any]) -> Section:
    """Where a run departs from the paper of its method: options, and hooks of other methods."""
    section = Section("Departures from the paper")
    section.parts += [f"{line}." for line in _mixed(config)]
    methods = [p["name"] for p in config.get("plugins", ()) if p["kind"] == "method"]
    rows: list[tuple[str, ...]] = []
    followed: list[str] = []
    for method in methods:
        declared = declared_of("method", method)
        if declared is None or f"method/{method}" in config.get("classes", {}):
            section.parts.append(
                f"{method} is not installed here, so whether it departs isn't known."
            )
            continue
        deviations = declared.deviations if issubclass(declared, VariantConfig) else {}
        set_ = config["options"].get(method, {})
        names = {name: key for key, name in option_names(declared).items()}
        forced = [
            (method, f"{names.get(n, n)} = {own(set_.get(names.get(n, n)))}", d)
            for n, d in deviations.items()
            if own(set_.get(names.get(n, n), d.paper)) != own(d.paper)
        ]
        rows += [(m, d.where, option, own(d.paper), d.note) for m, option, d in forced]
        if deviations and not forced:
            places = count(len(deviations), "place")
            followed.append(
                f"{method} follows its paper in all {places} in which its published code departs "
                "from it."
            )
        elif not deviations:
            followed.append(f"Of {method} no departure of published code is known.")
    if rows:
        columns = ("method", "where", "option here", "in the paper", "what differs")
        caption = f"In force: {count(len(rows), 'departure')} of published code"
        section.parts.append(Table(caption, columns, rows, words=frozenset({2, 4})))
    section.parts += followed
    return section


def _mixed(config: Mapping[str, Any]) -> Iterable[str]:
    """What was taken from other methods, or left out."""
    method = config["method"]
    for hook, donor in config.get("use", {}).items():
        yield f"{hook} is that of {donor}, in place of {method}'s"
    for item in config.get("add", ()):
        hook, sign, donor = str(item).partition("=")
        yield f"{hook} of {donor} is added" if sign else f"The loss term {item} is added"
    if dropped := config.get("drop"):
        yield f"Without the loss term {listed([str(term) for term in dropped])}"
    if wrappers := config.get("wrappers"):
        yield f"What is sent goes through {listed([str(one) for one in wrappers])}"
