"""Axes of a sweep from ``--grid KEY=VALUE,…``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from protofl.errors import UsageError, unknown
from protofl.runs.request.request import Request
from protofl.system.options.parsing import read_names
from protofl.system.options.plugin_options import Config, option_names
from protofl.system.options.table import (
    CHOOSING,
    FLAGS,
    OPTIONS,
    SEVERAL,
    flag_of,
    is_repeatable,
    validated,
)

FORM = "KEY=VALUE,VALUE,…"

Point = Mapping[str, Any]
"""{key: value} of a point of the grid."""


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        key: Key as the user wrote it.
        values: The values.
        owner: Plugin of the option as in ``--set``; empty for an option of the run.
        option: Name of the option.
    """

    key: str
    values: tuple[Any, ...] = ()
    owner: str = ""
    option: str = ""

    @property
    def text(self) -> str:
        """The text after ``KEY=``."""
        return ",".join(map(str, self.values))


def read_axes(texts: Iterable[str]) -> list[Axis]:
    """Return the axes of ``--grid``.

    Raises:
        UsageError: An axis has another form, appears twice, or has a value twice.
    """
    axes: list[Axis] = []
    for text in texts:
        key, sign, values = (piece.strip() for piece in text.partition("="))
        if not (sign and key):
            raise UsageError(f"--grid {text}: not of the form {FORM}", do=f"write --grid {FORM}")
        if key in {axis.key for axis in axes}:
            raise UsageError(
                f"--grid {key} is given twice", do="write all of its values in one --grid"
            )
        axes.append(_axis(key, values))
    return axes


def _axis(key: str, text: str) -> Axis:
    values = tuple(value.strip() for value in text.split(","))
    if not all(values):
        empty = "no value" if len(values) == 1 else "an empty value"
        raise UsageError(f"--grid {key}={text}: {empty}", do=f"write --grid {FORM}")
    if twice := [value for value in values if values.count(value) > 1]:
        raise UsageError(f"--grid {key}={text}: {twice[0]} appears twice")
    return Axis(key, values)


# --- owners of options -----------------------------------------------------------------------


def resolved_axes(axes: Iterable[Axis], base: Request) -> list[Axis]:
    """Return the axes with the plugins and names of their options.

    Raises:
        UsageError: An option is unknown or ambiguous, or it does not take a value.
    """
    located = [_located(axis, base) for axis in axes]
    places = [(axis.owner, axis.option) for axis in located]
    for axis, place in zip(located, places, strict=True):
        first = located[places.index(place)]
        if first is not axis:
            raise UsageError(f"--grid {axis.key} is the same option as --grid {first.key}")
    return [_checked(axis) for axis in located]


def _located(axis: Axis, base: Request) -> Axis:
    owner, _, option = axis.key.rpartition(".")
    if owner == "run":
        return replace(axis, option=_of_run(axis, option))
    if owner:
        several = [n for n in SEVERAL if owner in read_names(base.options.get(n, []))]
        for name in [owner] if owner in CHOOSING else several:
            if not OPTIONS[name].results:
                do = f"give --set {axis.key}=… once, beside --grid"
                raise _no_axis(axis, _ALL_ONE, do=do)
        return replace(axis, owner=owner, option=option)
    plain = option.replace("-", "_")
    method = str(base.options.get("method") or "")
    plugin = base.registry.load("method", method) if method else None
    method_options = option_names(getattr(plugin, "Config", Config)) if method else {}
    is_run = plain in OPTIONS or plain in FLAGS
    if is_run and option in method_options:
        raise UsageError(
            f"--grid {axis.key}: the run and {method} both have this option",
            do=f"write --grid run.{option}=… or --grid {method}.{option}=…",
        )
    if is_run:
        return replace(axis, option=_of_run(axis, plain))
    if not method:
        raise UsageError(
            f"--grid {axis.key}: the plugin of this option is unknown",
            do="write --grid NAME.KEY=…",
        )
    if option not in method_options and option not in method_options.values():
        known = {*method_options, *_axes()}
        do = f"see: protofl show {method}, and protofl run --help"
        raise unknown(f"option of {method} or of a run in --grid:", option, known, do)
    return replace(axis, owner=method, option=option)


def _axes() -> list[str]:
    """Return the options of a run that may be axes, as users write them."""
    return [name.replace("_", "-") for name, option in OPTIONS.items() if option.sweep]


def _of_run(axis: Axis, option: str) -> str:
    option = option.replace("-", "_")
    name = FLAGS.get(option, option)
    if name not in OPTIONS:
        raise unknown("option of a run in --grid:", option, _axes(), "see: protofl run --help")
    if OPTIONS[name].sweep:
        return name
    near = difflib.get_close_matches(option.replace("_", "-"), _axes(), n=1, cutoff=0.5)
    raise _no_axis(axis, *_instead(name), near=f"did you mean {near[0]}?" if near else "")


_ALL_ONE = "results do not depend on it, so all points would be one run"


def _no_axis(axis: Axis, why: str, do: str, near: str = "") -> UsageError:
    what = f"--grid {axis.key}={axis.text}: {axis.key} cannot be an axis of a sweep: {why}"
    return UsageError(what, near, do)


def _instead(name: str) -> tuple[str, str]:
    """Return why an option of a run cannot be an axis, and what to do instead."""
    option = OPTIONS[name]
    if name == "options":
        return "each option of a plugin is an axis", "write --grid [NAME.]KEY=…"
    if option.affects == "extent":
        do = "give --trials N for N runs of each point, and --seed for the first seed"
        return "each point has a run for each seed", do
    if is_repeatable(name) and option.results:
        return "its values are lists", "do a sweep for each value"
    why = _ALL_ONE if not option.results else "each run of a sweep has one trial"
    return why, f"give {flag_of(name)} once, beside --grid"


def _checked(axis: Axis) -> Axis:
    """Return an axis with converted values; options of plugins are checked later."""
    if axis.owner or axis.option in {"method", *CHOOSING}:
        return axis
    values = [_value(axis, value) for value in axis.values]
    for place, value in enumerate(values):
        if value in values[:place]:
            first = axis.values[values.index(value)]
            raise UsageError(
                f"--grid {axis.key}={axis.text}: {first} and {axis.values[place]} are equal"
            )
    return replace(axis, values=tuple(values))


def _value(axis: Axis, value: Any) -> Any:  # noqa: ANN401 - options are of many types
    try:
        return validated(axis.option, value)
    except UsageError as error:
        error.what = f"--grid {axis.key}={value}: {error.what.partition(': ')[2] or error.what}"
        raise
