"""Table of all run options, lists derived from it, and validation of the options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_origin

from pydantic import BeforeValidator, ValidationError

from protofl.errors import UsageError, unknown
from protofl.system.options.option import declared
from protofl.system.options.settings import Settings

OPTIONS = {name: declared(field) for name, field in Settings.model_fields.items()}
"""The declarations of all options of a run, by name."""

FLAGS = {option.flag: name for name, option in OPTIONS.items() if option.flag}
"""Long names on the command line that differ from the name of the option, and these names."""

_IS_LIST = {n: get_origin(f.annotation) in (list, dict) for n, f in Settings.model_fields.items()}

CHOOSING = {
    name: option.chooses
    for name, option in OPTIONS.items()
    if option.chooses not in ("", "method") and not _IS_LIST[name]
}
"""Options that name the plugin of a kind; in ``--set`` they stand for the chosen plugin."""

SEVERAL = {
    name: option.chooses
    for name, option in OPTIONS.items()
    if option.chooses not in ("", "payload-transform") and _IS_LIST[name]
}
"""Options that name several plugins of a kind; ``--set`` addresses each plugin by its name."""

UPDATES = ("optimizer", "schedule")
"""Owners of options in ``--set`` that are not plugins."""

OWNERS = (*CHOOSING, *UPDATES)
"""Owners of options in ``--set`` that every run has."""

RESUMABLE = frozenset(n for n, o in OPTIONS.items() if o.resume and o.affects != "extent")
"""Options that may change on resume because they do not affect results."""

EXTENDED = tuple(n for n, o in OPTIONS.items() if o.resume and o.affects == "extent")
"""Options that may grow on resume: rounds and trials."""

UNRECORDED = frozenset(name for name, option in OPTIONS.items() if not option.recorded)
"""Options that ``config.json`` does not hold.

Exception: it holds backend and profile if the engine trains groups of clients, because the groups
depend on both, and the last bits depend on the groups. Then neither may change on resume.
"""


EXTENT = tuple(name for name, option in OPTIONS.items() if option.affects == "extent")
"""Options about the number of repetitions: rounds, trials, and the first seed."""


def flag_of(name: str) -> str:
    """Return the long name of an option on the command line, ``--lr-schedule``."""
    return "--" + (OPTIONS[name].flag or name).replace("_", "-")


def reads_text(name: str) -> bool:
    """Return True if an option is typed as a text in a form of its own, such as ``1/20``."""
    return any(isinstance(item, BeforeValidator) for item in Settings.model_fields[name].metadata)


def is_repeatable(name: str) -> bool:
    """Return True if an option is typed once for each of its values."""
    return _IS_LIST[name] and not reads_text(name)


def default_values() -> dict[str, Any]:
    """Return the defaults of all options that have one."""
    fields = Settings.model_fields.items()
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in fields
        if not field.is_required()
    }


def usual_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a run records of options that were not set.

    They are the defaults, except where the device decides: ``auto`` is the chosen engine, and on a
    GPU the precision is torch's own.

    Args:
        config: What ``config.json`` holds, perhaps without the facts that follow the options.
    """
    automatic = "engine_chosen" in config or config.get("engine") == "auto"
    return default_values() | {
        "engine": str(config["engine"]) if automatic else "eager",
        "precision": "tf32-conv" if "arithmetic" in config else "fp32",
    }


def check_names(values: Iterable[str], noun: str, others: Iterable[str] = ()) -> None:
    """Check that names are options of a run.

    Args:
        values: The names.
        noun: A noun for the names, for the error.
        others: Further valid names.

    Raises:
        UsageError: A name is unknown.
    """
    for key in values:
        if key not in OPTIONS:
            error = unknown(noun, key, {*OPTIONS, *FLAGS, *others}, "see: protofl run --help")
            if error.near.startswith("known:"):  # 80 names that are not near
                error.near = f"options of methods and other plugins: set={{{key!r}: VALUE}}"
            raise error


def build(values: Mapping[str, Any]) -> Settings:
    """Validate the options of a run.

    Args:
        values: Options by name.

    Raises:
        UsageError: An option is unknown, missing, or out of its range.
    """
    check_names(values, "option")
    needed = {name for name, field in Settings.model_fields.items() if field.is_required()}
    try:
        return Settings.model_validate(
            {key: value for key, value in values.items() if value != "" or key not in needed}
        )
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise UsageError(str(first["ctx"]["error"]), do="see: protofl run --help") from None
        name = str(first["loc"][0])
        if first["type"] == "missing":
            kind, method = OPTIONS[name].chooses, values.get("method") or "METHOD"
            raise UsageError(
                f"no {kind.replace('-', ' ')} is given",
                f"protofl run {method} --models GROUP",
                f"see: protofl list-plugins --kind {kind}",
            ) from None
        form = OPTIONS[name].metavar
        raise UsageError(
            f"{flag_of(name)} {first.get('input')} is not possible: {first['msg']}",
            f"expected {form}" if form else "",
            "see: protofl run --help",
        ) from None


def validated(name: str, value: Any) -> Any:  # noqa: ANN401 - options are of many types
    """Return the validated value of one option.

    Raises:
        UsageError: The value has another type or is out of range.
    """
    return validated_defaults({name: value})[name]


def validated_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return some options of a run, such as the defaults of a plugin, validated by themselves.

    Raises:
        UsageError: An option is unknown or out of its range.
    """
    settings = build({"method": "-", "models": "-", **values})
    return {name: getattr(settings, name) for name in values}


def untracked(settings: Settings) -> Settings:
    """Return the settings without trackers and their options, which only this process uses."""
    tracker_labels = {f"tracker/{name}" for name in settings.track}
    update = {
        "track": [],
        "options": {k: v for k, v in settings.options.items() if k not in settings.track},
        "classes": {k: v for k, v in settings.classes.items() if k not in tracker_labels},
    }
    return settings.model_copy(update=update)
