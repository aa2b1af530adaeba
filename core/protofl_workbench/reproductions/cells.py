"""Cells of a reproduction: what a user selects and changes, and the options of each cell's run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError, unknown
from protofl.system.options.table import OWNERS
from protofl_workbench.reproductions.cell_options import files_in, options_by_run, with_files
from protofl_workbench.reproductions.reproduction import (
    DRAWINGS,
    ReadFigure,
    Reproduction,
    Scale,
    Values,
)
from protofl_workbench.reproductions.reproduction_figures import READERS

if TYPE_CHECKING:
    from protofl.runs.request.request import Request

NESTED = ("set", "use")


@dataclass(frozen=True)
class Change:
    """A user's changes to all cells of a reproduction.

    Attributes:
        scale: Name of the scale.
        variant: Reading of the paper; None for the reproduction's default, ``paper`` or empty for
            the equations.
        only: Selected rows; empty for all.
        columns: Selected columns; empty for all.
        rounds: Rounds of every run; None for the reproduction's numbers.
        trials: Trials of every run; None for the reproduction's numbers.
        datasets: {data set of the reproduction: replacement}.
        files: {file of the reproduction: path}.
        options: Further options of all runs by their long names; ``set`` is a mapping.
    """

    scale: str = "paper"
    variant: str | None = None
    only: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rounds: int | None = None
    trials: int | None = None
    datasets: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    options: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A selected cell.

    Attributes:
        row: Name of the row.
        column: Name of the column.
        figure: The figure that is read.
        options: Options of the run as users write them; empty for a cell without a run.
        rounds: Rounds that count.
        empty: True if the paper leaves the cell empty.
        said: Plugin options that the user gave for this cell, which may include consents.
        lacks: {file that the user has not given: description}.
        file: The reproduction's file, whose code needs consent; empty for a reproduction built in
            Python.
    """

    row: str
    column: str
    figure: ReadFigure
    options: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    empty: bool = False
    said: dict[str, Any] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    file: str = ""

    @property
    def key(self) -> str:
        """Key of the run; equal for cells that are read from the same run."""
        return json.dumps(self.options, sort_keys=True, default=str)

    @property
    def name(self) -> str:
        """``ROW, COLUMN``."""
        return ", ".join(text for text in (self.row, self.column) if text)

    def request(self) -> Request:
        """Return the request of the run.

        Raises:
            UsageError: The form of an option is wrong.
        """
        from protofl.runs.request.request import read_request
        from protofl.system.options.parsing import parse_options

        request = read_request(self.options, file=self.file)
        # A reproduction's file cannot give consent.
        said = parse_options({"set": self.said}, str(request.options["method"]))
        return replace(request, home=Path(self.file).parent, said=said.get("options", {}))


def cells_of(reproduction: Reproduction, change: Change) -> list[Cell]:
    """Return the selected cells, row by row.

    Args:
        reproduction: The reproduction.
        change: Scale, client sampler and changes of the user.

    Raises:
        UsageError: The reproduction has no such scale, row, column, data set or file.
    """
    if change.scale not in reproduction.scales:
        raise unknown(f"scale of {reproduction.name}", change.scale, reproduction.scales)
    variant = reproduction.variant if change.variant is None else change.variant
    if variant and variant != "paper" and variant not in reproduction.variants:
        raise unknown(f"variant of {reproduction.name}", variant, {"paper", *reproduction.variants})
    rows = _selected(reproduction, "--only", "row", reproduction.rows, change.only)
    columns = _selected(reproduction, "--columns", "column", reproduction.columns, change.columns)
    _allow(change)
    layers = [reproduction.variants[variant]] if variant in reproduction.variants else []
    layers.append(reproduction.scales[change.scale])
    used = {
        str(options.get("dataset"))
        for row in reproduction.rows
        for column in reproduction.columns
        if (options := _scaled(reproduction, row, column, layers))
    }
    for word in change.datasets:
        if word not in used:
            raise unknown(f"data set of {reproduction.name} at scale {change.scale}", word, used)
    for name in change.files:
        if name not in reproduction.files:
            raise unknown(f"file of {reproduction.name} in --file", name, reproduction.files)
    cells = [_cell(reproduction, row, column, layers, change) for row in rows for column in columns]
    return _with_user_options(cells, flat(change.options.get("set", {})))


def _allow(change: Change) -> None:
    """Allow the code that the user names on the command line."""
    from protofl.runs.request.plugin_names import places_in
    from protofl.system.consent import allow

    for options in (change.options, *({"dataset": text} for text in change.datasets.values())):
        for places in places_in(options).values():
            allow(places)


def _with_user_options(cells: list[Cell], said: dict[str, Any]) -> list[Cell]:
    """Add the plugin options that the user gave to the cells that have these plugins."""
    if not said:
        return cells
    options_of_cells = iter(
        options_by_run(said, [cell.request() for cell in cells if cell.options])
    )
    return [
        replace(cell, options=merged(cell.options, {"set": cell_options}), said=cell_options)
        if cell.options and (cell_options := next(options_of_cells))
        else cell
        for cell in cells
    ]


