"""Pictures of a reproduction: curves, bars, splits and observations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protofl.errors import UsageError
from protofl.system.files.home import expand_user
from protofl_workbench.plots.bar_charts import bar_chart
from protofl_workbench.plots.client_charts import split_figure
from protofl_workbench.plots.curves import Curve, curve_chart
from protofl_workbench.plots.figure_files import save
from protofl_workbench.plots.image_grids import (
    images,
    images_of_runs,
    own_images,
    rounds_with_images,
)
from protofl_workbench.plots.observation_charts import CHARTS
from protofl_workbench.plots.style import ROW, Style, wrapped
from protofl_workbench.recorded.recorded_run import load_run
from protofl_workbench.reproductions.reproduction import OfImages, ReadFigure
from protofl_workbench.reproductions.reproduction_figures import figure_title, unit_of
from protofl_workbench.reproductions.reproduction_result import (
    CellResult,
    ReproductionResult,
    sentence,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: ReproductionResult, out: Path) -> list[Path]:
    """Write the pictures of a result.

    Args:
        result: Result of a reproduction of any kind but ``account``.
        out: The file. With several pictures, the name of the column or cell is added to each.

    Returns:
        The written files.

    Raises:
        UsageError: There is nothing to draw, or a file cannot be written.
    """
    figures = dict(figures_of(result))
    if not figures:
        raise UsageError(
            f"--out {out}: there is nothing to draw", do="do the runs first: leave --no-run out"
        )
    written = []
    for name, figure in figures.items():
        path = expand_user(out)
        if len(figures) > 1:
            path = path.with_stem(f"{path.stem}-{name}")
        save(figure, path)
        written.append(path)
    return written


def figures_of(result: ReproductionResult) -> Iterator[tuple[str, Figure]]:
    """Yield the pictures of a result, with the names of their columns or cells.

    A picture says below its axes which conditions are not the published ones.
    """
    for name, figure in _figures_of(result):
        if result.conditions:
            _add_caption(figure, sentence(result.conditions))
        yield name, figure


def _add_caption(figure: Figure, text: str) -> None:
    """Add lines below a figure, which becomes taller."""
    wide, high = figure.get_size_inches()
    text = wrapped(text, 0.95 * wide)
    figure.set_size_inches(wide, high + ROW * (text.count("\n") + 1))
    figure.supxlabel(text, x=0.01, ha="left", **Style().text())  # legends are at the top


def _figures_of(result: ReproductionResult) -> Iterator[tuple[str, Figure]]:
    if result.reproduction.kind == "bars":
        yield "", _bars(result)
    elif result.reproduction.kind == "table":
        if any(entry.difference is not None for entry in result.entries.values()):
            yield "", _differences(result)
    elif result.reproduction.kind == "curves":
        for column in result.columns:
            if any(result[row, column].curve for row in result.rows):
                yield column, _curves(result, column)
    elif result.reproduction.of_images.together:
        if any(entry.state == "done" for entry in result.entries.values()):
            yield "", _images_together(result)
    else:
        for entry in result.entries.values():
            name = "-".join(label for label in (entry.row, entry.column) if label)
            if entry.split is not None:
                yield name, _split(result, entry)
            elif entry.state == "done" and entry.folder is not None:
                yield name, _observed(result, entry.folder)


def _observed(result: ReproductionResult, folder: Path) -> Figure:
    """Draw the observations of a run."""
    how = result.reproduction.of_images
    if result.reproduction.draw != "images" or how == OfImages():
        return CHARTS[result.reproduction.draw](folder)
    there = rounds_with_images(folder)
    rounds = [number - 1 for number in how.rounds if number - 1 in there]
    classes = _classes(result, folder)
    return images(folder, rounds or None, classes=classes, width=_width(classes))


def _images_together(result: ReproductionResult) -> Figure:
    """Draw a row of images for each cell, from its last observed round."""
    reproduction = result.reproduction
    several = (len(result.rows) > 1, len(result.columns) > 1)
    runs = {}
    for entry in result.entries.values():
        if entry.state == "done" and entry.folder is not None:
            labels = (reproduction.rows[entry.row].label, reproduction.columns[entry.column].label)
            shown = [text for text, is_shown in zip(labels, several, strict=True) if is_shown]
            runs[", ".join(shown) or labels[0]] = entry.folder
    first = next(iter(runs.values()))
    client, classes = reproduction.of_images.client, _classes(result, first)
    return images_of_runs(runs, classes=classes, client=client, width=_width(classes))


def _width(classes: list[int] | None) -> str:
    return "column" if classes is not None and len(classes) <= 5 else "page"


def _classes(result: ReproductionResult, folder: Path) -> list[int] | None:
    """Return the classes to draw; None for all."""
    count, client = result.reproduction.of_images.classes, result.reproduction.of_images.client
    if count is None:
        return None
    if client is not None:
        return sorted([*own_images(folder, client)][:count])
    return sorted(load_run(folder).observed.images().classes.tolist())[:count]


def _curves(result: ReproductionResult, column: str) -> Figure:
    """Draw the rows of a column over rounds; rounds that some trials lack are left out."""
    curves = {}
    for row in result.rows:
        entry = result[row, column]
        trials = [dict(points) for points in entry.curve.values() if points]
        if trials:
            curves[_label(result, row, entry)] = _curve(trials)
    figure = result.reproduction.figure_of(result.rows[0], column)
    return curve_chart(curves, _axis(result, column), "rounds", whole=True, target=figure.target)


def _curve(trials: list[dict[int, float]]) -> Curve:
    """Return the curve of trials {round: figure}; shorter trials are drawn separately."""
    last = max(max(points) for points in trials)
    whole, others = ([p for p in trials if (max(p) == last) == long] for long in (True, False))
    rounds = sorted(set.intersection(*map(set, whole)))
    each = np.array([[points[n] for n in rounds] for points in whole])
    broken = [(_rounds(sorted(p)), np.array([p[n] for n in sorted(p)])) for p in others]
    return Curve(_rounds(rounds), each, tuple(broken))


def _rounds(numbers: list[int]) -> np.ndarray:
    return np.array([number + 1 for number in numbers], dtype=np.float64)


def _label(result: ReproductionResult, row: str, entry: CellResult) -> str:
    """Return a row's name in a picture, with the part that counts if the run is incomplete."""
    label = result.reproduction.rows[row].label
    return f"{label} ({entry.partial})" if entry.partial else label


