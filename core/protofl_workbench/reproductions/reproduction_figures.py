"""Figures of cells: readers of a run's record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from protofl.records.row import Row
from protofl_workbench.comparing.run_figures import number_at
from protofl_workbench.reproductions.reproduction import ReadFigure

Rows = Sequence[Row]

UNITS: dict[str, float] = {
    "": 1,
    "%": 1e-2,
    "K": 1e3,
    "M": 1e6,
    "B": 1e9,
    "MB": 1e6,
    "MiB": 2**20,
    "min": 60,
}
"""Factors of units."""


@dataclass(frozen=True)
class Reader:
    """A way to read a figure.

    Attributes:
        words: Title.
        read: Returns the figure of a trial from its lines by rounds; None if it has none.
        of: Default column.
        unit: Default unit.
        needs_target: True if the figure needs a target.
        measure: Measure that ``--measure`` must record.
        chosen_on_test: True if the round is chosen on test samples.
        trains: True if training is needed; False for traffic and FLOPs.
    """

    words: str
    read: Callable[[Rows, ReadFigure], float | None] = lambda rows, figure: None
    of: str = "test_accuracy"
    unit: str = "%"
    needs_target: bool = False
    measure: str = ""
    chosen_on_test: bool = False
    trains: bool = True


def series(rows: Rows, figure: ReadFigure) -> list[tuple[int, float]]:
    """Return (round from 0, figure) of the rounds that have the figure."""
    of = figure.of or READERS[figure.read].of
    of = f"measures.architectures.{of}" if figure.read == "forward-flops" else of
    values = [(int(row.round), number_at(row, of)) for row in rows]
    return [(n, 1 - value if figure.error else value) for n, value in values if value is not None]


def figure_of(
    rows: Iterable[Row], figure: ReadFigure, rounds: int | None = None
) -> list[float | None]:
    """Return the figure of each trial, in its unit.

    Args:
        rows: Lines of a record.
        figure: The figure.
        rounds: Number of rounds that count; None for all.

    Returns:
        The figure of each trial with lines; None if it has none, such as a target not reached.
    """
    trials: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.trial, row.round)):
        if rounds is None or row.round < rounds:
            trials.setdefault(row.trial, []).append(row)
    reader, one = READERS[figure.read], UNITS[unit_of(figure)]
    figures = [reader.read(lines, figure) for lines in trials.values()]
    return [None if value is None else value / one for value in figures]


def unit_of(figure: ReadFigure) -> str:
    """Return the unit of a figure."""
    return READERS[figure.read].unit if figure.unit is None else figure.unit


def figure_title(figure: ReadFigure) -> str:
    """Return the title of a figure."""
    title = figure.words or READERS[figure.read].words
    if figure.target is not None:
        of = (figure.of or READERS[figure.read].of).rpartition(".")[2].replace("_", " ")
        title = f"{title} {of} ≥ {figure.target:g}"
    return title


# --- readers --------------------------------------------------------------------------------------


def _best(rows: Rows, figure: ReadFigure) -> float | None:
    values = [value for _, value in series(rows, figure)]
    return (min if figure.error else max)(values, default=None)


def _final(rows: Rows, figure: ReadFigure) -> float | None:
    values = series(rows, figure)
    return values[-1][1] if values else None


def _value(rows: Rows, figure: ReadFigure) -> float | None:
    """Return the value of a given round, or of the last round that has it."""
    if figure.round is None:
        return _final(rows, figure)
    return dict(series(rows, figure)).get(figure.round - 1)


def _of_round(*columns: str) -> Callable[[Rows, ReadFigure], float | None]:
    """Return a reader of the sum of columns in a round.

    The default is the second round, because methods send less in the first.
    """

    def read(rows: Rows, figure: ReadFigure) -> float | None:
        number = 2 if figure.round is None else figure.round
        row = next((row for row in rows if row.round + 1 == number), None)
        return None if row is None else float(sum(row[column] for column in columns))

    return read


def _until(cost: Callable[[Row], float]) -> Callable[[Rows, ReadFigure], float | None]:
    """Return a reader of the cost until a target is reached."""

    def read(rows: Rows, figure: ReadFigure) -> float | None:
        assert figure.target is not None
        reached = next((n for n, value in series(rows, figure) if value >= figure.target), None)
        if reached is None:
            return None
        return sum(cost(row) for row in rows if row.round <= reached)

    return read


_FLOATS, _BYTES = ("upload_floats", "download_floats"), ("upload_bytes", "download_bytes")

READERS: dict[str, Reader] = {
    "best": Reader("best accuracy", _best, chosen_on_test=True),
    "final": Reader("accuracy after the last round", _final),
    "best-clients": Reader(
        "best mean of the clients' accuracies", _best, "client_test_accuracy", chosen_on_test=True
    ),
    "final-clients": Reader("mean of the clients' accuracies", _final, "client_test_accuracy"),
    "best-server": Reader(
        "best accuracy of the server's model",
        _best,
        "extra.server_test_accuracy",
        chosen_on_test=True,
    ),
    "final-server": Reader("accuracy of the server's model", _final, "extra.server_test_accuracy"),
    "value": Reader("figure", _value, unit=""),
    "series": Reader("figure over rounds", _final),
    "floats": Reader("floats of a round, up and down", _of_round(*_FLOATS), unit="M", trains=False),
    "floats-up": Reader("floats of a round, up", _of_round(_FLOATS[0]), unit="M", trains=False),
    "floats-down": Reader("floats of a round, down", _of_round(_FLOATS[1]), unit="M", trains=False),
    "bytes": Reader("bytes of a round, up and down", _of_round(*_BYTES), unit="MB", trains=False),
    "bytes-up": Reader("bytes of a round, up", _of_round(_BYTES[0]), unit="MB", trains=False),
    "bytes-down": Reader("bytes of a round, down", _of_round(_BYTES[1]), unit="MB", trains=False),
    "flops": Reader(
        "FLOPs of a round by the papers' account",
        _value,
        "measures.flops.training",
        "B",
        measure="flops",
        trains=False,
    ),
    "forward-flops": Reader(
        "forward FLOPs of a sample", _value, "", "B", measure="flops", trains=False
    ),
    "rounds-to": Reader("rounds to", _until(lambda row: 1), unit="", needs_target=True),
    "floats-to": Reader(
        "floats to", _until(lambda row: sum(row[c] for c in _FLOATS)), unit="M", needs_target=True
    ),
    "bytes-to": Reader(
        "bytes to", _until(lambda row: sum(row[c] for c in _BYTES)), unit="MB", needs_target=True
    ),
    "seconds-to": Reader(
        "seconds to", _until(lambda row: row.seconds["total"]), unit="", needs_target=True
    ),
    "classes": Reader("mean number of a client's classes", unit="", trains=False),
}
"""Readers by their names in ``figure``."""
