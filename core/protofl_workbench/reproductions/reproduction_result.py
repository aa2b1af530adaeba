"""Result of a reproduction: our figures and the published ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protofl.system.formatting import count
from protofl_workbench.recorded.row_tables import frame_of
from protofl_workbench.reproductions.reproduction import (
    EMPTY,
    UNKNOWN,
    USUAL,
    PublishedFigure,
    ReadFigure,
    Reproduction,
    published_figure,
)
from protofl_workbench.reproductions.reproduction_figures import READERS, figure_title, unit_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


State = Literal["done", "empty", "missing", "failed", "broken off", "not run", "not reached"]


@dataclass(frozen=True)
class CellResult:
    """A cell of a result.

    Attributes:
        row: Name of the row.
        column: Name of the column.
        state: ``done``; ``empty`` in the paper; ``missing`` data or weights; ``failed``;
            ``broken off``: failed after rounds or trials that count; ``not run``; ``not reached``:
            the target was not reached.
        figure: The figure that was read.
        values: Our figure of each trial, in the figure's unit.
        text: The published figure as printed, if any.
        rounds: Number of rounds that counted.
        curve: {trial: [(round, figure)]}, for curves.
        split: Samples of each client and class [M, C], and the classes, for pictures of splits.
        folder: The run folder, if any.
        why: Reason why figures are missing.
        partial: Rounds or trials that count in a run that was broken off: ``20 of 60 rounds,
            diverged``.
    """

    row: str
    column: str
    state: State
    figure: ReadFigure = USUAL
    values: tuple[float, ...] = ()
    text: str = ""
    rounds: int | None = None
    curve: Mapping[int, Sequence[tuple[int, float]]] = field(default_factory=dict)
    split: tuple[np.ndarray, tuple[str, ...]] | None = None
    folder: Path | None = None
    why: str = ""
    partial: str = ""

    @property
    def mean(self) -> float | None:
        """Mean over trials; None without values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Population standard deviation over trials; None for fewer than two trials."""
        return statistics.pstdev(self.values) if len(self.values) > 1 else None

    @property
    def published(self) -> PublishedFigure | None:
        """The published figure, if any."""
        return published_figure(self.text) if self.text not in ("", EMPTY, UNKNOWN) else None

    @property
    def difference(self) -> float | None:
        """Our figure minus the published one."""
        published = self.published
        if self.mean is None or published is None:
            return None
        return self.mean - published.mean

    @property
    def decimals(self) -> int:
        """Number of decimals: as in the published figure."""
        if self.published is not None:
            return self.published.decimals
        return 0 if self.figure.read == "rounds-to" else 2

    @property
    def ours(self) -> str:
        """Our figure as text, with `remarks` in brackets."""
        return f"{self.figures} ({self.remarks})" if self.remarks else self.figures

    @property
    def remarks(self) -> str:
        """`partial`, and the figure's mark."""
        return ", ".join(filter(None, (self.partial, self.figure.mark if self.values else "")))

    @property
    def figures(self) -> str:
        """Mean ± deviation as text, or a note if there is no mean."""
        if self.mean is None:
            unreached = {"not reached": "not reached", "broken off": "not reached"}
            return {"empty": EMPTY, **unreached}.get(self.state, "")
        unit = unit_of(self.figure)
        unit = unit if unit not in ("%", "min") else ""
        spread = "" if self.std is None else f"±{self.std:.{self.decimals}f}"
        return f"{self.mean:.{self.decimals}f}{spread}{unit}"

    @property
    def apart(self) -> str:
        """The difference as text."""
        if self.difference is None:
            return ""
        text = f"{self.difference:+.{self.decimals}f}"
        return f"{0:.{self.decimals}f}" if not text.strip("+-0.") else text.replace("-", "−")


