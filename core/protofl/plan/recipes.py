"""Recipes: options of a run as data, in a file of one's own or published under a name.

A distribution publishes one as a TOML file ``NAME.toml`` in a package, and names the package::

    [project.entry-points."protofl.recipes"]
    fedsa-tgp = "my_package"

``protofl run NAME`` then begins with the file's options; the command line wins over them. The same
file serves ``protofl run --config FILE``, and ``protofl run … --save-recipe FILE`` writes one.
"""

from __future__ import annotations

import importlib
import importlib.resources
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from protofl.errors import UsageError, unknown
from protofl.plan.options import SPELLED, expand_set, merge_nested, merge_options, settings_from
from protofl.plan.settings import Settings, parse_toml, read_config_file

if TYPE_CHECKING:
    from protofl.plugin.kinds import Plugin

NOT_SAVED = {
    "recipe",
    "block",
    "seed",
    "trials",
    "hold_split",
    "device",
    "deterministic",
    "engine",
    "backend",
    "workers",
    "client_store",
    "server_threads",
    "data_dir",
    "eval_every",
    "eval_clients",
    "checkpoint_every",
    "on_bad_upload",
    "dry_step",
    "profile",
}
"""Options that belong to a run or a machine, which `write_recipe` leaves out."""


class Recipe:
    """A published recipe; its subclasses, one for a file, carry what that holds.

    Attributes:
        values: Its options by the names of `protofl.plan.settings`.
        text: The file.
    """

    values: ClassVar[dict[str, Any]] = {}
    text: ClassVar[str] = ""


def load_recipe(plugin: Plugin) -> type[Recipe]:
    """Read a published recipe; what is wrong with it is any exception."""
    package = plugin.target.partition(":")[0]
    importlib.import_module(package)
    file = importlib.resources.files(package) / f"{plugin.name}.toml"
    text = file.read_text(encoding="utf-8")
    values = {key.replace("-", "_"): value for key, value in parse_toml(text).items()}
    description = str(values.pop("description", ""))
    options = options_of(values)
    for key in options:
        if key not in Settings.model_fields:
            raise unknown("option", key, SPELLED | Settings.model_fields.keys())
    if not options.get("method"):
        raise UsageError("it names no method")
    about = description or describe(options)
    return type("Recipe", (Recipe,), {"__doc__": about, "values": options, "text": text})


# --- options from files and recipes ---------------------------------------------------------------


def options_of(values: Mapping[str, Any], method: str = "") -> dict[str, Any]:
    """A file's options by the names of `protofl.plan.settings`, ``set`` in its place.

    Args:
        values: What the file holds.
        method: The method to which bare keys of ``set`` belong, instead of the file's own.
    """
    set_: dict[str, Any] = {}
    options = settings_from(values, set_, file=True)
    if set_:
        own = expand_set(set_, method or str(options.get("method", "")))
        options["options"] = merge_nested(options.get("options", {}), own)
    return options


def with_file(
    path: Path, options: dict[str, Any], out: Path | None
) -> tuple[dict[str, Any], Path | None, bool]:
    """The options with those of a --config file below them; its ``out`` and ``quiet``."""
    values = read_config_file(path)
    file_out, quiet = values.pop("out", None), bool(values.pop("quiet", False))
    found = options_of(values, str(options.get("method") or ""))
    for key in found:
        if key not in Settings.model_fields:
            known = SPELLED | Settings.model_fields.keys() | {"out", "quiet"}
            raise unknown(f"option in --config {path}:", key, known, "see: protofl run --help")
    if out is None and file_out:
        out = Path(str(file_out))
    return merge_options(found, options), out, quiet


