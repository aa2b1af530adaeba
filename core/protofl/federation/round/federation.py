"""The federation loop: the steps of a round in order. The backend decides where they run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.federation import events
from protofl.federation.clients.evaluation import counts_in, figures_of
from protofl.federation.jobs import jobs
from protofl.federation.jobs.pool_interface import (
    ClientFiles,
    LeavesFiles,
    Pool,
    Presence,
    keep_files,
)
from protofl.federation.plan.plan import Plan
from protofl.federation.round.participation import Participation
from protofl.federation.round.round_stages import Stages
from protofl.federation.round.round_totals import TUNED_VALIDATION, VALIDATION, Totals
from protofl.federation.round.server_side import ServerSide, admit_uploads, book_losses
from protofl.hooks.models.flops import ClientFlops, flops_of_round
from protofl.hooks.transport.rules import Fault
from protofl.hooks.views.server_state import ServerState
from protofl.hooks.views.snapshots import unpack_server
from protofl.hooks.wire.payload import Payload
from protofl.records.row import Row
from protofl.records.run_folder import RunFolder
from protofl.system.clocks import UNPROFILED, NoProfile
from protofl.system.device import compute_threads
from protofl.system.files.checksums import Check
from protofl.system.files.tensors import Packed
from protofl.system.transfers import has_streams

if TYPE_CHECKING:
    from protofl.federation.round.observer import Observer
    from protofl.federation.round.predictions import Predictions
    from protofl.federation.round.schedules import Coordinator, Schedule


class Federation:
    """A server, and a pool of hosts with the clients.

    Args:
        plan: The run.
        pool: The hosts.
        progress: Receives every stage and every client that is done.
        profile: Takes where the time goes.
        parked: A folder in which hosts may keep clients on disk; None for one of their own.
        participation: The participants of each round; by default those of the plan.

    Attributes:
        trial: The trial.
        client_accuracy: {client: its accuracy} in the last round.
        flops: What clients of each architecture compute, where rounds are to tell of it.
        learned: What the dry run has shown of uploads; empty where there was none.
        observer: Keeps what the run is asked to observe, if anything.
        predictions: Takes the predictions of each evaluation, if the run records them.
        elsewhere: True if the pool keeps the clients' files.
    """

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        progress: events.Progress = events.ignore,
        *,
        profile: NoProfile = UNPROFILED,
        parked: Path | None = None,
        participation: Participation | None = None,
    ) -> None:
        self.plan, self.pool = plan, pool
        self.elsewhere = isinstance(pool, ClientFiles)
        self._parked = None if parked is None or self.elsewhere else str(parked)
        self._profile = profile
        self._who = participation or Participation(plan)
        self._stages = Stages(plan, pool, progress, profile)
        self.trial = 0
        self.client_accuracy: dict[int, float] = {}
        self.flops: Sequence[ClientFlops] = ()
        self.learned: Mapping[str, Any] = {}
        self.observer: Observer | None = None
        self.predictions: Predictions | None = None
        self._server_side: ServerSide
        self._rounds: Rounds
        self._coordinator: Rounds | Coordinator
        self._schedule: Rounds | Schedule

    @property
    def server(self) -> ServerState:
        """The state of the server."""
        return self._server_side.state

    @property
    def holders(self) -> set[int]:
        """The clients that hold the download of the last round's end."""
        return self._rounds.holders

    # --- a trial --------------------------------------------------------------------------------

    def start_trial(self, trial: int, folder: RunFolder | None = None) -> None:
        """Set up the server and start the trial on all hosts.

        Args:
            trial: The trial.
            folder: The run folder, for a trial that continues after its last committed round.
        """
        self.trial = self._stages.trial = trial
        self._who.start(trial, folder.rows if folder else ())
        self._server_side = ServerSide(self.plan, trial, self._profile)
        self.server.learned = deepcopy({**self.learned})
        self._build_validation()
        self._rounds = Rounds(self.plan, self.pool, self._server_side, self._stages, self._who)
        self._open_schedule()
        store = self.plan.settings.client_store if has_streams(self.plan.device) else "auto"
        start = jobs.StartTrial(trial, parked=self._parked, store="" if store == "auto" else store)
        if folder and folder.commit:
            keep_files(self.pool, folder.client_files)
            start.files, start.checks = folder.committed_clients(), folder.commit.client_checks
        self.pool.broadcast(start)

    def resume(self, folder: RunFolder) -> None:
        """Restore a run's last committed round."""
        assert folder.commit
        self.start_trial(folder.commit.trial, folder)
        unpack_server(self.server, folder.committed_server())
        self._build_validation()
        self._rounds.holders = set(folder.commit.holders)
        self._schedule.restore(self.server.schedule)

    def _open_schedule(self) -> None:
        """Open the schedule of the trial; a dry run has rounds."""
        self._coordinator = self._schedule = self._rounds
        choice = self.plan.choices["schedule"]
        if "open_schedule" in choice.hooks and not self.plan.dry:
            self._coordinator = self.coordinator()
            self._schedule = choice.call("open_schedule", coordinator=self._coordinator)

    def coordinator(self) -> Coordinator:
        """Return what a schedule does with the server and the clients of the trial."""
        from protofl.federation.round.schedules import Coordinator  # a run with rounds has none

        arguments = self._server_side, self._stages, self._who
        return Coordinator(self.plan, self.pool, *arguments, self._parked)

    def _build_validation(self) -> None:
        """Check uploads and replies by what the server has learned."""
        self._server_side.build_validation()
        self._stages.sizes = self._server_side.sizes

    # --- a round --------------------------------------------------------------------------------

    def round(self, number: int) -> tuple[Row, list[int]]:
        """Run a round.

        Returns:
            The round's line of ``metrics.jsonl`` without checkpoint times, and the clients that
            trained.

        Raises:
            RunFailure: A hook failed, an upload is not as it should be, or too few answered.
        """
        # Further threads would only wait for the cores on which clients train.
        with compute_threads(self.plan.settings.server_threads):
            return self._round(number)

    def _round(self, number: int) -> tuple[Row, list[int]]:
        start, settings = time.perf_counter(), self.plan.settings
        last = number + 1 == settings.rounds
        self._coordinator.begin(number)
        totals = self._coordinator.totals
        # 1. Who takes part. 2. What each downloads. 3. Local training and upload: see `Rounds`.
        uploads = self._schedule.collect(number)
        # From here on the round's clients are those that answered.
        self.server.evaluates = last or self._schedule.is_due(number)
        asked = sorted({*uploads, *totals.absent})
        clients, unusual = self._who.answered(number, asked, totals.absent)
        totals.participants, totals.answered = len(clients), clients if unusual else None
        # 4. The server aggregates, then trains.
        self.train_server(uploads, totals)
        if self.observer is not None:
            self.observer.see(number, uploads, self.server.global_state)
        # 5. Phases that follow the server's step, with this round's download.
        if self.plan.composition.has_follow_up(self.plan.info):
            self._rounds.follow_up(clients, number, totals)
        # 6. Evaluation, each client with what it would download next; also if the trial ends here.
        ended = self._server_side.end_trial()
        self.server.evaluates |= bool(ended)
        if self.server.evaluates:
            members, everyone = self._who.members, settings.eval_clients == "all"
            chosen = members.numbers(number) if everyone else clients
            totals.unscored = self._who.lost(number, "unscored", [*chosen, *members.unseen])
            chosen = self._coordinator.to_evaluate(chosen, last=last or bool(ended))
            self.evaluate_clients(chosen, number, totals)
            totals.add_metrics(figures_of(self.plan.metrics, totals.counts))
            totals.add_domains(self.plan.domains(self.trial))
            totals.samples_per_class = self.plan.balanced_per_class(self.trial)
            self._evaluate_apart(number, totals)
        with self._profile.span("end_round", "server"):
            extra = self._server_side.end_round(totals)
        if self.flops:
            place_of = self.plan.info.place_of
            totals.measures["flops"] = flops_of_round(self.flops, totals.trained, place_of)
        if self.observer is not None:
            self.observer.keep(self.trial, number)
        totals.seconds["total"] = time.perf_counter() - start
        self.client_accuracy = totals.accuracy
        rate: dict[str, Any] = {"lr": self.server.lr} if self.plan.scheduled else {}
        if line := {**self._schedule.line()}:
            if self.server.evaluates and not self._schedule.is_due(number):
                line["due"] = False  # a run with more rounds does not evaluate it
            rate["schedule"] = line
        self.server.schedule = self._schedule.state()
        line = {"trial": self.trial, "round": number, **totals.line(extra), **rate}
        line |= {"ended": ended} if ended else {}
        return Row({**line, **self._who.line(number)}), clients

    def train_server(self, uploads: Mapping[int, Payload], totals: Totals) -> None:
        """Run the server's hooks; without uploads the server does not change."""
        start = time.perf_counter()
        if uploads:
            self._stages.begin("server")
            totals.measures |= self._server_side.learn(uploads)
            while self.server.notes:
                self._stages.note(self.server.notes.pop(0))
        totals.spend({"server": time.perf_counter() - start})

    def evaluate_clients(
        self, clients: Sequence[int], number: int, totals: Totals, epochs: int | None = None
    ) -> None:
        """Evaluate clients with their next download, after fine-tuning for ``epochs``."""
        clients = [client for client in clients if client not in totals.unscored]
        self._stages.begin("evaluate", clients)
        observer = self.observer if epochs is None else None
        predictions = self.predictions if epochs is None else None
        skip = self.plan.settings.on_lost_client == "skip"
        for portion in self._server_side.portions(clients, totals):
            work = [
                jobs.Evaluate(
                    client,
                    number,
                    0 if observer is None else observer.samples(number),
                    epochs or 0,
                    predictions=predictions is not None,
                    blob=blob,
                    may_fail=skip,
                )
                for client, blob in portion.items()
            ]
            asked = {job.client: job for job in work}
            replies = self._stages.replies("evaluate", work, jobs.EvaluateReply, totals)
            for client, reply in replies.items():
                try:
                    counts = counts_in(self.plan, asked[client], reply)
                except Fault as fault:
                    self._stages.leave_unscored(asked[client], fault, totals)
                    continue
                if observer is not None:
                    observer.take_features(client, counts)
                if predictions is not None:
                    predictions.take(client, counts)
                totals.add_score(client, reply, counts)
        if skip:
            from protofl.federation.round.outliers import odd_counts

            tests = {client: count for client, (_, count) in totals.scores.items()}
            arguments = self.plan.metrics, totals.counts, tests, self.plan.info.num_classes
            for client, odd in odd_counts(*arguments, self.plan.data.task).items():
                lost = jobs.Evaluate(client, number, may_fail=True)
                self._stages.leave_unscored(lost, odd, totals)
        self._who.scored(number, totals.scores, totals.unscored)

    def _evaluate_apart(self, number: int, totals: Totals) -> None:
        """Evaluate unseen clients; after the last round fine-tune these, or all without any."""
        unseen, settings, epochs_by_figure = self._who.members.unseen, self.plan.settings, {}
        if unseen:
            epochs_by_figure["unseen_accuracy"] = 0
        if settings.fine_tune and number + 1 == settings.rounds:
            epochs_by_figure["fine_tuned_accuracy"] = settings.fine_tune
        untrained = {*self.plan.split(self.trial).untrained} if unseen else set()
        for name, epochs in epochs_by_figure.items():
            unseen_totals = Totals(unscored=totals.unscored)
            clients = unseen or self._who.members.numbers(number)
            tested = [c for c in clients if not epochs or c not in untrained]
            if not tested:
                continue
            self.evaluate_clients(tested, number, unseen_totals, epochs)
            totals.apart[name] = unseen_totals.scores
            if epochs and (held := unseen_totals.apart.get(VALIDATION)):
                totals.apart[TUNED_VALIDATION] = held
            totals.spend(unseen_totals.seconds)
            totals.failures |= unseen_totals.failures
        # No figure has a lost client.
        for client, name in product(totals.unscored, epochs_by_figure):
            totals.apart.get(name, {}).pop(client, None)

    def leave_files(self) -> bool:
        """Let `save_clients` leave files to `take_unwritten`, where a thread can write them.

        That is so on a device that computes beside the program, with the clients in this process. A
        CPU would need the memory of all clients twice, and gain little.

        Returns:
            True if it leaves them.
        """
        if not isinstance(self.pool, LeavesFiles) or not has_streams(self.plan.device):
            return False
        self.pool.unwritten = {}
        return True

    def take_unwritten(self) -> dict[str, Packed]:
        """Return {path: tensors} of the files that `save_clients` has left since the last call."""
        if not isinstance(self.pool, LeavesFiles) or not self.pool.unwritten:
            return {}
        taken, self.pool.unwritten = self.pool.unwritten, {}
        return taken

    def save_clients(self, clients: Iterable[int], paths: Mapping[int, str]) -> dict[int, Check]:
        """Save clients on their hosts; return checks of files that these keep."""
        work = [jobs.Save(client, paths[client]) for client in clients]
        self._stages.begin("checkpoint", [job.client for job in work])
        kind = jobs.SaveReply if self.elsewhere else jobs.Reply
        replies = self._stages.replies("checkpoint", work, kind, Totals()).items()
        return {c: Check(r.size, r.crc) for c, r in replies if isinstance(r, jobs.SaveReply)}


