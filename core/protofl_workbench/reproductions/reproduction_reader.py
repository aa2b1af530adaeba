"""Reader of reproduction files: TOML to a `Reproduction`, errors with file and key.

The keys are described in docs/how-to/write-a-reproduction.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from protofl.system.options.table import FLAGS, OPTIONS
from protofl_workbench.reproductions.cell_options import files_in
from protofl_workbench.reproductions.reproduction import (
    DRAWINGS,
    EMPTY,
    KINDS_OF_REPRODUCTION,
    UNKNOWN,
    KindOfReproduction,
    OfImages,
    ReadFigure,
    Reproduction,
    Scale,
    TableLine,
    Tuning,
    published_figure,
)
from protofl_workbench.reproductions.reproduction_figures import READERS, UNITS
from protofl_workbench.reproductions.reproduction_files import File, Load, open_file

OF_LINE = ("label", "group", "figure", "figures", "note", "published", "columns")


def read_reproduction(
    text: str, name: str, file: str, load: Load, origin: str = ""
) -> Reproduction:
    """Read a reproduction.

    Args:
        text: Content of the file.
        name: Name of the reproduction.
        file: Name of the file in errors.
        load: Loads the file that ``extends`` names.
        origin: Distribution and version, or the file.

    Raises:
        UsageError: The file is not a reproduction; the error names file and key.
    """
    source_file = open_file(text, file, load)
    return replace(_reproduction(source_file, name), origin=origin, text=text, source=source_file)


def _reproduction(file: File, name: str) -> Reproduction:
    if "title" not in file.values:
        file.fail((), "the reproduction has no title", do='write title = "…", or extend this file')
    kind: KindOfReproduction = file.first("kind") or "table"
    if kind not in KINDS_OF_REPRODUCTION:
        file.unknown(("kind",), "kind of reproduction", kind, KINDS_OF_REPRODUCTION)
    variants = _scales(file, "variants")
    variant = file.first("variant") or ""
    if variant and variant not in variants:
        file.unknown(("variant",), "variant", variant, variants)
    options = file.merged("options")
    _check_options(file, ("options",), options)
    rows, columns = _rows(file, kind), _columns(file)
    draw, of_images = _drawing(file, kind)
    reproduction = Reproduction(
        name=name,
        title=file.values["title"],
        rows=rows,
        columns=columns,
        paper=file.first("paper") or "",
        place=file.values.get("place", ""),
        kind=kind,
        figure=_figure(file, ("figure",), file.first("figure")) or ReadFigure(),
        options=options,
        published=_published(file, rows, columns),
        scales={"paper": Scale("paper"), **_scales(file, "scales")},
        variants=variants,
        variant=variant,
        chosen=tuple(file.joined("chosen")),
        derived=file.expect(("derived",), file.values.get("derived", False), bool),
        draw=draw,
        of_images=of_images,
        tuning=_tuning(file, kind, rows, columns),
        files=file.expect(("files",), file.merged("files"), dict[str, str]),
    )
    _check_cells(file, reproduction)
    return reproduction


# --- rows, columns and published figures ----------------------------------------------------------


def _rows(file: File, kind: str) -> dict[str, TableLine]:
    """Return the rows of [published] and [rows], described in any of the files."""
    row_file = _file_with_rows(file)
    described = file.merged("rows")
    names = [
        *dict.fromkeys([*row_file.values.get("published", {}), *row_file.values.get("rows", {})])
    ]
    if kind == "benchmark":
        names = [*dict.fromkeys([*names, *_own_methods()])]
    if not names and kind == "pictures":
        return {"": TableLine("", "")}
    if not names:
        file.fail((), "no rows", do="name them in [published] or in [rows]")
    published = row_file.values.get("published")
    for name in names:
        row = described.get(name, {})
        there = published is None or name in published
        if not there and not (isinstance(row, dict) and row.get("published") is False):
            file.unknown(("rows", name), "row of [published]", name, published)
        if name not in described and name not in row_file.values.get("rows", {}):
            _check_is_method(file, name, described)
    return {name: _line(file, "rows", name, described.get(name, {})) for name in names}


def _file_with_rows(file: File) -> File:
    """Return the first reproduction that lists rows; files without a title only describe them."""
    current: File | None = file
    while current and ("title" not in current.values or not current.values.keys() & _ROWS):
        current = current.below
    return current or file


_ROWS = {"rows", "published"}


def _check_is_method(file: File, name: str, described: Mapping[str, Any]) -> None:
    if name not in _methods():
        known = {*_methods(), *described}
        file.unknown(("published", name), "row or method", name, known)


@lru_cache(maxsize=1)
def _methods() -> frozenset[str]:
    from protofl.hooks.discovery.registry import installed

    return frozenset(plugin.name for plugin in installed("method"))


@lru_cache(maxsize=1)
def _own_methods() -> tuple[str, ...]:
    """Return the methods of this distribution, which are the rows of a benchmark.

    Defences are methods that only donate hooks. They lie in a package of their own, so that nothing
    has to be loaded to leave them out.
    """
    from protofl.hooks.discovery.registry import installed

    found = [p for p in installed("method") if p.distribution == "protofl"]
    return tuple(p.name for p in found if ".defences." not in p.target)


def _columns(file: File) -> dict[str, TableLine]:
    columns = file.first("columns")
    if not columns:
        return {"": TableLine("", "")}
    return {name: _line(file, "columns", name, values) for name, values in columns.items()}


def _line(file: File, table: str, name: str, values: Any) -> TableLine:  # noqa: ANN401 - from a file
    path = (table, name)
    file.expect(path, values, dict[str, Any])
    for key in ("label", "group", "note"):
        file.expect((*path, key), values.get(key, ""), str)
    options = {key: value for key, value in values.items() if key not in OF_LINE}
    _check_options(file, path, options, OF_LINE)
    if table == "rows" and "method" not in options and name in _methods():
        options["method"] = name
    return TableLine(
        name,
        values.get("label", name),
        values.get("group", ""),
        options,
        _figure(file, (*path, "figure"), values.get("figure")),
        _figures(file, path, values.get("figures", {})),
        values.get("note", ""),
        columns=_by_column(file, path, values.get("columns", {})),
    )


def _figures(file: File, path: tuple[str, ...], table: Any) -> dict[str, ReadFigure]:  # noqa: ANN401
    path = (*path, "figures")
    columns = file.first("columns") or {}
    if not isinstance(table, dict) or (table and path[0] != "rows"):
        file.fail(path, "figures: expected a table {column: figure} of a row")
    for column in table:
        if column not in columns:
            file.unknown((*path, column), "column", column, columns)
    figures = {column: _figure(file, (*path, column), value) for column, value in table.items()}
    return {column: figure for column, figure in figures.items() if figure is not None}


def _by_column(file: File, path: tuple[str, ...], table: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the options of a row's cells, {column: options}."""
    path = (*path, "columns")
    columns = file.first("columns") or {}
    if not isinstance(table, dict) or (table and path[0] != "rows"):
        file.fail(path, "columns: expected a table {column: options} of a row")
    for column, options in table.items():
        if column not in columns:
            file.unknown((*path, column), "column", column, columns)
        _check_options(file, (*path, column), file.expect((*path, column), options, dict[str, Any]))
    return table


