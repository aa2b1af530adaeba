"""Traces: devices from a file, measured or from another simulator.

A CSV file begins with a line of column names; a file whose first line begins with ``{`` is JSON
Lines, an object a line. Empty lines and lines that begin with ``#`` are left out. A line is a
device:

============  =====================================================================
gflops        billions of floating-point operations a second in training, 1e-9 … 1e12
download      Mbit/s from the server, 1e-9 … 1e12
upload        Mbit/s to the server, 1e-9 … 1e12
latency       milliseconds that a bit is under way, each way, 0 or more
available     when it is there, in seconds of virtual time: ``0-3600 7200-9000`` in
              CSV, ``[[0, 3600], [7200, 9000]]`` in JSON Lines, ascending and apart,
              the first moment within, the last one not; empty or left out: always
============  =====================================================================

``assign=order`` gives client i the i-th device, and there must be as many as clients;
``assign=random`` draws a device for each client by seed. With ``period`` what is available repeats
itself: traces of a day serve for runs of a week.
"""

from __future__ import annotations

import csv
import difflib
import functools
import itertools
import json
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import protofl as pf
from protofl_plugins.shared.text_files import read_lines, stamp

FIGURES = ("gflops", "download", "upload", "latency")
COLUMNS = (*FIGURES, "available")
WHAT = "trace"


@dataclass(frozen=True)
class Row:
    """A device of a trace.

    Attributes:
        figures: Its figures by their names in the file.
        at_first: Whether it is there before the first change.
        changes: When it comes and leaves, in turn; empty where it stays what it is.
    """

    figures: dict[str, float]
    at_first: bool
    changes: tuple[float, ...]

    def there(self, seconds: float, period: float | None) -> tuple[bool, float]:
        """Return whether the client is available at a moment, and when this changes next."""
        cycle = math.floor(seconds / period) if period else 0
        if period and (cycle + 1) * period <= seconds:  # rounded down: the period's end has come
            cycle += 1
        begin = cycle * (period or 0.0)
        # Moments are compared as they are returned: one that has come is never still ahead.
        place = bisect_right(self.changes, seconds, key=lambda change: begin + change)
        here = self.at_first ^ (place % 2 == 1)
        if place < len(self.changes):
            return here, begin + self.changes[place]
        return here, (cycle + 1) * period + self.changes[0] if period and self.changes else math.inf