class Rounds:
    """The schedule of rounds, of which the dry run of every run has two.

    Args:
        plan: The run.
        pool: The hosts.
        side: The server.
        stages: Orders jobs.
        who: The participants.

    Attributes:
        totals: The totals of the current round.
        holders: Clients that hold the download of the last round's end.
    """

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        side: ServerSide,
        stages: Stages,
        who: Participation,
    ) -> None:
        self._plan, self._pool, self._side, self._stages = plan, pool, side, stages
        self._who, self._profile = who, stages.profile
        self.totals, self.holders = Totals(), set[int]()

    def begin(self, step: int) -> None:
        """Begin a round."""
        self._side.begin(step)
        self.totals = Totals(malicious=self._side.state.malicious)

    def participants(self, step: int) -> list[int]:
        """Return the clients that the server asks in a round, ascending."""
        return self._who.asked(step, self._pool if isinstance(self._pool, Presence) else None)

    def collect(self, step: int) -> dict[int, Payload]:
        """Run downloads, local training and uploads; return {client: accepted upload}."""
        totals = self.totals
        # 1. Who takes part.
        clients = self.participants(step)
        # 2. What each downloads. 3. Local training and upload, wherever the clients live.
        replies = self._train(clients, step, "before_upload", totals)
        # Who would come too late, or not at all, is as if never asked.
        if clock := self._who.clock:
            for client, reason in clock.arrive(replies, [*totals.absent]).items():
                totals.leave_out(client, reason)
        came = [client for client in clients if client in replies and client not in totals.absent]
        with self._profile.span("uploads", "server"):
            arrived = {client: replies[client] for client in came}
            uploads = admit_uploads(arrived, step, totals, self._side, self._plan, self._stages)
        lied = [client for client, reason in totals.absent.items() if reason == "skipped"]
        gone = sorted({*replies, *lied} - uploads.keys())
        if gone:
            self._stages.replies("undo", [jobs.Undo(client) for client in gone], jobs.Reply, totals)
        self._who.hear({client: replies[client] for client in uploads})
        return uploads

    def follow_up(self, clients: Sequence[int], step: int, totals: Totals) -> None:
        """Run the phases after the server's step; a lost client stays as it was before them."""
        self.holders = set()
        later = Totals(absent=self._who.lost(step, "unfollowed", clients))
        there = [client for client in clients if client not in later.absent]
        replies = self._train(there, step, "after_server", later)
        if self._who.clock:
            self._who.clock.follow(replies)
        totals.add_phases(later)
        self.holders = {client for client in there if client in replies}
        kept_replies = {client: replies[client] for client in sorted(self.holders)}
        book_losses(kept_replies, step, totals, self._plan, self._stages)

    def _train(
        self, clients: list[int], step: int, when: str, totals: Totals
    ) -> dict[int, jobs.TrainReply]:
        """Run local training; a client that holds its download is not sent it again."""
        settings, first = self._plan.settings, when == "before_upload"
        with self._profile.span("downloads", "server"):
            lacking = [client for client in clients if client not in self.holders]
            blobs = dict(self._side.downloads(lacking, totals))
            sizes = {client: len(blobs.get(client, b"")) for client in clients}
            # Clients that would be absent in virtual time need not train.
            clock = self._who.clock
            idle = clock.download(sizes, when) if clock else set()
            skip = settings.on_lost_client == "skip"
            undo = settings.on_bad_upload == "skip" or (clock and clock.leaves_out)
            work = [
                jobs.Train(
                    c,
                    step,
                    when,
                    keep_received=c not in blobs,
                    may_fail=skip,
                    may_be_undone=skip or bool(first and undo),
                    blob=blobs.get(c, b""),
                )
                for c in clients
                if c not in idle
            ]
        self._stages.begin("train", [job.client for job in work])
        replies = self._stages.replies("train", work, jobs.TrainReply, totals)
        for client, reply in replies.items():
            totals.trained[client] = totals.trained.get(client, 0) + reply.samples
        return replies

    def to_evaluate(self, clients: Sequence[int], *, last: bool) -> list[int]:
        """Return all clients that count."""
        return [*clients]

    def is_due(self, step: int) -> bool:
        """Return True if ``--eval-every`` asks for an evaluation."""
        return self._plan.is_due(step, self._plan.settings.eval_every)

    def line(self) -> dict[str, Any]:
        """Return nothing: all figures of a round are in its line."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return nothing: a round leaves no work to the next one."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""