def _check_options(
    file: File, path: tuple[str, ...], options: Mapping[str, Any], further: tuple[str, ...] = ()
) -> None:
    for key in options:
        name = key.replace("-", "_")
        if name not in OPTIONS and name not in FLAGS:
            known = {*OPTIONS, *FLAGS, *further}
            file.unknown((*path, key), "option", key, known)
        if name in ("set", "use"):
            file.expect((*path, key), options[key], dict[str, Any])
        _check_consent(file, (*path, key), name, options[key])


def _check_consent(file: File, path: tuple[str, ...], name: str, value: Any) -> None:  # noqa: ANN401
    """Check that code and folders that a reproduction names were allowed by the user."""
    from protofl.runs.request.plugin_names import places_in
    from protofl.system.consent import check_code, check_output

    if places := places_in({name: value}).get(name):
        check_code({".".join(path): places}, file.where(path))
    if name == "data_dir":
        check_output(".".join(path), value, file.where(path), Path(file.name).parent)


def _published(
    file: File, rows: Mapping[str, TableLine], columns: Mapping[str, TableLine]
) -> dict[tuple[str, str], str]:
    result: dict[tuple[str, str], str] = {}
    for row, text in _file_with_rows(file).values.get("published", {}).items():
        path = ("published", row)
        cells = file.expect(path, text, str).replace(" ±", "±").replace("± ", "±").split()
        if len(cells) != len(columns):
            named = ", ".join(columns) if any(columns) else "none, so one figure is expected"
            file.fail(path, f"{row} has {len(cells)} figures", f"columns: {named}")
        for column, cell in zip(columns, cells, strict=True):
            if cell not in (EMPTY, UNKNOWN) and published_figure(cell) is None:
                near = f"86.82±0.26, 2.05M, {EMPTY} (left empty) or {UNKNOWN} (not printed)"
                file.fail(path, f"{cell!r} is not a figure", near)
            result[row, column] = cell
    return result