def with_recipe(options: dict[str, Any]) -> dict[str, Any]:
    """The options with those of the recipe below them whose name stands for the method.

    Raises:
        UsageError: The recipe is broken, or a method has its name too.
    """
    from protofl.plugin.registry import Registry

    name = options.get("method")
    registry = Registry(options.get("block") or ())
    if name not in {plugin.name for plugin in registry.plugins("recipe")}:
        return options
    assert name is not None
    recipe: Any = registry.load("recipe", name)
    plugin, method = registry.find("recipe", name), str(recipe.values["method"])
    over = {key: value for key, value in options.items() if key != "method"}
    if "options" in over:
        over["options"] = of_method(over["options"], name, method)
    origin = {key: getattr(plugin, key) for key in ("name", "version", "distribution")}
    return merge_options(recipe.values, over) | {"recipe": origin}


def of_method(
    options: Mapping[str, dict[str, Any]], recipe: str, method: str
) -> dict[str, dict[str, Any]]:
    """Options of plugins; those under the recipe's name are its method's."""
    others = {key: values for key, values in options.items() if key != recipe}
    own = {method: dict(options[recipe])} if recipe in options else {}
    return merge_nested(others, own)


# --- writing --------------------------------------------------------------------------------------


def check_recipe_path(path: Path) -> None:
    """Whether a recipe can be written there.

    Raises:
        UsageError: There is a file, or no folder.
    """
    if path.suffix not in (".toml", ".json"):
        raise UsageError(f"--save-recipe {path}: neither .toml nor .json", do="name it NAME.toml")
    if path.exists():
        raise UsageError(f"--save-recipe {path}: it is there already", do="choose another name")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--save-recipe {path}: there is no such folder")


def write_recipe(path: Path, options: Mapping[str, Any]) -> None:
    """Write options of a run as a recipe, TOML or JSON by the file's ending.

    Args:
        path: The file.
        options: Options by the names of `protofl.plan.settings`; `NOT_SAVED` are left out.
    """
    values = {"description": describe(options), **spelled(options)}
    if path.suffix == ".json":
        text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    else:
        text = _HEADER + to_toml(values)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save-recipe {path} can't be written: {error}") from None


_HEADER = "# Run it: protofl run --config FILE. Publish it: docs/recipes.md\n\n"


def spelled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as one writes them in a file: ``set``, ``with``, ``local_loss=METHOD.TERM``."""
    kept = {k: v for k, v in options.items() if k not in NOT_SAVED and v not in (None, [], {})}
    found: dict[str, Any] = {"method": kept.pop("method")}
    use, options_ = kept.pop("use", {}), kept.pop("options", {})
    found |= {key: value for key, value in kept.items() if key in Settings.model_fields}
    if "add" in found:
        found["add"] = [f"local_loss={term}" for term in found["add"]]
    if "drop" in found:
        found["drop"] = [f"local_loss.{term}" for term in found["drop"]]
    if "wrappers" in found:
        found["with"] = found.pop("wrappers")
    if use:
        found["use"] = dict(use)
    set_ = {f"{name}.{key}": v for name, values in options_.items() for key, v in values.items()}
    return found | ({"set": set_} if set_ else {})


def describe(options: Mapping[str, Any]) -> str:
    """A composition in a line."""
    parts = [str(options["method"])]
    parts += [f"{hook} of {donor}" for hook, donor in options.get("use", {}).items()]
    parts += [f"{term} added" for term in options.get("add", ())]
    parts += [f"{term} dropped" for term in options.get("drop", ())]
    parts += [f"wrapped in {name}" for name in options.get("wrappers", ())]
    return ", ".join(parts)


def to_toml(values: Mapping[str, Any]) -> str:
    """Texts, numbers, truth values, lists of them and tables of them as TOML."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_toml(value)}" for key, value in plain.items()]
    for key, table in values.items():
        if isinstance(table, Mapping):
            own = [f"{_key(inner)} = {_toml(value)}" for inner, value in table.items()]
            lines += ["", f"[{_key(key)}]", *own]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _toml(value: Any) -> str:  # noqa: ANN401 - options are of many types
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if value is None:
        return '"none"'  # as --set writes it
    return json.dumps(str(value), ensure_ascii=False)
