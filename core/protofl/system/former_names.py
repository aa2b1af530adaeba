"""Former names of options, kinds, plugins and Python names, and their current names.

The tables below are the only place that knows them. Each door by which a name comes in asks this
module: the command line, Python, files of options, run folders, entry points and hooks. A former
name works like the current one, and one line says so, once per process. Names in run folders are
replaced without a line, because there is nothing to change.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from protofl.errors import UsageError

OPTIONS = {
    "world": "devices",
    "selection": "sampling",
    "wrappers": "transforms",
    "dry_step": "dry_run",
}
"""Options of a run: command line, arguments, files. Some are owners in ``--set OWNER.KEY`` too."""

KINDS = {
    "world": "device-model",
    "selection": "client-sampler",
    "wrapper": "payload-transform",
    "study": "reproduction",
}
"""Kinds of plugins; their entry-point groups follow."""

GROUPS = {
    "device-model": ("protofl.worlds",),
    "client-sampler": ("protofl.selections",),
    "payload-transform": ("protofl.wrappers",),
    "reproduction": ("protofl.studies",),
}
"""{kind: its former entry-point groups}."""

PLUGINS = {("engine", "captured"): "cuda-graphs"}
"""{(kind, former name): name}."""

ARGUMENTS = {("local_loss", "given"): "constants"}
"""{(hook, former argument): argument}."""

PUBLIC = {
    "": {"Given": "LossData", "study": "reproduction"},
    "events": {"DryStepStarted": "DryRunStarted"},
    "testing": {
        "WorldContract": "DeviceModelContract",
        "SelectionContract": "ClientSamplerContract",
        "WrapperContract": "PayloadTransformContract",
    },
}
"""{public module of protofl: {former name: name}}."""

TENSORS = {"knowledge/": "global_state/"}
"""Starts of names of the server's tensors in files of weights."""


class RenamedWarning(FutureWarning):
    """A former name was used."""


show: Callable[[str], None] | None = None
"""Shows a line to the user; None for a warning. The command line sets it."""

_told: set[tuple[str, str]] = set()


def tell(former: str, current: str) -> None:
    """Tell the user that a name has changed, once per process."""
    if (former, current) in _told:
        return
    _told.add((former, current))
    line = f"{former} is now {current}"
    if show is None:
        warnings.warn(line, RenamedWarning, stacklevel=3)
    else:
        show(line)


def flag(option: str) -> str:
    """Return an option's name on the command line; ``--with`` has kept its own."""
    return option if option in ("wrappers", "transforms") else f"--{option.replace('_', '-')}"


# --- options --------------------------------------------------------------------------------------


def current_key(key: str, *, quiet: bool = True) -> str:
    """Return ``OPTION``, ``OWNER.KEY`` or ``OPTION/FILE`` with the current name of its option."""
    match = re.match(r"[\w-]+", key)
    former = match[0].replace("-", "_") if match else ""
    if former not in OPTIONS:
        return key
    new = OPTIONS[former]
    if not quiet:
        tell(flag(former), flag(new))
    return new + key[len(former) :]