def _axis(result: ReproductionResult, column: str) -> str:
    figure = result.reproduction.figure_of(result.rows[0], column)
    label = result.reproduction.columns[column].label
    return _with_unit(", ".join(text for text in (figure_title(figure), label) if text), figure)


def _with_unit(title: str, figure: ReadFigure) -> str:
    unit = unit_of(figure)
    return f"{title} ({unit})" if unit else title


def _bars(result: ReproductionResult) -> Figure:
    series: dict[str, dict[str, tuple[float, float]]] = {}
    for row in result.rows:
        label = result.reproduction.rows[row].label
        for column in result.columns:
            line = result.reproduction.columns[column]
            entry, name = result[row, column], ", ".join(filter(None, [line.group, line.label]))
            if entry.mean is not None:
                ours = _label(result, row, entry)
                series.setdefault(ours, {})[name] = (entry.mean, entry.std or 0.0)
            if (published := entry.published) is not None:
                theirs = series.setdefault(f"{label}, {result.origin}", {})
                theirs[name] = (published.mean, published.std or 0.0)
    figure = result.reproduction.figure_of(result.rows[0], result.columns[0])
    return bar_chart(series, _with_unit(figure_title(figure), figure), width="page")


def _differences(result: ReproductionResult) -> Figure:
    """Return bars of ours minus the published; whiskers are the standard deviations of both."""
    series: dict[str, dict[str, tuple[float, float]]] = {}
    for (row, column), entry in result.entries.items():
        if entry.difference is None or entry.published is None:
            continue
        line = result.reproduction.columns[column]
        name = _with_unit(", ".join(filter(None, [line.group, line.label])), entry.figure)
        name = name.replace(" (%)", " (points)")  # a difference of percentages
        spread = math.hypot(entry.std or 0.0, entry.published.std or 0.0)
        series.setdefault(name, {})[_label(result, row, entry)] = (entry.difference, spread)
    return bar_chart(series, f"ours − {result.origin}", width="page")


def _split(result: ReproductionResult, entry: CellResult) -> Figure:
    assert entry.split is not None
    counts, classes = entry.split
    title = f"{result.reproduction.place} · {result.name_of(entry)} · {'; '.join(result.facts)}"
    return split_figure(counts, list(classes), title)