class Trace:
    """The devices that a CSV or JSON Lines file lists."""

    argument = "path"

    class Config(pf.Config):
        """Options: --set devices.OPTION=VALUE."""

        path: Path = pf.Field(description="the file")
        assign: Literal["order", "random"] = pf.Field(
            "order", description="order: client i has the i-th device; random: each draws one"
        )
        period: float | None = pf.Field(
            None,
            gt=0,
            le=1e12,
            description="seconds after which what is available repeats itself; none: never",
        )

    @pf.hookimpl
    def device(self, client: int, num_clients: int, seed: int, config: Config) -> dict[str, float]:
        """The figures of the client's line."""
        rows, assigned = _assigned(config, num_clients, seed)
        figures = rows[assigned[client]].figures
        return {
            "flops": 1e9 * figures["gflops"],
            "download": 1e6 * figures["download"],
            "upload": 1e6 * figures["upload"],
            "latency": 1e-3 * figures["latency"],
        }

    @pf.hookimpl
    def presence(
        self, num_clients: int, seconds: float, seed: int, config: Config
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the availability of each client's line; None if all are always available."""
        rows, assigned = _assigned(config, num_clients, seed)
        if all(row.at_first and not row.changes for row in rows):
            return None
        availability = [row.there(seconds, config.period) for row in rows]
        there, until = (np.array(column) for column in zip(*availability, strict=True))
        return there[assigned], until[assigned]


def _assigned(config: Trace.Config, clients: int, seed: int) -> tuple[list[Row], np.ndarray]:
    """Return the devices, and the device of each client."""
    rows = _read(str(config.path), config.period, stamp(config.path, WHAT))
    if config.assign == "random":
        return rows, pf.numpy_stream(seed, "trace").integers(len(rows), size=clients)
    if len(rows) < clients:
        raise pf.UsageError(
            f"the trace {config.path} has {len(rows)} devices, and there are {clients} clients",
            do=f"take --clients {len(rows)}, or --set devices.assign=random: each client draws one",
        )
    return rows, np.arange(clients)


@functools.lru_cache(maxsize=4)
def _read(path: str, period: float | None, stamp: tuple[int, int]) -> list[Row]:
    """Return the devices of a file; cached until the file changes."""
    lines = [
        (number, line)
        for number, line in read_lines(path, WHAT)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise pf.UsageError(f"the trace {path} is empty", do=f"write {', '.join(COLUMNS)}")
    read = _json_lines if lines[0][1].lstrip().startswith("{") else _csv_lines
    rows = []
    for number, values in read(path, lines):
        try:
            rows.append(_row(values, period))
        except ValueError as error:
            raise pf.UsageError(
                f"{path}, line {number}: {error}", do="see: protofl show trace"
            ) from None
    if not rows:
        raise pf.UsageError(f"the trace {path} lists no device", do="write a device in a line")
    return rows


Line = tuple[int, dict[str, Any]]


def _json_lines(path: str, lines: list[tuple[int, str]]) -> Iterator[Line]:
    for number, line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise pf.UsageError(
                f"{path}, line {number} is not a JSON object", do="write an object in a line"
            )
        _check_columns(f"{path}, line {number}", values)
        yield number, values


def _csv_lines(path: str, lines: list[tuple[int, str]]) -> Iterator[Line]:
    number, head = lines[0]
    names = [name.strip() for name in next(csv.reader([head]))]
    _check_columns(f"{path}, line {number}", names)
    for number, line in lines[1:]:
        values = next(csv.reader([line]))
        if len(values) != len(names):
            raise pf.UsageError(
                f"{path}, line {number} has {len(values)} values, and there are "
                f"{len(names)} columns",
                f"the columns are: {', '.join(names)}",
            )
        yield number, dict(zip(names, values, strict=True))


def _check_columns(place: str, names: Collection[str]) -> None:
    """Check that the columns are those of a trace, each once.

    Raises:
        UsageError: One is missing, unknown, or there twice.
    """
    for name in names:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            raise pf.UsageError(
                f"{place}: there is no column {name!r}",
                f"did you mean {near[0]!r}?" if near else f"columns: {', '.join(COLUMNS)}",
            )
        if [*names].count(name) > 1:
            raise pf.UsageError(f"{place}: the column {name!r} stands there twice")
    missing = [name for name in FIGURES if name not in names]
    if missing:
        raise pf.UsageError(f"{place}: {missing[0]!r} is missing", f"has: {', '.join(names)}")


def _row(values: dict[str, Any], period: float | None) -> Row:
    """Return the device of a line's values.

    Raises:
        ValueError: One of them can't be.
    """
    figures = {name: _number(name, values[name]) for name in FIGURES}
    for name, value in figures.items():
        least, most = (0, 1e15) if name == "latency" else (1e-9, 1e12)
        if not least <= value <= most:
            raise ValueError(f"{name} is {value:g}, expected {least:g} … {most:g}")
    changes = _changes(values.get("available"), period)
    if not changes:
        return Row(figures, True, ())
    if period and changes[0] == 0 and changes[-1] == period:
        return Row(figures, True, changes[1:-1])  # it stays from one period to the next
    return Row(figures, False, changes)


def _changes(available: Any, period: float | None) -> tuple[float, ...]:  # noqa: ANN401
    """Return when a device comes and leaves, in turn; empty if it is always available.

    Raises:
        ValueError: That is not written as it should be, or not ascending.
    """
    if available is None or available == "" or available == []:
        return ()
    spans = available
    if isinstance(available, str):
        spans = [word.split("-", 1) for word in available.split()]
    if not isinstance(spans, list) or not all(isinstance(s, list) and len(s) == 2 for s in spans):
        raise ValueError(f"available is {available!r}, not FROM-UNTIL FROM-UNTIL …")
    changes = tuple(_number("available", moment) for span in spans for moment in span)
    for one, two in itertools.pairwise((0.0, *changes)):
        if two < one or (two == one and two):
            raise ValueError(f"available: {two:g} follows {one:g}: spans are ascending and apart")
    if period and changes[-1] > period:
        raise ValueError(
            f"available: {changes[-1]:g} is after the end of the period of {period:g} s"
        )
    return changes


def _number(name: str, value: Any) -> float:  # noqa: ANN401 - it may be anything
    """Return a finite number.

    Raises:
        ValueError: It is none.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        result = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}, which is not a number") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} is {value!r}, which is not finite")
    return result
