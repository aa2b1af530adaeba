"""A run that has been made, or is being made, as an object: `load_run`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protofl.errors import UsageError
from protofl.records.folder.reading import PARTITION, Reading
from protofl.records.folder.result import Result, recorded_accuracies
from protofl.records.folder.row import Row

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

    from protofl.federation.plan.plan import Plan
    from protofl.hooks.models.architecture import SplitModel
    from protofl.records.recorded.observed import Observed
    from protofl.records.recorded.part import Part
    from protofl.records.recorded.split import RecordedSplit
    from protofl.system.options.settings import Settings


def load_run(folder: str | Path) -> Run:
    """Open the folder of a run: one that is finished, was interrupted, or goes on.

    Nothing but the configuration is read before it is asked for, and nothing is changed. What is
    asked for twice is read once: load the run again to see what has been written since.

    Args:
        folder: The run's folder.

    Raises:
        UsageError: It is no run folder, or its ``config.json`` is damaged.

    Examples:
        >>> run = pf.load_run("runs/first")  # doctest: +SKIP
        >>> run.columns["test_accuracy"]  # doctest: +SKIP
        >>> run.model(client=0, which="best")  # doctest: +SKIP
    """
    reading = Reading.of(folder)
    reading.config  # noqa: B018 - a folder that tells of no run is refused here
    return Run(reading)


class Run:
    """What is recorded of a run.

    Attributes:
        folder: Its folder.
    """

    def __init__(self, reading: Reading | Part) -> None:
        self._reading = reading
        self.folder = reading.path

    def __repr__(self) -> str:
        done, asked = self.rounds_done, self.config["rounds"] * self.config["trials"]
        about = f"{self.name}, {self.config['models']}, {self.config['dataset']}"
        return f"<Run {self.folder}: {about}, {done} of {asked} rounds>"

    def part(self, trials: range, rounds: int) -> Run:
        """The run as if it had been asked for these trials and rounds alone.

        It stays what it is when the run goes on with more.

        Args:
            trials: The trials, which are numbered from 0 in the part: trial k of it has seed
                s + ``trials[k]``.
            rounds: The first rounds of each.
        """
        from protofl.records.recorded.part import Part

        own = self._reading
        if isinstance(own, Reading):
            return Run(Part(own, trials, rounds))
        return Run(Part(own.whole, own.trials[trials.start : trials.stop], rounds))

    @property
    def config(self) -> dict[str, Any]:
        """What ``config.json`` holds: every option resolved, the plugins, versions and data."""
        return self._reading.config

    @cached_property
    def settings(self) -> Settings:
        """The options of the run (`protofl.system.options.settings`).

        Raises:
            UsageError: Another version of protofl recorded options that this one doesn't know.
        """
        from protofl.system.options.parsing import options_in
        from protofl.system.options.table import build

        return build(options_in(self.config))

    @property
    def name(self) -> str:
        """The run's method, or the recipe that it was made by."""
        name: str = self.config.get("recipe", {}).get("name") or self.config["method"]
        return name

    @property
    def rows(self) -> list[Row]:
        """The lines of ``metrics.jsonl``, in the order of creation (docs/reference/record.md).

        Raises:
            UsageError: One that is not the last is damaged; it names file and line.
        """
        return self._reading.rows

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The record as columns, lines ordered by trial and round.

        {figure: [lines]}: what stands in a table has the names of both with a dot between them
        (``seconds.train``, ``loss_terms.ce``, ``client_accuracies.3``). A figure that a line lacks
        is NaN there, in columns that hold no numbers None.
        """
        from protofl.records.recorded.columns import columns_of

        rows = sorted(self.rows, key=lambda row: (row.trial, row.round))
        return columns_of(rows)

    def frame(self) -> pd.DataFrame:
        """The columns as a pandas frame.

        Raises:
            UsageError: pandas is not installed.
        """
        from protofl.records.recorded.columns import frame_of

        return frame_of(self.columns, "Run.columns has the same as NumPy arrays")

    @property
    def summary(self) -> dict[str, Any] | None:
        """What ``summary.json`` holds; None of a run that isn't finished."""
        return self._reading.summary

    @property
    def finished(self) -> bool:
        """Whether the run has done all rounds of all trials."""
        return self._reading.finished

    @property
    def state(self) -> str:
        """``finished``, ``unfinished``, ``diverged``, ``damaged``, or ``going on`` elsewhere."""
        return self._reading.state

    @property
    def why_it_ended(self) -> str:
        """What was wrong in a run that diverged, in words; empty for any other."""
        return str((self._reading.failure or {}).get("what", ""))

    @property
    def identity(self) -> str:
        """The hash of what its results depend on; empty where it was not recorded yet."""
        return str(self.config.get("identity", ""))

    @property
    def trials(self) -> list[int]:
        """The trials of which there are rounds."""
        return sorted({row.trial for row in self.rows})

    @property
    def rounds_done(self) -> int:
        """Rounds that are done, of all trials together."""
        return len(self.rows)

    def rows_of(self, trial: int = 0, *, evaluated: bool = False) -> list[Row]:
        """The lines of a trial by rounds.

        Args:
            trial: The trial.
            evaluated: Whether to leave out rounds that were not (``--eval-every``).
        """
        own = [row for row in self.rows if row.trial == trial]
        own = [row for row in own if not evaluated or row.test_accuracy is not None]
        return sorted(own, key=lambda row: row.round)

    @property
    def accuracies(self) -> dict[int, dict[int, float]]:
        """{trial: {client: accuracy}} of the last evaluation; empty of more than 1,000 clients."""
        return recorded_accuracies(sorted(self.rows, key=lambda row: row.round))

    @property
    def result(self) -> Result:
        """What `protofl.run` returns of a run that is finished.

        Raises:
            UsageError: It isn't.
        """
        if self.summary is None:
            raise UsageError(
                f"{self.folder} is not finished", do=f"protofl run --resume --out {self.folder}"
            )
        return Result(self.rows, self.summary, self.accuracies, self.folder)

    # --- what the data and the weights are needed for --------------------------------------------

    def split(self, trial: int = 0) -> RecordedSplit:
        """Which samples each client had: counts by class, and the rows of the data where it is.

        Args:
            trial: The trial.

        Raises:
            UsageError: The run has no such trial, or was not begun.
        """
        from protofl.records.recorded.split import RecordedSplit

        record, file = self._reading.partition, self.folder / PARTITION
        if record is None:
            raise UsageError(f"{file} is missing: the run has not come so far")
        held = 0 if self.config.get("hold_split") else trial
        return RecordedSplit.of(file, record, held, lambda: self.plan.split(held))

    @property
    def has_split(self) -> bool:
        """Whether the run has come so far that its split is recorded."""
        return self._reading.partition is not None

    @cached_property
    def plan(self) -> Plan:
        """What the options resolve to here, on the CPU: data, split, models before training.

        Raises:
            UsageError: Data or plugins are not there any more, or the data are others.
        """
        from protofl.runs.reuse.models import plan_of

        return plan_of(self.config, self.folder)

    def model(
        self, client: int, which: Literal["last", "best"] = "last", trial: int = 0
    ) -> SplitModel:
        """A client's model with the weights that it had at the end of a round, in eval mode.

        Args:
            client: The client.
            which: The trial's ``last`` round or its ``best`` one, as far as ``--keep`` kept them.
            trial: The trial.

        Raises:
            UsageError: The run has not kept the round, there is no such client, or its data or
                plugins are not there.
        """
        from protofl.runs.reuse.models import model_of, weights_of

        if not 0 <= client < self.config["clients"]:
            raise UsageError(
                f"{self.folder} has no client {client}",
                f"clients are 0 to {self.config['clients'] - 1}",
            )
        kept = weights_of(self._reading, which, trial, clients=[client])
        return model_of(self.plan, client, trial, kept)

    def knowledge(
        self, which: Literal["last", "best"] = "last", trial: int = 0
    ) -> dict[str, Tensor]:
        """What the server knew at the end of a round, by the names of docs/reference/wire.md.

        Args:
            which: The trial's ``last`` round or its ``best`` one, as far as ``--keep`` kept them.
            trial: The trial.

        Raises:
            UsageError: The run has not kept the round.
        """
        from protofl.runs.reuse.models import weights_of

        server = weights_of(self._reading, which, trial, clients=[]).server
        start = "knowledge/"
        return {k.removeprefix(start): t for k, t in server.items() if k.startswith(start)}

    @property
    def observed(self) -> Observed:
        """What the run has observed (``--observe``): prototypes, features and images by round."""
        from protofl.records.recorded.observed import Observed

        return Observed(self.folder)
