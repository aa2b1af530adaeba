"""Tables: a figure of several groups of trials, and texts in LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protofl.errors import UsageError
from protofl.system.files.atomic import write_file
from protofl.system.files.home import expand_user

NONE = "–"


@dataclass(frozen=True)
class Difference:
    """The difference of a group to the baseline.

    Attributes:
        count: Number of pairs.
        mean: Mean difference, group − baseline.
        std: Population standard deviation over pairs.
        low: Lower end of the confidence interval of the mean difference.
        high: Upper end of the interval.
        p: p of Wilcoxon's signed-rank test.
        holm: p corrected for all comparisons with this baseline.
        better: Number of pairs in which the group is better.
        worse: Number of pairs in which the group is worse.
    """

    count: int
    mean: float
    std: float
    low: float
    high: float
    p: float
    holm: float
    better: int
    worse: int


@dataclass(frozen=True)
class GroupFigure:
    """A figure of one group of trials.

    Attributes:
        label: Name of the group.
        seeds: Seeds of the trials.
        values: The figure of each trial; NaN if a trial has none, such as a target not reached.
        difference: Difference to the baseline; None for the baseline itself.
    """

    label: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    difference: Difference | None = None

    @property
    def found(self) -> list[float]:
        """The values that are not NaN."""
        return [value for value in self.values if not math.isnan(value)]

    @property
    def mean(self) -> float:
        """Mean of the values; NaN if there are none."""
        return float(np.mean(self.found)) if self.found else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation of the values; NaN if there are none."""
        return float(np.std(self.found)) if self.found else math.nan


@dataclass(frozen=True)
class FigureTable:
    """A figure of all groups on the same data.

    Attributes:
        setting: Name of the data and split.
        name: Name of the figure, as it was requested.
        title: Title of the figure.
        share: True if the figure is a share, which is shown in %.
        lower: True if lower values are better.
        baseline: Label of the baseline; empty if there is only one group.
        rows: The groups.
        machines: True if the figure depends on the machine and the machines differ.
        guess: The majority guess in place of a group; None for a figure without one.
    """

    setting: str
    name: str
    title: str
    share: bool
    lower: bool
    baseline: str
    rows: tuple[GroupFigure, ...]
    machines: bool = False
    guess: GroupFigure | None = None

    def pairs(self, row: GroupFigure, other: GroupFigure) -> list[float]:
        """Return the differences of a group to another one, by seeds, where both are known."""
        theirs = dict(zip(other.seeds, other.values, strict=True))
        ours = zip(row.seeds, row.values, strict=True)
        differences = [value - theirs[seed] for seed, value in ours if seed in theirs]
        return [value for value in differences if not math.isnan(value)]


def number(value: float, share: bool, like: float | None = None) -> str:
    """Format a figure: a share in % with two decimals, other numbers by their size.

    Args:
        value: The figure.
        share: True if the figure is a share.
        like: A number next to it that sets the decimals; by default the figure itself.
    """
    if math.isnan(value):
        return NONE
    if share:
        return f"{value * 100:.2f}"
    size = abs(value if like is None else like)
    if not size and not value:
        return "0"
    if size >= 1e5:
        return f"{value:.2e}"
    return f"{value:.{1 if size >= 100 else 2 if size >= 1 else 4}f}"


def tex_table(
    caption: str, label: str, columns: str, heads: list[str], body: list[str]
) -> list[str]:
    """Return the lines of a LaTeX table with booktabs rules."""
    return [
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *heads, r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip


_TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "±": r"$\pm$", "−": "$-$", "†": r"$\dagger$", "‡": r"$\ddagger$", "–": "--", "<": "$<$",
    ">": "$>$", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$",
    "…": r"\dots{}", "’": "'", **{"₁₂₃"[n - 1]: f"$_{n}$" for n in (1, 2, 3)},
    **dict(zip("αβγδημθλρστΣ", [rf"$\{name}$" for name in (
        "alpha", "beta", "gamma", "delta", "eta", "mu", "theta", "lambda", "rho", "sigma", "tau",
        "Sigma")], strict=True)), "ε": r"$\varepsilon$",
}  # fmt: skip


def tex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(_TEX.get(sign, sign) for sign in text)


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return mappings with the same keys as CSV.

    A text that a spreadsheet would run as a formula gets an apostrophe as its first character.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_inert(key) for key in lines[0]])
    writer.writerows([[_inert(line.get(key)) for key in lines[0]] for line in lines])
    return text.getvalue()


def _inert(value: Any) -> Any:  # noqa: ANN401 - a cell
    """Return a cell that no spreadsheet reads as a formula; numbers stay numbers."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value).replace("\r\n", "\n").replace("\r", "\n")  # `csv` quotes only the latter
    formula = text.lstrip().startswith(("=", "+", "-", "@")) or text.startswith(("\t", "\n"))
    return f"'{text}" if formula and not _NUMBER.fullmatch(text) else text


def markdown(text: str) -> str:
    """Return a text for Markdown in one line, with special characters escaped."""
    text = " ".join(text.split())
    for sign in "\\|*_<`":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("](", "]\\(")  # a link


def tex_comments(notes: Sequence[str]) -> list[str]:
    """Return notes as comments of LaTeX, each in one line, which a comment ends with."""
    return [f"% {' '.join(note.split())}" for note in notes]


def json_text(values: Mapping[str, Any]) -> str:
    """Return values as JSON."""
    return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_output(path: str | Path, content: str | bytes) -> None:
    """Write a file as a whole; an existing file is replaced.

    Raises:
        UsageError: The file cannot be written, or is not a regular file.
    """
    path = expand_user(path)
    try:
        write_file(path, content)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror or error}"
        raise UsageError(what, do="choose another file") from None