def _selected(
    reproduction: Reproduction, flag: str, noun: str, known: Iterable[str], chosen: tuple[str, ...]
) -> list[str]:
    known = [*known]
    for name in chosen:
        if name not in known:
            raise unknown(f"{noun} of {reproduction.name} in {flag}", name, filter(None, known))
    return [name for name in known if not chosen or name in chosen]


def _cell(
    reproduction: Reproduction, row: str, column: str, layers: list[Scale], change: Change
) -> Cell:
    figure, empty = reproduction.figure_of(row, column), reproduction.is_empty(row, column)
    if empty:
        return Cell(row, column, figure, empty=True)
    options = _scaled(reproduction, row, column, layers)
    lacks = {n: reproduction.files[n] for n in files_in(options) if n not in change.files}
    options = with_files(options, change.files)
    options = merged(options, {k: v for k, v in change.options.items() if k != "set"})
    options["dataset"] = change.datasets.get(str(options.get("dataset")), options.get("dataset"))
    if change.trials is not None:
        options["trials"] = change.trials
    if change.rounds is not None:
        options["rounds"] = change.rounds
    if measure := READERS[figure.read].measure:
        options["measure"] = [*dict.fromkeys([*options.get("measure", []), measure])]
    if reproduction.kind == "pictures" and (sight := DRAWINGS[reproduction.draw]):
        options["observe"] = [*dict.fromkeys([*options.get("observe", []), sight])]
    options = {key: value for key, value in options.items() if value not in (None, {}, [])}
    file = reproduction.source.name if reproduction.source else ""
    return Cell(row, column, figure, options, options.get("rounds"), lacks=lacks, file=file)


def _scaled(
    reproduction: Reproduction, row: str, column: str, layers: list[Scale]
) -> dict[str, Any]:
    """Return the options of a cell after variant and scale."""
    options: dict[str, Any] = {}
    for layer in (
        reproduction.options,
        reproduction.columns[column].options,
        reproduction.rows[row].options,
        reproduction.rows[row].columns.get(column, {}),
    ):
        options = merged(options, layer)
    for scale in layers:
        options = replaced(options, scale)
    return options


def merged(under: Values, over: Values) -> dict[str, Any]:
    """Merge options; `over` wins. ``set`` and ``use`` are merged key by key."""
    result = {key.replace("-", "_"): value for key, value in under.items()}
    for key, value in over.items():
        key = key.replace("-", "_")
        if key in NESTED:
            result[key] = {**flat(result.get(key, {})), **flat(value)}
        else:
            result[key] = value
    return result


def replaced(options: Values, scale: Scale) -> dict[str, Any]:
    """Apply the replacements of a scale or a variant to options.

    If a plugin is replaced, its options are removed.
    """
    result = merged({}, options)
    for key, value in scale.options.items():
        if key == "set":
            continue
        was, result[key] = _plugin(result.get(key)), _replacement(result.get(key), value)
        if key in OWNERS and was != _plugin(result[key]) and "set" in result:
            prefix = f"{key}."
            result["set"] = {k: v for k, v in result["set"].items() if not k.startswith(prefix)}
    if "set" in scale.options:
        result["set"] = _replaced_set(result, flat(scale.options["set"], replacements=True))
    return result


def _plugin(value: Any) -> str:  # noqa: ANN401 - options are of many types
    return str(value).partition(":")[0]


def _replacement(here: Any, value: Any) -> Any:  # noqa: ANN401 - options are of many types
    if not isinstance(value, Mapping):
        return value
    text = str(here).lower() if isinstance(here, bool) else str(here)
    return value.get(text, value.get("*", here))


def _replaced_set(options: Values, over: Values) -> dict[str, Any]:
    """Replace options of the plugins that the cell has; other plugins' options do not apply."""
    result = flat(options.get("set", {}))
    here = {*OWNERS, str(options.get("method")), *map(str, options.get("with", ()))}
    here |= {*map(str, options.get("use", {}).values()), *map(str, options.get("metrics", ()))}
    here |= {str(item).partition("=")[2].partition(".")[0] for item in options.get("add", ())}
    for key, value in over.items():
        owner = key.rpartition(".")[0]
        bare = key.rpartition(".")[2] if owner == options.get("method") else ""
        known = bare if bare in result else key
        if known in result or (owner and owner in here):
            result[known] = _replacement(result.get(known), value)
    return {key: value for key, value in result.items() if value is not None}


def flat(values: Any, *, replacements: bool = False) -> dict[str, Any]:  # noqa: ANN401 - of a file
    """Return plugin options as ``OWNER.KEY``, because TOML reads ``a.b = 1`` as a table.

    Args:
        values: The table.
        replacements: True if tables below ``OWNER.KEY`` are replacements, {old: new}.

    Raises:
        UsageError: It is not a table.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"set: expected a table of options, got {values!r}")
    result: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and not (replacements and ("." in key or "*" in value))
        result |= {f"{key}.{k}": v for k, v in value.items()} if nested else {key: value}
    return result
