"""A study's pictures: curves and bars by the room of plots, splits as in the papers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protofl import plots
from protofl.data.picture import split_figure
from protofl.errors import UsageError
from protofl.plots.bar_charts import bar_chart
from protofl.plots.curves import Curve, curve_chart
from protofl.plots.saving import save
from protofl.studies.figures import unit_of, words_of
from protofl.studies.result import Entry, StudyResult
from protofl.studies.study import Figure as Read

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: StudyResult, out: Path) -> list[Path]:
    """Write the pictures of a result.

    Args:
        result: Of a study of the kind ``curves``, ``bars`` or ``pictures``.
        out: The file; of several pictures each has the name of its column, or cell, behind it.

    Returns:
        The files.

    Raises:
        UsageError: There is nothing to draw, or a file can't be written.
    """
    found = dict(figures_of(result))
    if not found:
        raise UsageError(
            f"--out {out}: there is nothing to draw", do="do the runs first: leave --no-run out"
        )
    written = []
    for name, figure in found.items():
        path = out.expanduser()
        if len(found) > 1:
            path = path.with_stem(f"{path.stem}-{name}")
        save(figure, path)
        written.append(path)
    return written


def figures_of(result: StudyResult) -> Iterator[tuple[str, Figure]]:
    """The pictures of a result as matplotlib figures, by the names of their columns or cells."""
    if result.study.kind == "bars":
        yield "", _bars(result)
    elif result.study.kind == "curves":
        for column in result.columns:
            if any(result[row, column].curve for row in result.rows):
                yield column, _curves(result, column)
    else:
        for entry in result.entries.values():
            name = "-".join(part for part in (entry.row, entry.column) if part)
            if entry.split is not None:
                yield name, _split(result, entry)
            elif entry.state == "done" and entry.folder is not None:
                drawn = getattr(plots, result.study.draw.replace("-", "_"))
                yield name, drawn(entry.folder)


def _curves(result: StudyResult, column: str) -> Figure:
    """A column's rows over rounds; rounds that not all trials have are left out."""
    curves = {}
    for row in result.rows:
        entry = result[row, column]
        trials = [dict(points) for points in entry.curve.values() if points]
        if trials:
            rounds = sorted(set.intersection(*map(set, trials)))
            each = np.array([[points[n] for n in rounds] for points in trials])
            x = np.array([n + 1 for n in rounds], dtype=np.float64)
            curves[result.study.rows[row].label] = Curve(x, each)
    figure = result.study.figure_of(result.rows[0], column)
    return curve_chart(curves, _axis(result, column), "rounds", whole=True, target=figure.target)


def _axis(result: StudyResult, column: str) -> str:
    figure = result.study.figure_of(result.rows[0], column)
    label = result.study.columns[column].label
    return _with_unit(", ".join(part for part in (words_of(figure), label) if part), figure)


def _with_unit(words: str, figure: Read) -> str:
    unit = unit_of(figure)
    return f"{words} ({unit})" if unit else words


def _bars(result: StudyResult) -> Figure:
    series: dict[str, dict[str, tuple[float, float]]] = {}
    for row in result.rows:
        label = result.study.rows[row].label
        for column in result.columns:
            line = result.study.columns[column]
            entry, name = result[row, column], ", ".join(filter(None, [line.group, line.label]))
            if entry.mean is not None:
                series.setdefault(label, {})[name] = (entry.mean, entry.std or 0.0)
            if (published := entry.published) is not None:
                theirs = series.setdefault(f"{label}, published", {})
                theirs[name] = (published.mean, published.std or 0.0)
    figure = result.study.figure_of(result.rows[0], result.columns[0])
    return bar_chart(series, _with_unit(words_of(figure), figure), width="page")


def _split(result: StudyResult, entry: Entry) -> Figure:
    assert entry.split is not None
    counts, classes = entry.split
    title = f"{result.study.place} · {result.name_of(entry)} · {'; '.join(result.facts)}"
    return split_figure(counts, list(classes), title)