# --- figures, scales and pictures -----------------------------------------------------------------


def _figure(file: File, path: tuple[str, ...], description: Any) -> ReadFigure | None:  # noqa: ANN401
    if description is None:
        return None
    values = {"read": description} if isinstance(description, str) else description
    figure: ReadFigure = file.expect(path, values, ReadFigure)
    if figure.read not in READERS:
        file.unknown(path, "figure", figure.read, READERS)
    reader = READERS[figure.read]
    if reader.needs_target and figure.target is None:
        file.fail(path, f"{figure.read} needs a target", do="write target = 0.5")
    if figure.unit is not None and figure.unit not in UNITS:
        file.unknown(path, "unit", figure.unit, UNITS)
    return figure


def _scales(file: File, table: str) -> dict[str, Scale]:
    result = {}
    for name, values in file.merged(table).items():
        path = (table, name)
        file.expect(path, values, dict[str, Any])
        if table == "scales" and name == "paper":
            file.fail(path, "the scale paper is the reproduction itself", do="choose another name")
        options = {k.replace("-", "_"): v for k, v in values.items() if k != "about"}
        _check_options(file, path, options, ("about",))
        result[name] = Scale(name, str(values.get("about", "")), options)
    return result


def _drawing(file: File, kind: str) -> tuple[str, OfImages]:
    """Read ``draw``: the picture, and how it is drawn if it shows images."""
    drawing = file.first("draw")
    if drawing is None and kind != "pictures":
        return "", OfImages()
    values = {**drawing} if isinstance(drawing, dict) else {"picture": drawing}
    picture = str(values.pop("picture", None) or "nothing")
    if picture not in DRAWINGS:
        file.unknown(("draw",), "picture", picture, DRAWINGS)
    of_images: OfImages = file.expect(("draw",), values, OfImages)
    if values and picture != "images":
        key = next(iter(values))
        file.fail(("draw", key), f"{key} is an option of images, and the picture is {picture}")
    return picture, of_images


def _tuning(
    file: File, kind: str, rows: Mapping[str, TableLine], columns: Mapping[str, TableLine]
) -> Tuning | None:
    """Read ``[tuning]`` of a benchmark, and check it at every scale."""
    values = file.merged("tuning")
    if kind != "benchmark":
        if values:
            file.fail(
                ("tuning",), "tuning: only a benchmark is tuned", do='write kind = "benchmark"'
            )
        return None
    if not values:
        file.fail((), "a benchmark has a table [tuning]", do="write its rates, factors and rounds")
    tuning: Tuning = file.expect(("tuning",), values, Tuning)
    for scale, changes in tuning.scales.items():
        path = ("tuning", "scales", scale)
        if scale not in _scales(file, "scales"):
            file.unknown(path, "scale", scale, _scales(file, "scales"))
        given = {key: value for key, value in values.items() if key != "scales"}
        file.expect(path, given | changes, Tuning)
    for row in [*tuning.weights, *(r for c in tuning.scales.values() for r in c.get("rows", ()))]:
        if row not in rows:
            file.unknown(("tuning",), "row", row, rows)
    for column in tuning.columns:
        if column not in columns:
            file.unknown(("tuning", "columns"), "column", column, columns)
    return tuning


def _check_cells(file: File, reproduction: Reproduction) -> None:
    for table, lines in (("rows", reproduction.rows), ("columns", reproduction.columns)):
        for line in lines.values():
            _check_files(file, (table, line.name), line.options, reproduction.files)
    _check_files(file, ("options",), reproduction.options, reproduction.files)
    for row, column in ((r, c) for r in reproduction.rows for c in reproduction.columns):
        if reproduction.is_empty(row, column):
            continue
        options = (
            reproduction.options,
            reproduction.columns[column].options,
            reproduction.rows[row].options,
        )
        if not any("method" in o for o in options):
            do = 'name the row as a method, or write method = "…" in it'
            file.fail(("rows", row), f"{row or 'the reproduction'} has no method", do=do)


def _check_files(
    file: File, path: tuple[str, ...], options: Mapping[str, Any], files: Mapping[str, str]
) -> None:
    """Check that options name only files of ``[files]``."""
    for name in files_in(options):
        if name not in files:
            file.unknown(path, "file of [files]", name, files)
