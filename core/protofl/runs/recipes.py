"""Recipes: options of a published run, the plugins that they need, and how they are written."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from protofl.errors import UsageError
from protofl.hooks.discovery.kinds import Plugin
from protofl.hooks.discovery.registry import Registry, installed
from protofl.system.consent import check_recorded
from protofl.system.files.tables import parse_toml, write_table
from protofl.system.options.parsing import (
    as_typed,
    merge_nested,
    merge_options,
    options_in,
    parse_options,
    read_names,
)
from protofl.system.options.plugin_options import without_consents
from protofl.system.options.settings import Settings
from protofl.system.options.table import CHOOSING, OPTIONS, SEVERAL, check_names

if TYPE_CHECKING:
    from protofl.hooks.plugin.members import Choice


PluginNames = set[tuple[str, str]]
"""Plugins by kind and name."""


def named_in(options: Mapping[str, Any]) -> PluginNames:
    """Return the plugins that options of a run name.

    Args:
        options: Options by the names of `protofl.system.options.settings`.
    """
    methods = {str(options.get("method") or ""), *options.get("use", {}).values()}
    for text in options.get("add", ()):
        hook, sign, method = text.partition("=")
        methods.add(method.partition(".")[0] if sign else hook.partition(".")[0])
    result = {("method", name) for name in methods if name}
    result |= {("payload-transform", name) for name in options.get("transforms", ())}
    for option, kind in SEVERAL.items():
        result |= {(kind, name) for name in read_names(options.get(option, []))}
    for option, kind in CHOOSING.items():
        name = str(options.get(option) or "").partition(":")[0]
        result |= {(kind, name)} if name not in ("", "auto", "none") else set()
    return result


def missing(named: PluginNames) -> list[tuple[str, str]]:
    """Return the plugins that no installed distribution has."""
    there = {kind: {plugin.name for plugin in installed(kind)} for kind, _ in named}
    return sorted((kind, name) for kind, name in named if name not in there[kind])


def lacking(distribution: str) -> list[str]:
    """Return the requirements of a distribution that are not installed."""
    result = []
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    for text in requirements:
        requirement, _, marker = text.partition(";")
        name = re.split(r"[\s<>=!~\[(]", requirement.strip())[0]
        if "extra" not in marker and not any(importlib.metadata.distributions(name=name)):
            result.append(requirement.strip())
    return result


def check_needs(
    owner: str, needs: Mapping[str, str], named: PluginNames, distribution: str = ""
) -> None:
    """Check that the plugins that a recipe names are installed.

    Args:
        owner: The recipe, for the error.
        needs: {plugin: the distribution that has it}, as far as the recipe says.
        named: The plugins.
        distribution: The distribution of a published recipe.

    Raises:
        UsageError: A plugin is not installed; the error says what to install.
    """
    for kind, name in missing(named):
        required = " ".join(lacking(distribution)) if distribution else ""
        near = f"{distribution} requires {required}" if required else ""
        install = needs.get(name) or required
        if not install:
            install = f"protofl-{name}"
            near = f"the recipe does not name the distribution; {install} is the usual name"
        raise UsageError(
            f"{owner} needs the {kind} {name!r}, which is not installed",
            near,
            f"install it: pip install {install!r}" if " " in install else f"pip install {install}",
        )


def read_needs(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the table ``needs`` of a recipe; empty without one.

    Raises:
        UsageError: It is no table of texts.
    """
    needs = values.get("needs", {})
    if not (isinstance(needs, dict) and all(isinstance(v, str) for v in needs.values())):
        do = 'write [needs] and NAME = "DISTRIBUTION"'
        raise UsageError("its needs are not a table of plugins and distributions", do=do)
    return needs


class Recipe:
    """A published recipe; each file becomes a subclass with its content.

    Attributes:
        values: Its options by the names of `protofl.system.options.settings`.
        needs: {plugin: the distribution that has it}, as far as the file says.
        text: The file.
    """

    values: ClassVar[dict[str, Any]] = {}
    needs: ClassVar[dict[str, str]] = {}
    text: ClassVar[str] = ""


def load_recipe(plugin: Plugin) -> type[Recipe]:
    """Read a published recipe; a broken one raises any exception."""
    package = plugin.target.partition(":")[0]
    importlib.import_module(package)
    file = importlib.resources.files(package) / f"{plugin.name}.toml"
    return recipe_of(file.read_text(encoding="utf-8"))


def recipe_of(text: str) -> type[Recipe]:
    """Return the recipe in a TOML file.

    Raises:
        UsageError: It names no method, or something that is no option.
    """
    values = parse_toml(text)
    needs = read_needs(values)
    options = parse_options(options_in(values))
    check_names(options, "option")
    if not options.get("method"):
        raise UsageError("it names no method")
    about = str(values.get("description") or describe(options))
    attributes = {"__doc__": about, "values": options, "needs": needs, "text": text}
    return type("Recipe", (Recipe,), attributes)


