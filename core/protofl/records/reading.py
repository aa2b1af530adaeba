"""The files of a run folder, read at any moment, also while the run goes on, and without torch.

A run replaces its files at once (`protofl.system.files.atomic`), except that it appends lines to
its record. So a half-written last line is ignored, and anything else that is unreadable is damage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from protofl.errors import UsageError
from protofl.records.checkpoint import commit_values
from protofl.records.client_lines import client_lines, guess_of, names_of
from protofl.records.layout import (
    CONFIG,
    FAILURE,
    MANIFEST,
    METRICS,
    PARTITION,
    SUMMARY,
    architectures_in,
    is_run,
)
from protofl.records.record_files import read_rows, table_of, table_or_none
from protofl.records.result import (
    Result,
    is_best,
    is_exhausted,
    recorded_accuracies,
    summarise,
)
from protofl.records.row import Row, round_after
from protofl.system.files.checksums import Check, Damaged, read_json
from protofl.system.files.home import expand_user
from protofl.system.files.lock import LOCK, is_held

if TYPE_CHECKING:
    from protofl.records.weights import Weights

FINISHED, UNFINISHED, GOING_ON, DAMAGED = "finished", "unfinished", "going on", "damaged"
DIVERGED = "diverged"

R = TypeVar("R", bound="Reading")


@dataclass(frozen=True, eq=False)
class Reading:
    """The content of a run folder; each file is read on first use and then cached.

    Create another reading to see what the run has written since.

    Attributes:
        folder: The run folder.
        only_trials: The trials to read, numbered from 0 here; None for all.
        only_rounds: With ``only_trials``, the first rounds to read of each. The reading is then
            what a run of these trials and rounds would have left.
    """

    folder: Path
    only_trials: range | None = None
    only_rounds: int = 0

    @classmethod
    def of(cls: type[R], folder: str | Path) -> R:
        """Open a run folder.

        Raises:
            UsageError: The folder is not a run folder.
        """
        path = expand_user(folder)
        if not is_run(path):
            raise _no_run(folder, path)
        return cls(path)

    def part(self: R, trials: range, rounds: int) -> R:
        """Return the run as if it had been asked for these trials and rounds only.

        Args:
            trials: The trials. They are numbered from 0 in the part: trial k has seed
                s + ``trials[k]``.
            rounds: The first rounds of each trial.
        """
        selected = (
            trials if self.only_trials is None else self.only_trials[trials.start : trials.stop]
        )
        return type(self)(self.folder, selected, rounds)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``: resolved options, plugins, versions and data.

        Raises:
            Damaged: The file is unreadable, or a required value is missing.
        """
        values = table_of(self.folder / CONFIG, "Config")
        if (trials := self.only_trials) is not None:
            values |= {"seed": values["seed"] + trials.start, "trials": len(trials)}
            values |= {"rounds": self.only_rounds}
        return values

    @cached_property
    def rows(self) -> list[Row]:
        """The lines of ``metrics.jsonl``, in the order of creation (docs/reference/record.md).

        Raises:
            UsageError: A line other than the last is invalid; the error names file and line.
        """
        rows = read_rows(self.folder / METRICS)
        if (trials := self.only_trials) is None:
            return rows
        rows = [row for row in rows if row.trial in trials and row.round < self.only_rounds]
        return [row.changed(trial=row.trial - trials.start) for row in rows]

    @property
    def trials(self) -> list[int]:
        """The trials that have at least one round."""
        return sorted({row.trial for row in self.rows})

    @property
    def rounds_done(self) -> int:
        """The number of finished rounds of all trials together."""
        return len(self.rows)

    def rows_of(self, trial: int = 0, *, evaluated: bool = False) -> list[Row]:
        """Return the lines of a trial sorted by round.

        Args:
            trial: The trial.
            evaluated: Skip rounds without an evaluation (``--eval-every``).
        """
        rows = [row for row in self.rows if row.trial == trial]
        rows = [row for row in rows if not evaluated or row.test_accuracy is not None]
        return sorted(rows, key=lambda row: row.round)

    @property
    def identity(self) -> str:
        """The hash of everything that results depend on; empty in very old runs."""
        return str(self.config.get("identity", ""))

    @cached_property
    def partition(self) -> dict[str, Any] | None:
        """The content of ``partition.json``; None if the run has not written it yet.

        Raises:
            Damaged: The file is unreadable.
        """
        record = table_or_none(self.folder / PARTITION, "Partition")
        if record is None or self.only_trials is None or self.config.get("hold_split"):
            return record
        splits = [record, *record.get("trials", ())]
        first, *others = [
            {**split, "trial": split["trial"] - self.only_trials.start}
            for split in splits
            if split["trial"] in self.only_trials
        ]
        return {**first, "trials": others}

    @property
    def has_split(self) -> bool:
        """True if the split of the run is recorded."""
        return self.partition is not None

    def split_record(self, trial: int = 0) -> Mapping[str, Any]:
        """Return the record of a trial's split in ``partition.json``.

        Raises:
            UsageError: The run has no such trial, or has not written its split yet.
        """
        record, file = self.partition, self.folder / PARTITION
        if record is None:
            raise UsageError(f"{file} is missing: the run has not come so far")
        number = 0 if self.config.get("hold_split") else trial
        splits: dict[int, dict[str, Any]] = {
            split["trial"]: split for split in (record, *record.get("trials", ()))
        }
        if number not in splits:
            known = ", ".join(map(str, splits))
            raise UsageError(f"{file} has no trial {number}", f"it has: {known}")
        return splits[number]

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The content of ``summary.json``; None if the run is not finished.

        Raises:
            Damaged: The file is unreadable.
        """
        if not self.finished:
            return None
        if self.only_trials is None:
            return table_or_none(self.folder / SUMMARY, "Summary")
        return self.derived_summary()

    def derived_summary(self) -> dict[str, Any] | None:
        """Return the summary that the rows give; None if the run has not written its split yet."""
        if self.partition is None:
            return None
        keys = ("rounds", "clients", "eval_clients", "patience")
        about = {key: self.config[key] for key in keys if self.config.get(key)}
        return summarise(self.rows, self.majority, about)

    def majority(self, trial: int, clients: Sequence[int] | None = None) -> float:
        """Return the score of the majority guess of some clients; NaN if it is not known.

        Raises:
            UsageError: The run has no such trial, or has not written its split yet.
        """
        return guess_of(self.split_record(trial), clients)

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The names that the data give the clients; empty if they give none, or others by trial."""
        return names_of(self._splits.values())

    @property
    def clients(self) -> list[dict[str, Any]]:
        """Name, architecture, samples, score and guess of each client, the worst first.

        See `protofl.records.client_lines.client_lines`. Empty above 1,000 clients.
        """
        if not self.has_split:
            return []
        architectures = architectures_in(self.config) or [""]
        return client_lines(self._splits, self.accuracies, architectures)

    @property
    def _splits(self) -> dict[int, Mapping[str, Any]]:
        """{trial with rounds: record of its split}; empty without a recorded split."""
        return {trial: self.split_record(trial) for trial in self.trials if self.has_split}

    @property
    def accuracies(self) -> dict[int, dict[int, float]]:
        """Accuracies of the last evaluation by trial and client; empty above 1,000 clients."""
        return recorded_accuracies(sorted(self.rows, key=lambda row: row.round))

    @property
    def result(self) -> Result:
        """The value that `protofl.run` returned for this run.

        Raises:
            UsageError: The run is not finished.
        """
        if self.summary is None:
            raise UsageError(
                f"{self.folder} is not finished", do=f"protofl run --resume --out {self.folder}"
            )
        return Result(self.rows, self.summary, self.accuracies, self.folder, clients=self.clients)

    @cached_property
    def finished(self) -> bool:
        """True if all rounds are done.

        The manifest says so. In a copy without ``checkpoint/`` the summary must exist.
        """
        if self.only_trials is not None:
            return len(self.rows) == self.asked
        manifest = self.folder / MANIFEST
        if manifest.is_file():
            return table_of(manifest).get("finished") is True
        return bool(table_or_none(self.folder / SUMMARY))

    @property
    def lacks_end(self) -> bool:
        """True if all rounds are done, but not what follows them: the run was killed then."""
        return self.only_trials is None and not self.finished and len(self.rows) >= self.asked

    def asked_of(self, trial: int, rounds: int | None = None) -> int:
        """Return how many of ``rounds``, by default the run's, a trial has at its end."""
        rounds = int(self.config["rounds"]) if rounds is None else rounds
        trial_rows = [row for row in self.rows if row.trial == trial]
        if is_exhausted(trial_rows, self.config.get("patience", 0)):
            return min(len(trial_rows), rounds)
        return rounds

    @property
    def asked(self) -> int:
        """The number of rounds that all trials have at the end of the run."""
        rounds, trials = int(self.config["rounds"]), int(self.config["trials"])
        begun = {row.trial for row in self.rows if self.config.get("patience", 0) or row.ended}
        # Only trials that have begun can end early; a configuration may ask for any number.
        return rounds * trials - sum(rounds - self.asked_of(trial) for trial in begun)

    @property
    def going_on(self) -> bool:
        """True if a process holds the run's lock, as far as this machine can see."""
        return is_held(self.folder / LOCK)

    @property
    def state(self) -> str:
        """``finished``, ``going on``, ``unfinished``, ``diverged`` or ``damaged``.

        A diverged run is unfinished because its training ended in NaN. A damaged run has a
        `problem`, or files that cannot be read.
        """
        if self.only_trials is not None:
            return FINISHED if self.finished else Reading(self.folder).state
        if self.going_on:
            return GOING_ON
        try:
            if self.problem:
                return DAMAGED
        except Damaged:
            return DAMAGED
        if not self.finished:
            return DIVERGED if self.failure else UNFINISHED
        return FINISHED

    @cached_property
    def failure(self) -> dict[str, Any] | None:
        """The content of ``failure.json``; None if training did not diverge or has continued."""
        if self.only_trials is not None:
            return None if self.finished else Reading(self.folder).failure
        try:
            recorded = read_json(self.folder / FAILURE)
            return recorded if recorded["done"] == len(self.rows) else None
        except (OSError, Damaged, LookupError, TypeError):
            return None

    @property
    def lost(self) -> str:
        """A line about rounds that are missing from a finished run's record; empty for none."""
        asked = self.asked
        if not self.finished or len(self.rows) >= asked:
            return ""
        return (
            f"{self.folder / METRICS}, line {len(self.rows) + 1}, is missing: the run is finished, "
            f"and had {asked:,} rounds"
        )

    @cached_property
    def problem(self) -> str:
        """A line about lost rounds or changed lines of the record; empty for none."""
        if self.only_trials is not None:
            return Reading(self.folder).problem
        if self.lost:
            return self.lost
        manifest, result = self.folder / MANIFEST, ""
        for _ in range(2):  # a run that resumes replaces the manifest before the record
            if not manifest.is_file():
                return ""  # a copy without its checkpoint
            try:
                check = Check.of_values(commit_values(manifest)["record"][1:])
                check.require((self.folder / METRICS).resolve(), grows=True)
                return ""
            except Damaged as problem:
                result = problem.what
            except (KeyError, TypeError, ValueError):
                result = f"{manifest} is damaged: it does not say how long the record is"
        return result

    @property
    def interruption(self) -> str:
        """A line about an unfinished run that no process continues; empty for other runs."""
        if self.state != UNFINISHED:
            return ""
        asked = self.asked_of(self.rows[-1].trial if self.rows else 0)
        return f"ended without a summary in round {round_after(self.rows, asked) + 1}"

    def require_sound(self) -> None:
        """Read all files that figures come from.

        Raises:
            Damaged: One is unreadable, or the record was changed since the run wrote it.
        """
        _ = self.config, self.rows, self.partition, self.summary
        if self.problem and not self.lost:
            raise Damaged(self.problem, do="restore the file: its figures are not those of the run")

    def weights(self, which: str | int, trial: int, clients: Collection[int]) -> Weights:
        """Read the weights that the run kept of a round.

        Args:
            which: ``last``, ``best``, or the number of a round, from 0.
            trial: The trial, from 0 here.
            clients: Clients whose weights to read.

        Raises:
            UsageError: The round is not kept, or it is not among the rounds of this reading.
        """
        from protofl.records.weights import read_weights

        if self.only_trials is None:
            return read_weights(self.folder, which, trial, clients=clients)
        round = self.only_rounds - 1
        if isinstance(which, int) and which > round:
            raise UsageError(
                f"round {which + 1} is not one of the first {self.only_rounds} rounds of "
                f"{self.folder}",
            )
        kept = read_weights(self.folder, which, self.only_trials[trial], clients=clients)
        if isinstance(which, int):
            return kept
        rows = [row for row in self.rows if row.trial == trial]
        if which == "best":
            best = [row.round for n, row in enumerate(rows) if is_best(row, rows[:n])]
            round = best[-1] if best else round
        if kept.round != round:
            raise UsageError(
                f"{self.folder} has kept round {kept.round + 1} as the {which} of all its rounds, "
                f"and not round {round + 1}, the {which} of the first {self.only_rounds}",
                do=f"a run of {self.only_rounds} rounds has it",
            )
        return kept


def _no_run(typed: str | Path, path: Path) -> UsageError:
    """Return the error for a folder that is not a run folder.

    Args:
        typed: The folder as the user wrote it.
        path: The folder.
    """
    what = f"{typed} is not a run folder (it has no {CONFIG})"
    if not path.is_dir():
        near = "there is no such folder" if not path.exists() else "it is a file"
        return UsageError(what, near, "give the folder of a run")
    if (path / MANIFEST).is_file():
        near = f"it has the checkpoint of one, whose {CONFIG} is lost"
        do = "put it back; checkpoint/config.json says how the run began"
        return UsageError(what, near, do)
    if path.name == "checkpoint" and (path / "manifest.json").is_file():
        what = f"{typed} is not a run folder, it is the checkpoint of one"
        return UsageError(what, do="give the folder that it is in")
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{CONFIG}"))
    near = f"runs in it: {', '.join(inside[:5])}" if inside else "it holds no runs"
    near += f", and {len(inside) - 5} more" if len(inside) > 5 else ""
    return UsageError(what, near, "give the folder of a run")
