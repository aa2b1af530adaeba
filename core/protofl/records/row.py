"""Lines of ``metrics.jsonl``: the figures of a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Figure(Generic[T]):
    """A value of a line that has the name of the attribute.

    Args:
        *default: The value of the attribute if a line does not have the figure. Without a default
            every line has it.
    """

    def __init__(self, *default: T) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, row: None, owner: type) -> Figure[T]: ...
    @overload
    def __get__(self, row: Row, owner: type) -> T: ...
    def __get__(self, row: Row | None, owner: type) -> Figure[T] | T:
        if row is None:
            return self
        line: dict[str, T] = row.line
        return line.get(self._name, *self._default) if self._default else line[self._name]


@dataclass(frozen=True, eq=False)
class Row(Mapping[str, Any]):
    """The figures of a round, as docs/reference/record.md describes them.

    A figure has the same name here and in the file, so that it is also found by its name:
    ``row["test_accuracy"]``. The mapping has only the figures of this line; an attribute is None or
    empty for a figure that not every line has.

    Attributes:
        line: The line as JSON has it.
    """

    line: dict[str, Any]

    # --- which round ---
    trial = Figure[int]()
    round = Figure[int]()
    time = Figure[str]("")
    ended = Figure[str]("")

    # --- accuracies: over all samples, over clients, and the deviation between clients ---
    test_accuracy = Figure[float | None](None)
    client_test_accuracy = Figure[float | None](None)
    test_accuracy_std = Figure[float | None](None)
    validation_accuracy = Figure[float | None](None)
    unseen_accuracy = Figure[float | None](None)
    fine_tuned_accuracy = Figure[float | None](None)
    fine_tuned_validation_accuracy = Figure[float | None](None)
    honest_accuracy = Figure[float | None](None)
    client_accuracies = Figure[Mapping[str, float]](NOTHING)
    client_unseen_accuracies = Figure[Mapping[str, float]](NOTHING)
    client_fine_tuned_accuracies = Figure[Mapping[str, float]](NOTHING)
    evaluated = Figure[int]()

    # --- training ---
    train_loss = Figure[float | None]()
    loss_terms = Figure[Mapping[str, float | None]]()
    lr = Figure[float | None](None)

    # --- traffic of all clients ---
    upload_floats = Figure[int]()
    upload_bytes = Figure[int]()
    download_floats = Figure[int]()
    download_bytes = Figure[int]()

    # --- clients ---
    participants = Figure[int]()
    answered = Figure[Sequence[int] | None](None)
    absent = Figure[Mapping[str, str]](NOTHING)
    unfollowed = Figure[Mapping[str, str]](NOTHING)
    unscored = Figure[Mapping[str, str]](NOTHING)
    failures = Figure[Mapping[str, str]](NOTHING)
    skipped_uploads = Figure[Sequence[int]](())
    malicious = Figure[Sequence[int]](())
    joined = Figure[Sequence[int]](())
    unseen = Figure[Sequence[int]](())
    client_losses = Figure[Mapping[str, float | None]](NOTHING)

    # --- what else a run records ---
    extra = Figure[Mapping[str, float | None]]()
    metrics = Figure[Mapping[str, Mapping[str, Any]]](NOTHING)
    measures = Figure[Mapping[str, Any]](NOTHING)
    seconds = Figure[Mapping[str, float]]()
    virtual = Figure[Mapping[str, Any]](NOTHING)
    schedule = Figure[Mapping[str, Any]](NOTHING)

    def changed(self, **figures: Any) -> Row:  # noqa: ANN401 - figures are of several types
        """Return the row with other values of some figures."""
        return Row({**self.line, **figures})

    @property
    def traffic(self) -> int:
        """Bytes of all uploads and downloads of the round."""
        return self.upload_bytes + self.download_bytes

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - figures are of several types
        return self.line[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.line)

    def __len__(self) -> int:
        return len(self.line)


def round_after(rows: Sequence[Row], asked: int) -> int:
    """Return the number, from 1, of the round that follows the last line.

    Args:
        rows: Lines of a record.
        asked: Rounds of the trial of the last line.
    """
    rounds_done = sum(row.trial == rows[-1].trial for row in rows)
    return rounds_done + 1 if rounds_done < asked else 1
