"""The identity of a run: a hash of everything that its results depend on.

Two runs with the same identity and seed are equal in every round, on similar machines to the last
bit. The identity covers the options that differ from their defaults, digests of data and other
files, and the versions of plugins. It does not cover options of the machine, the screen or paths,
nor an engine that the run has chosen itself.
It also excludes seed, rounds and trials: trial k of seed s is the run with seed s + k, and a
shorter run is the beginning of a longer one.

An option with its default changes nothing, so a later version may add options. The hash only
finds candidates; `protofl.runs.results.changes` then compares every value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.resolution import parts_of
from protofl.hooks.models.optimisers import training_options
from protofl.system.files.checksums import sha256_of
from protofl.system.options.plugin_options import Config, code_file
from protofl.system.options.table import CHOOSING, OPTIONS, flag_of, usual_values


def file_digests(plan: Plan) -> dict[str, str]:
    """Return {option: SHA-256} of the files of a run's options.

    These are the files of ``--sampling``, ``--devices`` and ``--init``, those in folders of the
    model group (its ``folders``), and those that options of methods, the generator and the model
    group name, ``generator.weights``.

    Raises:
        UsageError: One can't be read.
    """
    files: dict[str, tuple[str, Path]] = {}
    for option in ("sampling", "devices"):
        choice = plan.choices.get(CHOOSING[option])
        if choice is not None and getattr(choice.plugin, "argument", None) == "path":
            files[option] = f"{flag_of(option)} {choice.text}", Path(choice.argument)
    group = plan.choices["model-group"]
    folders = group.instance.folders(group.config) if hasattr(group.plugin, "folders") else {}
    for name, folder in folders.items():
        inside = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
        files |= {f"models/{name}/{f.name}": (f"--models {group.text}", f) for f in inside}
    owners = {"generator": "generator", "models": "model-group"}
    configs = {o: plan.choices[kind].config for o, kind in owners.items() if kind in plan.choices}
    configs |= {member.name: member.config for member in plan.composition.methods}
    for owner, config in configs.items():
        for name, field in type(config).model_fields.items():
            value, option = getattr(config, name), f"{owner}.{field.alias or name}"
            if (path := value if isinstance(value, Path) else code_file(config, name)) is not None:
                inside = [f for f in sorted(path.glob("*")) if f.suffix in _OF_A_MODEL]
                read = {f"{option}/{f.name}": f for f in inside}
                read |= {option: path} if path.is_file() else {}
                files |= {key: (f"--set {option}={value}", file) for key, file in read.items()}
    digests = {}
    for option, (shown, path) in files.items():
        try:
            digests[option] = sha256_of(path)
        except OSError as error:
            raise UsageError(
                f"{shown} cannot be read: {error.strerror}", do="give the path of its file"
            ) from None
    return digests | plan.initial_digest


_OF_A_MODEL = (".safetensors", ".json", ".txt")
"""Files in a folder of models: weights, configuration and vocabulary."""

DIGITS = 16
"""Hexadecimal digits of an identity; names of folders have the first eight."""

ELSEWHERE = {chosen.chooses for chosen in OPTIONS.values() if not chosen.results}
"""Kinds of plugins on which results do not depend."""

OURS = "this program"
"""The distribution of classes that aren't installed; their version is a digest of their code."""

Defaults = Mapping[str, Mapping[str, Any]]
"""Defaults of plugins' options: {owner in ``--set``: {option: default}}."""


class Used(NamedTuple):
    """The values that results depend on.

    Attributes:
        options: {option of the run: its value}, those that differ from their defaults.
        of_plugins: {owner: {option: its value}}, likewise.
        files: {what: digest} of the data and of other files.
        plugins: {(kind, name): (distribution, version)}.
    """

    options: dict[str, Any]
    of_plugins: dict[str, dict[str, Any]]
    files: dict[str, str]
    plugins: dict[tuple[str, str], tuple[str, str]]


def defaults_of(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the defaults of the options of a run's plugins, and of its schedule."""
    parts = parts_of(plan.composition, plan.choices)
    defaults = {owner: _defaults_beside(choice.config) for owner, choice in parts.items()}
    return defaults | training_options({**vars(plan.settings), "options": {}})


def _defaults_beside(config: Config) -> dict[str, Any]:
    """Return the options with defaults for all but the variant and required options."""
    kind = type(config)
    fixed = {n for n, field in kind.model_fields.items() if field.is_required() or n == "variant"}
    try:
        usual = kind.model_validate({name: getattr(config, name) for name in fixed})
    except ValidationError:  # some that have no default by themselves have none together
        return {}
    result = usual.model_dump(mode="json", by_alias=True)
    if "variant" in result:
        result["variant"] = kind.model_fields["variant"].default
    return result


def used_in(config: Mapping[str, Any], defaults: Defaults) -> Used:
    """Return everything that the results of a run depend on.

    Args:
        config: What its ``config.json`` holds.
        defaults: Those of its plugins.
    """
    usual = usual_values(config)
    options = {
        key: _without_place(key, config[key], config)
        for key in OPTIONS.keys() & config.keys()
        if OPTIONS[key].results and key != "options" and config[key] != usual.get(key)
    }
    known = {file.partition("/")[0] for file in config.get("files", {})}
    elsewhere = {option for option in CHOOSING if not OPTIONS[option].results}
    elsewhere |= {*config.get("metrics", ())}
    if chose_engine(config):
        elsewhere |= {"engine"}
    of_plugins: dict[str, dict[str, Any]] = {}
    for owner, values in config.get("options", {}).items():
        owner_defaults = defaults.get(owner, {})
        kept = {
            k: v for k, v in values.items() if k not in owner_defaults or owner_defaults[k] != v
        }
        kept = {k: v for k, v in kept.items() if f"{owner}.{k}" not in known}
        if kept and owner not in elsewhere:
            of_plugins[owner] = kept
    data, files = config.get("data", {}), dict(config.get("files", {}))
    files |= {key: data[key] for key in ("digest", "public") if key in data}
    return Used(options, of_plugins, files, _plugins_in(config))


def chose_engine(config: Mapping[str, Any]) -> bool:
    """Return True if the run has chosen its engine, or will; it then counts like the machine."""
    return "engine_chosen" in config or config.get("engine") == "auto"


def _without_place(option: str, value: Any, config: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return a value without the path to a file whose digest is known."""
    known = {"dataset", *(file.partition("/")[0] for file in config.get("files", {}))}
    known |= {"public"} if "public" in config.get("data", {}) else set()
    if option == "init" and option in known:
        return ""
    return value.partition(":")[0] if option in known and isinstance(value, str) else value


def _plugins_in(config: Mapping[str, Any]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the plugins that results depend on; classes that are not installed have no version."""
    return {
        (p["kind"], p["name"]): (
            p["distribution"],
            "" if p["distribution"] == OURS else p["version"],
        )
        for p in config.get("plugins", ())
        if p["kind"] not in ELSEWHERE
    }


def identity_of(config: Mapping[str, Any], defaults: Defaults) -> str:
    """Return the identity of a run: `DIGITS` hexadecimal digits.

    Args:
        config: What its ``config.json`` holds.
        defaults: Those of its plugins.
    """
    used = used_in(config, defaults)
    # Defaults are left out, so that a kind which a later version adds does not change identities.
    values = usual_values(config)
    usual = {("engine", "eager")} | {
        (kind, str(values.get(option))) for option, kind in CHOOSING.items()
    }
    plugins = [[*which, *who] for which, who in used.plugins.items() if which not in usual]
    parts = [used.options, used.of_plugins, used.files, sorted(plugins)]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
