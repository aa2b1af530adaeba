"""A requested run, compared with the recorded runs that could be reused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.federation import events
from protofl.federation.events import Progress
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.resolution import parts_of
from protofl.records.failure import Failure, repeated_failure
from protofl.records.layout import name_of
from protofl.records.reading import Reading
from protofl.records.row import Row
from protofl.records.run_index import IndexEntry, runs_in
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.runs.lifecycle.lifecycle import start
from protofl.runs.request.planning import plan_run
from protofl.runs.request.request import Request
from protofl.runs.results.changes import RECORDING, differences, not_recorded
from protofl.runs.results.configuration import config_of, folder_words
from protofl.runs.results.identity import defaults_of, identity_of
from protofl.system.files.atomic import unused_path
from protofl.system.machine import Idle
from protofl.system.options.plugin_options import consents
from protofl.system.options.table import RESUMABLE

LOCKS = ".once"
"""The folder, beside the runs, of the files by which processes take turns."""


@dataclass
class RequestedRun:
    """A requested run with its plan.

    Attributes:
        request: What is asked for.
        plan: What that resolves to.
        config: What its ``config.json`` would hold.
        progress: Called with notes, and with the events of what is trained.
    """

    request: Request
    plan: Plan
    config: dict[str, Any]
    progress: Progress
    _said: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, request: Request, progress: Progress) -> RequestedRun:
        """Plan a request.

        Raises:
            UsageError: It can't be done, or names a folder.
        """
        if request.resume or request.out is not None:
            raise UsageError(
                f"--out {request.out} cannot be combined with --reuse",
                "a reused run is found by its options",
                "leave --out and --resume out",
            )
        note = lambda line: progress(events.Note(line))  # noqa: E731
        plan = plan_run(request, note)
        return cls(request, plan, config_of(plan), progress)

    @cached_property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """Defaults of the plugins' options."""
        return defaults_of(self.plan)

    @property
    def identity(self) -> str:
        """Identity of the run."""
        return str(self.config["identity"])

    def note(self, line: str) -> None:
        """Report a line, once."""
        if line not in self._said:
            self._said.add(line)
            self.progress(events.Note(line))

    def locks(self, runs: Path) -> Iterator[Path]:
        """Yield the lock files of the trials, always in the same order to avoid deadlocks."""
        for trial in range(self.plan.settings.trials):
            yield runs / LOCKS / f"{self.identity}-s{self.plan.seed(trial)}"

    # --- what is there ----------------------------------------------------------------------------

    def candidates(self, runs: Path) -> list[Reading]:
        """Return the runs that are this run, with any trials and rounds; the longest first."""
        loaded = [Reading.of(p) for p, told in runs_in(runs).items() if self._may_be(p, told)]
        return sorted(filter(self._is_same, loaded), key=lambda run: -run.rounds_done)

    def _may_be(self, folder: Path, told: IndexEntry) -> bool:
        """Return True if an index entry may be of this run; report why a damaged one is not."""
        if told.identity != self.identity:
            return False
        if told.problem:
            self.note(f"{folder} is not reused: {told.problem}")
        return not told.problem

    def _is_same(self, run: Reading) -> bool:
        """Return True if a run is this run; report why one of the same identity is not."""
        if identity_of(run.config, self.defaults) != self.identity:
            return False
        reasons, _ = differences(run.config, self.config, self.defaults)
        reasons += not_recorded(run.config, self.config)
        if run.has_split:
            mine, first = self.plan.settings.trials, self.plan.settings.seed - run.config["seed"]
            trials = range(max(first, 0), min(first + mine, run.config["trials"]))
            if any(run.split_record(t)["hash"] != self.plan.split(t - first).hash for t in trials):
                reasons.append("the split over clients differs")
        if reasons:
            self.note(f"{run.folder} is not reused: {'; '.join(reasons)}")
        return not reasons

    def shares_trials(self, run: Reading) -> bool:
        """Return True if a run that is this run has, or is going to have, requested trials."""
        first = self.plan.settings.seed - int(run.config["seed"])
        return first < run.config["trials"] and first + self.plan.settings.trials > 0

    def part_of(self, run: Reading) -> Reading | None:
        """Return the requested trials and rounds of a matching run; None if some are missing."""
        settings = self.plan.settings
        first, rounds = settings.seed - run.config["seed"], settings.rounds
        if first and (first < 0 or settings.hold_split):
            return None
        trials = range(first, first + settings.trials)
        if not all(_has(run, trial, rounds) for trial in trials):
            return None
        if rounds != run.config["rounds"] and self._depends_on_rounds(run):
            return None
        if settings.on_lost_client == "stop" and any(map(_lost, run.rows)):
            self.note(f"{run.folder} is not reused: clients were lost in it (--on-lost-client)")
            return None
        return run.part(trials, rounds)

    def told_of(self, run: Reading) -> Reading:
        """Report a reused run, with notes about what is not known or may change last digits.

        Progress callbacks receive it as a finished run.
        """
        _, notes = differences(run.config, self.config, self.defaults)
        about = f" ({'; '.join(notes)})" if notes else ""
        self.note(f"{run.folder} has this run already{about}")
        self.progress(events.Finished(run.result, self.plan))
        return run

    def _depends_on_rounds(self, run: Reading) -> bool:
        """Return True if the results of a run depend on its number of rounds."""
        if self.plan.schedule.horizon:
            return True
        if "depends_on" in run.config:
            return "rounds" in run.config["depends_on"]
        return self._asks_for_rounds

    @cached_property
    def _asks_for_rounds(self) -> bool:
        """True if hooks read the number of rounds, found by the dry run."""
        dry_run(self.plan)
        return "rounds" in self.plan.info.asked

    def failed_before(self, run: Reading) -> Failure | None:
        """Return why a run ended that would end so again."""
        return repeated_failure(run.folder, self.plan.device.type)

    # --- what is made -----------------------------------------------------------------------------

    def can_extend(self, run: Reading) -> bool:
        """Return True if an incomplete run that is this run can be continued."""
        settings, was = self.plan.settings, run.config
        longest = max((len(run.rows_of(trial)) for trial in run.trials), default=0)
        return (
            settings.seed == was["seed"]
            and len(run.trials) <= settings.trials
            and longest <= settings.rounds
            and not (settings.on_lost_client == "stop" and any(map(_lost, run.rows)))
            and not (settings.rounds != was["rounds"] and run.rows and self._depends_on_rounds(run))
        )

    def extended(self, run: Reading, idle: Idle | None) -> Reading | None:
        """Continue a run to the requested rounds; None if it cannot, after a note to the user."""
        settings = self.plan.settings
        request = self._continuation(run, rounds=settings.rounds, trials=settings.trials)
        try:
            start(request, self.progress, idle)
        except UsageError as error:
            self.note(f"{run.folder} cannot be resumed ({error.what}); starting a new run")
            return None
        return self.part_of(Reading.of(run.folder))

    def _continuation(self, run: Reading, **extent: int) -> Request:
        """Return the request that resumes a run, with other numbers of rounds and trials."""
        requested, settings = self.request.options, self.plan.settings
        its_own = {*RECORDING, "keep"}
        options = {key: requested[key] for key in RESUMABLE - its_own if key in requested}
        of_trackers = {k: v for k, v in settings.options.items() if k in settings.track}
        plugin_options = {**self._consents, **of_trackers}
        options |= {**extent, "options": plugin_options}
        return Request(
            options,
            out=run.folder,
            resume=True,
            said=plugin_options,
            extra=self.request.extra,
            group=self.request.group,
        )

    @property
    def _consents(self) -> dict[str, dict[str, Any]]:
        """Consents that the user gave; a continued run needs them again."""
        parts, said = parts_of(self.plan.composition, self.plan.choices), self.request.said
        consent_keys = {name: consents(type(parts[name].config)) for name in said if name in parts}
        given_consents = {
            n: {k: v for k, v in said[n].items() if k in names} for n, names in consent_keys.items()
        }
        return {name: values for name, values in given_consents.items() if values}

    def begun(self, runs: Path, idle: Idle | None) -> Reading:
        """Train the run in a new folder."""
        folder = unused_path(runs / name_of(*folder_words(self.plan), self.identity[:8]))
        start(replace(self.request, out=folder), self.progress, idle, self.plan)
        settings = self.plan.settings
        return Reading.of(folder).part(range(settings.trials), settings.rounds)


def _has(run: Reading, trial: int, rounds: int) -> bool:
    """Return True if a run has the first rounds of a trial, with an evaluated last round.

    Clients that are to be fine-tuned must have been so after that round.
    """
    rows = run.rows_of(trial)[:rounds]
    whole = [row.round for row in rows] == [*range(run.asked_of(trial, rounds))]
    tuned = bool(run.config.get("fine_tune"))
    return whole and bool(rows[-1].evaluated) and ("fine_tuned_accuracy" in rows[-1]) == tuned


def _lost(row: Row) -> bool:
    """Return True if a client is absent from a round because of the machine."""
    machine = {"failed", "refused", "stale"}.intersection(row.absent.values())
    return bool(machine or row.unfollowed or row.unscored)