def current_options(values: Mapping[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """Return options of a run with current names; see `OPTIONS`.

    Args:
        values: Options as users or files name them, or what ``config.json`` holds.
        quiet: True for a run folder, whose names nobody has to change.

    Raises:
        UsageError: An option has its former and its current name.
    """
    current: dict[str, Any] = {}
    for key, value in values.items():
        name = current_key(key, quiet=quiet)
        if value is None and name in current:
            continue
        if name != key and values.get(name) is not None and value is not None:
            raise UsageError(f"{key} and {name} are the same option", do=f"give {name} alone")
        current[name] = _VALUES[name](value, quiet) if name in _VALUES else value
    return current


def _keys(values: Any, quiet: bool) -> Any:  # noqa: ANN401 - whatever a user or a file has
    if isinstance(values, Mapping):
        return {current_key(str(key), quiet=quiet): value for key, value in values.items()}
    if isinstance(values, str):
        return current_key(values, quiet=quiet) if "." in values.partition("=")[0] else values
    return [*(_keys(v, quiet) for v in values)] if isinstance(values, (list, tuple)) else values


def _engine(value: Any, quiet: bool) -> Any:  # noqa: ANN401
    return current_plugin("engine", value, quiet=quiet) if isinstance(value, str) else value


def _labels(values: Any, quiet: bool) -> Any:  # noqa: ANN401
    if isinstance(values, Mapping):
        return {current_label(str(key), quiet=quiet): value for key, value in values.items()}
    if isinstance(values, str):
        return ",".join(current_label(label, quiet=quiet) for label in values.split(","))
    if isinstance(values, (list, tuple)):
        return [current_label(v, quiet=quiet) if isinstance(v, str) else v for v in values]
    return values


def _plugins(values: Any, quiet: bool) -> Any:  # noqa: ANN401
    if not isinstance(values, list):
        return values
    return [_plugin(v) if isinstance(v, Mapping) else v for v in values]


def _plugin(about: Mapping[str, Any]) -> dict[str, Any]:
    kind, name = current_kind(str(about.get("kind")), quiet=True), about.get("name")
    current = {**about, "kind": kind, "name": current_plugin(kind, str(name), quiet=True)}
    return {key: value for key, value in current.items() if key in about}


_VALUES = {
    "options": _keys,
    "set": _keys,
    "set_by": _keys,
    "files": _keys,
    "engine": _engine,
    "block": _labels,
    "class": _labels,
    "classes": _labels,
    "plugins": _plugins,
}
"""Options, and entries of ``config.json``, whose values have such names."""


# --- plugins --------------------------------------------------------------------------------------


def current_kind(kind: str, *, quiet: bool = False) -> str:
    """Return the current name of a kind of plugins."""
    if kind not in KINDS:
        return kind
    if not quiet:
        tell(f"kind {kind}", KINDS[kind])
    return KINDS[kind]


def current_plugin(kind: str, name: str, *, quiet: bool = False) -> str:
    """Return the current name of a plugin."""
    if (kind, name) not in PLUGINS:
        return name
    if not quiet:
        tell(f"{kind} {name}", PLUGINS[kind, name])
    return PLUGINS[kind, name]


def current_label(label: str, *, quiet: bool = False) -> str:
    """Return ``KIND/NAME…`` with the current names; any other text unchanged."""
    kind, slash, name = label.partition("/")
    if not slash or not (kind in KINDS or (kind, name) in PLUGINS):
        return label
    kind = current_kind(kind, quiet=quiet)
    return f"{kind}/{current_plugin(kind, name, quiet=quiet)}"


def current_argument(hook: str, argument: str) -> str:
    """Return the current name of a hook's argument."""
    return ARGUMENTS.get((hook, argument), argument)


# --- the command line and Python ------------------------------------------------------------------


def current_words(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line with current options, kinds and labels."""
    flags = {flag(old): flag(new) for old, new in OPTIONS.items() if old != "wrappers"}
    flags["--no-dry-step"] = "--no-dry-run"
    current: list[str] = []
    for argument in arguments:
        name, sign, value = argument.partition("=")
        before = current[-1] if current else ""
        if name == "--dry-step":
            tell(name, "the default")
            continue
        if name in flags:
            tell(name, flags[name])
            argument = flags[name] + sign + value
        elif before == "--kind" or (name == "--kind" and sign):
            argument = f"--kind={current_kind(value)}" if sign else current_kind(argument)
        elif before in ("--class", "--block") or not argument.startswith("-"):
            kind, slash, rest = argument.partition("/")
            inner = rest.partition("/")[0].partition(".")
            if kind == "hook" and inner[0] in KINDS:
                argument = f"hook/{current_kind(inner[0])}.{inner[2]}"
            elif (slash and current[:1] in (["show"], ["check"])) or before in (
                "--class",
                "--block",
            ):
                argument = current_label(argument)
        current.append(argument)
    return current


def public_name(module: str, name: str) -> str | None:
    """Return the current name of a public Python name that was renamed; None for others.

    Args:
        module: A key of `PUBLIC`.
        name: The name.
    """
    new = PUBLIC[module].get(name)
    if new is not None:
        place = ".".join(filter(None, ("protofl", module)))
        tell(f"{place}.{name}", f"{place}.{new}")
    return new


# --- files ----------------------------------------------------------------------------------------


def current_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's tensors of a file by their current names."""
    current = {}
    for name, value in tensors.items():
        for former, new in TENSORS.items():
            if name.startswith(former):
                name = new + name[len(former) :]
        current[name] = value
    return current


def as_hashed(
    options: Mapping[str, Any],
    of_plugins: Mapping[str, Any],
    files: Mapping[str, str],
    plugins: Iterable[Sequence[str]],
) -> list[Any]:
    """Return what identifies a run under the names of version 0.1.0.

    An identity is the hash of these values. It stays the same when a name changes, so that runs
    which were recorded before are found again.

    Args:
        options: {option: value}.
        of_plugins: {owner: {option: value}}.
        files: {what: digest}.
        plugins: Kind, name, distribution and version of each plugin.
    """
    old = {new: former for former, new in OPTIONS.items()}
    kinds = {new: former for former, new in KINDS.items()}
    names = {(kind, new): former for (kind, former), new in PLUGINS.items()}

    def first(text: str) -> str:
        match = re.match(r"\w+", text)
        return old.get(match[0], match[0]) + text[match.end() :] if match else text

    values = {old.get(key, key): value for key, value in options.items()}
    if "engine" in values:
        values["engine"] = names.get(("engine", values["engine"]), values["engine"])
    return [
        values,
        {old.get(owner, owner): plugin_options for owner, plugin_options in of_plugins.items()},
        {first(name): digest for name, digest in files.items()},
        sorted([kinds.get(k, k), names.get((k, n), n), *who] for k, n, *who in plugins),
    ]
