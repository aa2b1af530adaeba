"""The life of a run: plan, dry run, training and summary of a request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from protofl.data.batches import LEAST
from protofl.data.split import partition_record
from protofl.errors import Diverged, UsageError
from protofl.federation import events
from protofl.federation.events import Progress
from protofl.federation.jobs.pool_interface import ClientFiles, Pool, Starting, keep_files
from protofl.federation.plan.plan import Plan
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.hooks.models.architecture import has_batch_norm
from protofl.hooks.views.snapshots import pack_server
from protofl.records.client_lines import SplitRecord, client_lines
from protofl.records.failure import record_divergence
from protofl.records.layout import (
    PARTITION,
    PREPARATION,
    SESSION,
    check_free,
    fresh_folder,
)
from protofl.records.result import (
    Result,
    is_best,
    is_exhausted,
    recorded_accuracies,
    still_falls,
    summarise,
)
from protofl.records.row import Row
from protofl.records.run_folder import RunFolder
from protofl.runs.request.planning import observes, plan_run, with_store
from protofl.runs.request.request import Request
from protofl.runs.results.configuration import about_arithmetic, config_of, folder_words
from protofl.runs.results.round_commits import RoundCommits, wait_for_commits
from protofl.system.clocks import UNPROFILED, NoProfile
from protofl.system.device import current_card
from protofl.system.files.atomic import disk_errors, temporary_folder, write_json
from protofl.system.files.home import expand_user
from protofl.system.files.lock import folder_lock
from protofl.system.files.tables import rounded
from protofl.system.files.tensors import write_tensors
from protofl.system.machine import Idle
from protofl.system.options.parsing import kept_rounds
from protofl.system.randomness import WAITING, expect_no_other_draws, one_run
from protofl.system.torch_state import standard_torch
from protofl.system.transfers import copied


@standard_torch()
def start(
    request: Request, progress: Progress, idle: Idle | None = None, plan: Plan | None = None
) -> Result:
    """Plan a requested run, then train it.

    Args:
        request: What is asked for.
        progress: Called with every event.
        idle: Hosts that earlier runs have left, and where this one leaves its own.
        plan: The plan of a new run, where it has been made.

    Raises:
        UsageError: Something asked for can't be done; nothing has been started.
        RunFailure: The run failed; finished rounds are in the folder.
    """
    note = lambda: progress(events.Note(WAITING))  # noqa: E731
    with one_run(note), ExitStack() as trackers, ExitStack() as until, disk_errors():
        return _start(request, progress, idle, plan, until, trackers)


def _start(
    request: Request,
    progress: Progress,
    idle: Idle | None,
    plan: Plan | None,
    until: ExitStack,
    trackers: ExitStack,
) -> Result:
    began = time.perf_counter()
    note = lambda line: progress(events.Note(line))  # noqa: E731
    folder: RunFolder | None = None
    if request.resume:
        from protofl.runs.lifecycle import resumption

        wait_for_commits()
        folder, request = resumption.continued(request, note, until)
    elif request.out is not None:
        check_free(expand_user(request.out).absolute())
    plan = plan or plan_run(request, note)
    if plan.trackers:
        from protofl.runs.lifecycle.tracking import TrackedProgress

        progress = trackers.enter_context(TrackedProgress(progress, request.group))
    if folder is not None:
        folder = resumption.take_up(folder, plan, note)
    else:
        folder = RunFolder(request.out or fresh_folder(*folder_words(plan)))
    progress(events.Planned(plan, folder))
    profile = UNPROFILED
    if plan.settings.profile and not folder.finished:
        from protofl.system.profile import RunProfile

        profile = RunProfile(time.perf_counter() - began)
    life = _Lifecycle(plan, folder, progress, profile, request, idle, until)
    if folder.finished:
        life.write_data_facts()
    else:
        kept = record_divergence(expand_user(folder.path), plan.device.type)
        with current_card(plan.device), plan.computing(), kept:
            try:
                life.train()
            except Diverged as error:
                if (y := plan.data.targets) is not None:
                    from protofl.data.targets import far_from_one

                    remedy = far_from_one(plan.data.task, y, y[: plan.data.num_train])
                    if remedy:  # a lower rate hardly helps then
                        error.near, _, error.do = remedy.partition("; ")
                raise
    return life.conclude()


@dataclass
class _Lifecycle:
    """A planned run: its folder, its progress callback, and its results so far."""

    plan: Plan
    folder: RunFolder
    progress: Progress
    profile: NoProfile
    request: Request
    idle: Idle | None
    until: ExitStack
    accuracies: dict[int, dict[int, float]] = field(default_factory=dict)
    _engine_chosen: bool = False
    _notes: list[str] = field(default_factory=list)
    _splits: list[SplitRecord] = field(default_factory=list)
    _beside: bool = False
    """True if a thread commits a round while the next one trains."""

    def train(self) -> None:
        """Train all trials that are not finished; the profile is written even after a failure."""
        participation = Participation(self.plan)
        try:
            with (
                temporary_folder(self.folder.parked) as parked,
                self._ready() as ready,
                RoundCommits(self.folder, self.progress) as commits,
            ):
                self.plan, pool, learned = ready
                plan = self.plan
                write_json(self.folder.path / SESSION, {"backend": plan.settings.backend})
                federation = Federation(
                    plan,
                    pool,
                    commits,
                    profile=self.profile,
                    parked=parked,
                    participation=participation,
                )
                federation.learned = learned
                self.folder.place_clients(elsewhere=federation.elsewhere)
                self._beside = federation.leave_files()
                if observes(plan):
                    from protofl.federation.round.observer import Observer

                    recorded_rounds = {(row.trial, row.round) for row in self.folder.rows}
                    federation.observer = Observer(
                        plan, self.folder.path, recorded_rounds, self._note
                    )
                if plan.settings.record_predictions:
                    from protofl.federation.round.predictions import Predictions

                    federation.predictions = Predictions(
                        plan, self.folder.path, self.folder.rows, self._note
                    )
                if "flops" in plan.settings.measure:
                    from protofl.runs.dry_run.short_rounds import count_flops

                    federation.flops = count_flops(plan)
                for trial, first in self._remaining():
                    with self.profile.span("waiting for hosts, and set-up", "start"):
                        if first:
                            self.folder.continue_trial(trial)
                            federation.resume(self.folder)
                        else:
                            federation.start_trial(trial)
                    self._trial(federation, commits, first)
                    self.accuracies[trial] = federation.client_accuracy
                if federation.predictions is not None:
                    federation.predictions.finish(self.folder.rows, self.folder.saved_rounds)
        finally:
            if (self.folder.path / "config.json").exists():
                self.profile.write(self.folder.path / "profile")

    @contextmanager
    def _ready(self) -> Iterator[tuple[Plan, Pool, dict[str, Any]]]:
        """Do the dry run, open the hosts, and create the folder.

        Worker processes load their libraries during the dry run; with ``--engine auto`` on a GPU
        none starts before the engine is chosen. Whatever ends the block, an error of the dry run or
        an interruption too, ends the workers.

        Yields:
            The plan, the hosts, and what the dry run has learned of payloads.
        """
        if self.plan.settings.backend == "auto":
            from protofl.runs.lifecycle.backend_choice import choose_backend

            keeps_workers = self.idle is not None
            self.plan = choose_backend(self.plan, self._note, keeps_workers=keeps_workers)
        with ExitStack() as until:
            pool: Pool | None = None
            if self.plan.settings.engine != "auto":  # hosts start during the dry run
                pool = until.enter_context(closing(self._pool(self.plan)))
            learned = self._try_out()
            if pool is None:
                pool = until.enter_context(closing(self._pool(self.plan)))
            if len(self.plan.devices) > 1 and isinstance(pool, Starting):
                pool.ready()  # before there is a folder: a GPU may have no memory left
            self._begin_record()
            yield self.plan, pool, learned

    def _pool(self, plan: Plan) -> Pool:
        """Open the hosts of a plan."""
        pool: Pool = plan.choices["backend"].call(
            "open_pool", plan=plan, workers=plan.settings.workers, idle=self.idle
        )
        try:
            if plan.settings.keep_weights and isinstance(pool, ClientFiles):
                from protofl.runs.results.kept_weights import elsewhere

                raise elsewhere(plan)
            if "open_schedule" in plan.choices["schedule"].hooks:
                from protofl.federation.round.schedules import check_pool

                check_pool(plan, pool)
        except UsageError:
            pool.close()
            raise
        return pool

    def _note(self, line: str) -> None:
        self.progress(events.Note(line))

    def _recorded_note(self, line: str) -> None:
        """Report a note that is also recorded."""
        self._notes.append(line)
        self._note(line)

    def _config(self) -> dict[str, Any]:
        return config_of(
            self.plan,
            tried=self.plan.settings.dry_run,
            notes=self._notes,
            engine_chosen=self._engine_chosen,
        )

    def _try_out(self) -> dict[str, Any]:
        """Do the dry run, choose engine and client store; return what it has learned."""
        plan, learned = self.plan, dict[str, Any]()
        beside_models: list[int] = []
        if line := about_arithmetic(plan):
            self._recorded_note(line)
        begins = any(first == 0 for _, first in self._remaining())
        if plan.settings.dry_run and begins:
            from protofl.runs.dry_run.short_rounds import dry_run  # a resumed run does without

            self.progress(events.DryRunStarted())
            with self.profile.span("dry run", "start"):
                learned = dry_run(plan, self._recorded_note, beside_models.append)
        if plan.settings.engine == "auto":
            from protofl.runs.lifecycle.engine_choice import choose_engine

            with self.profile.span("engine check", "start"):
                self.plan, line = choose_engine(plan)
            plan, self._engine_chosen = self.plan, True
            self._recorded_note(line)
        self.plan = plan = with_store(plan, beside_models, self._recorded_note)
        return learned

    def _begin_record(self) -> None:
        """Create the folder."""
        plan = self.plan
        with self.profile.span("costs", "start"):
            for architecture in plan.info.architectures:
                plan.cost(architecture)  # kept for the rounds
        if not self.request.resume:
            path = expand_user(self.folder.path).absolute()
            check_free(path)
            self.until.enter_context(folder_lock(path, "--out"))
            self.folder = RunFolder.create(path, self._config())
            self.progress(events.FolderMade(self.folder))
        self.write_data_facts()
        info, sizes = plan.info, plan.split(0).train_sizes
        small = ((sizes > 0) & (sizes < LEAST)).nonzero().flatten().tolist()
        few = sum(has_batch_norm(a, *info.sizes_of(a)) for a in map(info.architecture_of, small))
        if few:
            line = f"{few} clients have fewer than {LEAST} training samples: BatchNorm in eval mode"
            self._note(line)

    def write_data_facts(self) -> None:
        """Write counts and hash of every trial's split, and the preparation of the samples."""
        plan = self.plan
        record = partition_record([plan.split(trial) for trial in plan.split_trials], plan.data)
        self._splits = [record, *record["trials"]]
        write_json(self.folder.path / PARTITION, record)
        preparation = plan.preparation(plan.split_trials)
        if preparation is not None:
            write_json(self.folder.path / PREPARATION, preparation.as_json())

    def _remaining(self) -> Iterator[tuple[int, int]]:
        """Yield each unfinished trial and the round at which it continues."""
        settings = self.plan.settings
        for trial in range(settings.trials):
            rows = [row for row in self.folder.rows if row.trial == trial]
            if len(rows) < settings.rounds and not is_exhausted(rows, settings.patience):
                yield trial, len(rows)

    def _trial(self, federation: Federation, commits: RoundCommits, first: int) -> None:
        settings = self.plan.settings
        trained: set[int] = set()
        rows = [row for row in self.folder.rows if row.trial == federation.trial]
        engine = {"engine": settings.engine}
        other = {} if engine.items() <= self.folder.config().items() else engine
        for number in range(first, settings.rounds):
            last = number + 1 == settings.rounds
            with self.profile.round():
                commits(events.RoundStarted(federation.trial, number))
                row, clients = federation.round(number)
                expect_no_other_draws()
                row = row.changed(**other)
                if federation.predictions is not None:
                    federation.predictions.keep(row, rows, self.folder.saved_rounds)
                trained |= {*clients}
                rows.append(row)
                ended = is_exhausted(rows, settings.patience)
                last |= ended
                every, kept = settings.checkpoint_every, self._is_chosen(number)
                if settings.keep == "best":  # the folder may not have the last row yet
                    kept |= is_best(row, rows[:-1])
                if every and ((number + 1) % every == 0 or last or kept):
                    self._commit(federation, commits, row, trained)
                    trained = set()
                else:
                    commits.commit(partial(self.folder.add, row))
                if last:
                    commits.wait()
            if ended:
                age = f"{settings.patience} rounds old (--patience {settings.patience})"
                reason = row.ended or f"its best round is {age}"
                name = f"trial {federation.trial + 1}" if settings.trials > 1 else "the run"
                self._note(f"{name} ends after round {number + 1}: {reason}")
                break

    def _is_chosen(self, round: int) -> bool:
        """Return True if ``--keep-weights`` keeps the weights of a round."""
        return round in kept_rounds(self.plan.settings.keep_weights, self.plan.settings.rounds)

    def _commit(
        self, federation: Federation, commits: RoundCommits, row: Row, trained: set[int]
    ) -> None:
        """Commit a round, with all clients that trained since the last commit.

        Where a thread does it, clients and server are copied here, and written there.
        """
        beside, settings = self._beside, self.plan.settings
        start, in_commit = time.perf_counter(), partial(self.profile.span, "commit", "server")
        with in_commit():
            commits.wait()  # before the copies: memory holds those of one round
        paths = self.folder.client_paths(sorted(trained), federation.trial, row.round)
        checks = federation.save_clients(sorted(trained), paths)
        with in_commit():
            unwritten, server = federation.take_unwritten(), pack_server(federation.server)
            if beside:
                server = copied(server[0]), server[1]
            holders = {*federation.holders}
        seconds = time.perf_counter() - start
        spent = {k: rounded(row.seconds[k] + seconds) for k in ("checkpoint", "total")}
        row = row.changed(seconds={**row.seconds, **spent})
        chosen = self._is_chosen(row.round)

        def commit() -> None:
            with nullcontext() if beside else in_commit():
                for path, packed in unwritten.items():
                    write_tensors(Path(path), *packed)
                self.folder.commit_round(
                    row, server, holders, paths, checks, keep=settings.keep, chosen=chosen
                )
                keep_files(federation.pool, self.folder.client_files)

        commits.commit(commit, beside=beside)

    def conclude(self) -> Result:
        """Write the summary."""
        plan = self.plan
        about = {
            "rounds": plan.settings.rounds,
            "clients": plan.info.num_clients,
            "eval_clients": plan.settings.eval_clients,
            **({"patience": patience} if (patience := plan.settings.patience) else {}),
        }
        rows = self.folder.rows
        if still_falls([row for row in rows if row.trial == rows[-1].trial]):
            self._note(
                "the training loss still falls fast: more than 5 % of its fall came in the last "
                "fifth of the rounds; more --rounds or another --lr may train further"
            )
        summary = summarise(rows, plan.majority_accuracy, about)
        self.folder.finish(summary)
        (self.folder.path / SESSION).unlink(missing_ok=True)  # where it ran is not its result
        profile = self.profile.summary()
        accuracies = recorded_accuracies(self.folder.rows) | self.accuracies
        splits = {row.trial: self._splits[row.trial % len(self._splits)] for row in rows}
        clients = client_lines(splits, recorded_accuracies(rows), plan.info.names_by_client)
        result = Result(self.folder.rows, summary, accuracies, self.folder.path, profile, clients)
        self.progress(events.Finished(result, self.plan))
        return result