@dataclass(frozen=True)
class ReproductionResult:
    """Our figures and the published ones, rows × columns.

    Attributes:
        reproduction: The reproduction.
        rows: The selected rows.
        columns: The selected columns.
        entries: {(row, column): cell}.
        scale: Name of the scale.
        facts: Scale, splits, trials and rounds, for the title.
        conditions: What is not as published: data, samples, rounds, trials; empty if nothing is.
    """

    reproduction: Reproduction
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    entries: Mapping[tuple[str, str], CellResult]
    scale: str
    facts: tuple[str, ...]
    conditions: str = ""

    def __getitem__(self, place: tuple[str, str]) -> CellResult:
        """Return the cell of a row and a column."""
        return self.entries[place]

    @property
    def has_published(self) -> bool:
        """True if the paper prints any of the figures."""
        return any(entry.published for entry in self.entries.values())

    @property
    def origin(self) -> str:
        """Origin of the paper's figures: ``published``, or ``derived`` from published ones."""
        return "derived" if self.reproduction.derived else "published"

    @property
    def title(self) -> str:
        """Heading of the reproduction with `facts`."""
        title = self.reproduction.heading + (f" ({'; '.join(self.facts)})" if self.facts else "")
        return f"{title}. {sentence(self.conditions)}" if self.conditions else title

    @property
    def compared(self) -> list[CellResult]:
        """The finished cells with a published figure."""
        finished = [e for e in self.entries.values() if e.state in ("done", "not reached")]
        return [entry for entry in finished if entry.difference is not None]

    @property
    def difference_words(self) -> str:
        """``difference``, or ``difference in points`` if all published figures are in %."""
        units = {unit_of(e.figure) for e in self.entries.values() if e.published}
        return "difference in points" if units == {"%"} else "difference"

    @property
    def distance(self) -> str:
        """Mean difference to the published figures: ``12.95 points below``; empty without any.

        It is empty too if the figures have several units.
        """
        units = {unit_of(entry.figure) for entry in self.compared}
        if len(units) != 1:
            return ""
        unit = units.pop()
        mean = statistics.fmean(e.difference for e in self.compared if e.difference is not None)
        text = f"{abs(mean):.2f}{' points' if unit == '%' else f' {unit}' if unit else ''}"
        return f"{text} {'below' if mean < 0 else 'above'}" if text[:4] != "0.00" else text

    @property
    def notes(self) -> list[str]:
        """Notes below the table: choices, deviations, and reasons for empty cells."""
        reproduction = self.reproduction
        lines = [*reproduction.chosen]
        rows_and_columns = [reproduction.rows[name] for name in self.rows]
        rows_and_columns += [reproduction.columns[name] for name in self.columns]
        for line in rows_and_columns:
            lines += [f"{line.label}: {line.note}"] if line.note else []
        why: dict[str, list[str]] = {}
        for entry in self.entries.values():
            if entry.why:
                why.setdefault(entry.why, []).append(self.name_of(entry))
        if distance := self.distance:
            cells = count(len(self.compared), "cell")
            lines.insert(0, f"on average {distance} the {self.origin} figures ({cells})")
        return lines + [f"{text} ({', '.join(names)})" for text, names in why.items()]

    def name_of(self, entry: CellResult) -> str:
        """Return the labels of row and column."""
        row, column = self.reproduction.rows[entry.row], self.reproduction.columns[entry.column]
        parts = (row.label, column.group, column.label)
        return ", ".join(label for label in parts if label)

    def records(self) -> list[dict[str, Any]]:
        """Return a mapping for each cell."""
        return [
            {
                "reproduction": self.reproduction.name,
                "scale": self.scale,
                "row": entry.row,
                "column": entry.column,
                "figure": figure_title(entry.figure),
                "unit": unit_of(entry.figure),
                "state": entry.state,
                "ours": entry.mean,
                "ours_std": entry.std,
                "trials": len(entry.values),
                "rounds": entry.rounds,
                "published": entry.published and entry.published.mean,
                "published_std": entry.published and entry.published.std,
                "derived": self.reproduction.derived,
                "difference": entry.difference,
                "folder": entry.folder and str(entry.folder),
                "why": entry.why,
                "partial": entry.partial,
                "mark": entry.figure.mark,
                "conditions": self.conditions,
            }
            for entry in self.entries.values()
        ]

    def frame(self) -> pd.DataFrame:
        """Return the records as a pandas frame.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(self.records(), "ReproductionResult.records() has the same as plain values")


def facts_of(
    reproduction: Reproduction,
    scale: str,
    variant: str,
    options: Sequence[Mapping[str, Any]],
) -> tuple[str, ...]:
    """Return the facts of a title: scale, splits, trials, rounds, and how rounds are chosen.

    Args:
        reproduction: The reproduction.
        scale: Name of the scale.
        variant: Name of the variant; empty for the paper's equations.
        options: Options of all runs.
    """
    about = reproduction.scales[scale].about
    facts = []
    if scale != "paper" or reproduction.published:
        facts.append(f"scale {scale}{f': {about}' if about and scale != 'paper' else ''}")
    if variant in reproduction.variants:
        facts.append(reproduction.variants[variant].about or f"variant {variant}")
    if options:
        facts.append(_splits(options))
        for key, one in (("trials", "trial"), ("rounds", "round")):
            if now := _numbers(options, key):
                facts.append(f"{now} {one}{'' if now == '1' else 's'}")
    places = [(row, column) for row in reproduction.rows for column in reproduction.columns]
    figures = [
        reproduction.figure_of(*place) for place in places if not reproduction.is_empty(*place)
    ]
    titles = dict.fromkeys(figure_title(f) for f in figures if f.read != "best")
    facts += [", ".join(titles)] if titles else []
    if options and any(READERS[figure.read].chosen_on_test for figure in figures):
        facts.append("best round on test samples")
    return tuple(facts)


def conditions_of(
    options: Sequence[Mapping[str, Any]],
    published: Sequence[Mapping[str, Any]],
) -> str:
    """Return what is not as in the paper: data, rounds and trials.

    Args:
        options: Options of the runs, one for each cell.
        published: Options of the same cells with the paper's settings.
    """
    parts = []
    pairs = [(_data(old), _data(new)) for old, new in zip(published, options, strict=True)]
    parts += [f"data {now} in place of {was}" for was, now in dict.fromkeys(pairs) if was != now]
    for key, one in (("rounds", "round"), ("trials", "trial")):
        now, was = _numbers(options, key), _numbers(published, key)
        if now and was and now != was:
            parts.append(f"{now} {one}{'' if now == '1' else 's'} in place of {was}")
    return f"not the published conditions: {', '.join(parts)}" if parts else ""


def _data(options: Mapping[str, Any]) -> str:
    """Return the data set without the folder of its file, and the part of it that is used."""
    name, sign, file = str(options.get("dataset")).partition(":")
    part = f" (subset {options['subset']})" if options.get("subset") else ""
    return f"{name}{sign}{Path(file).name}{part}"


def _numbers(options: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return the range of an option over runs: ``60``, or ``200 to 1000``."""
    numbers = sorted({int(run_options[key]) for run_options in options if key in run_options})
    if not numbers:
        return ""
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _splits(options: Sequence[Mapping[str, Any]]) -> str:
    """Describe the splits."""
    names = [str(run_options.get("partition", "dirichlet")) for run_options in options]
    published = [name.startswith("published:") for name in names]
    if all(published):
        return "the published splits"
    seeds = sorted({int(run_options.get("seed", 0)) for run_options in options})
    held = all(run_options.get("hold_split") for run_options in options)
    trials = max(int(run_options.get("trials", 1)) for run_options in options)
    kept = "" if trials == 1 else ", one for all trials" if held else ", another one each trial"
    which = f"protofl's splits of seed {', '.join(map(str, seeds))}{kept}"
    return f"{which}, and published ones" if any(published) else which