def with_recipe(options: dict[str, Any], registry: Registry | None = None) -> dict[str, Any]:
    """Return options with those of their recipe as defaults, if the method names a recipe.

    Args:
        options: Options by the names of `protofl.system.options.settings`.
        registry: The plugins that the run can use; None for those that the options allow.

    Raises:
        UsageError: The recipe is broken, or a method has its name too.
    """
    name = str(options.get("method") or "")
    if f"method/{name}" in options.get("classes", ()):
        return options
    registry = registry or Registry.of(options)
    known = {plugin.name for plugin in registry.plugins("recipe")}
    if name not in known:
        return options
    recipe: Any = registry.load("recipe", name)
    if (method := recipe.values["method"]) in known:
        which = "itself" if method == name else f"the recipe {method!r}"
        raise UsageError(f"recipe {name!r} names {which} as its method", do="name a method in it")
    plugin = registry.find("recipe", name)
    check_recorded(recipe.values, f"recipe {name}")
    over = {key: value for key, value in options.items() if key != "method"}
    origin = {key: getattr(plugin, key) for key in ("name", "version", "distribution")}
    merged = of_method(merge_options(recipe.values, over) | {"recipe": origin})
    owner = f"recipe {name!r} of {plugin.distribution} {plugin.version}"
    named = named_in(recipe.values) & named_in(merged)
    check_needs(owner, recipe.needs, named, plugin.distribution)
    return merged


def of_method(options: dict[str, Any]) -> dict[str, Any]:
    """Return options in which plugin options under the recipe's name belong to its method."""
    recipe = options.get("recipe", {}).get("name")
    plugin_options = options.get("options", {})
    if recipe not in plugin_options:
        return options
    others = {name: values for name, values in plugin_options.items() if name != recipe}
    method_options = {str(options["method"]): plugin_options[recipe]}
    return options | {"options": merge_nested(others, method_options)}


# --- writing --------------------------------------------------------------------------------------


def write_recipe(path: Path, options: Mapping[str, Any]) -> None:
    """Write options of a run as a recipe, TOML or JSON by the file's ending.

    Args:
        path: The file.
        options: Options by name; a recipe keeps those that say what is trained and on which data.
    """
    values = {"description": describe(options), **written(options)}
    comment = "Run it: protofl run --config FILE. Publish it: docs/how-to/write-a-recipe.md"
    write_table(path, values, "--save-recipe", comment)


def typed_in(
    settings: Settings, parts: Mapping[str, Choice], typed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that were given to a run, as a recipe has them.

    Options of plugins are numbers where the command line has words. A recipe keeps no options or
    classes of plugins that it does not name, such as metrics. It keeps no consent, which nobody can
    give for another.

    Args:
        settings: The run's settings.
        parts: The run's plugins by the words under which their options stand in ``--set``.
        typed: The options that were given.
    """
    plugin_options = settings.options
    configs = {name: type(choice.config) for name, choice in parts.items()}
    dropped = [name for name, option in OPTIONS.items() if not option.recipe]
    unnamed = {
        name for option in SEVERAL if option in dropped for name in getattr(settings, option)
    }
    unnamed |= CHOOSING.keys() & dropped
    options = {
        name: {key: plugin_options.get(name, {}).get(key, value) for key, value in values.items()}
        for name, values in without_consents(typed.get("options", {}), configs).items()
        if name not in unnamed
    }
    kinds = {OPTIONS[name].chooses for name in dropped}
    classes = {
        k: place for k, place in settings.classes.items() if k.partition("/")[0] not in kinds
    }
    return {**typed, "options": options, "classes": classes}


def written(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as a file has them: ``set``, ``with``, ``local_loss=METHOD.TERM``."""
    table = {key: options[key] for key in ("method", *options) if key in OPTIONS}
    table = {k: v for k, v in table.items() if OPTIONS[k].recipe and v not in (None, [], {})}
    use, options_ = table.pop("use", {}), table.pop("options", {})
    if "transforms" in table:
        table["with"] = table.pop("transforms")
    if use:
        table["use"] = dict(use)
    set_ = {f"{name}.{key}": v for name, values in options_.items() for key, v in values.items()}
    return as_typed(table) | ({"set": set_} if set_ else {})


def describe(options: Mapping[str, Any]) -> str:
    """Describe a composition in a line."""
    parts = [str(options["method"])]
    parts += [f"{hook} of {donor}" for hook, donor in options.get("use", {}).items()]
    parts += [f"{' of '.join(item.split('='))} added" for item in options.get("add", ())]
    parts += [f"{term} dropped" for term in options.get("drop", ())]
    parts += [f"wrapped in {name}" for name in options.get("transforms", ())]
    return ", ".join(parts)
