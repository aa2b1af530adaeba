"""Types for schedules: the coordinator of a run, and uploads with their versions.

Public as ``protofl.schedules``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from protofl.errors import UsageError
from protofl.federation.clients.evaluation import counts_in
from protofl.federation.jobs import jobs
from protofl.federation.jobs.jobs import TrainReply
from protofl.federation.jobs.pool_interface import AsynchronousPool, ClientFiles, Pool, Presence
from protofl.federation.plan.plan import Plan
from protofl.federation.round.participation import Participation
from protofl.federation.round.round_stages import Stages
from protofl.federation.round.round_totals import Totals
from protofl.federation.round.server_side import ServerSide, admit_uploads
from protofl.federation.time.virtual_clock import VirtualClock
from protofl.hooks.transport.rules import Fault
from protofl.hooks.wire.payload import Payload
from protofl.system.files.atomic import ScratchFolder

__all__ = ["Coordinator", "Schedule", "TrainReply"]


class Schedule(Protocol):
    """The schedule of a trial, as `open_schedule` returns it."""

    def collect(self, step: int) -> dict[int, Payload]:
        """Return the uploads of a step of the server, {client: upload}, in ascending client id.

        Args:
            step: The number of steps before it, which is the version of the server's global state.
        """
        ...

    def is_due(self, step: int) -> bool:
        """Return True if this step ends with an evaluation; the last one does in any case."""
        ...

    def line(self) -> dict[str, Any]:
        """Return the value of ``schedule`` in the step's line of the record."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs: nested plain values and tensors."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the step at which `state` returned this."""
        ...


class Coordinator:
    """Access of a schedule to the server and the clients of a trial.

    A client in training has downloaded and not yet uploaded. It trains at any time between; its new
    state lies in a file until its upload is accepted.

    In virtual time a schedule calls `downloads` and `train`. In real time it calls `send`, which
    does not wait, and `arrived`.

    Args:
        plan: The run.
        pool: The hosts.
        side: The server.
        stages: Orders jobs, and tells the user lines.
        who: The clients, and virtual time.
        folder: A folder for files of clients, inside the run folder; None for a temporary one.

    Attributes:
        plan: The run.
        step: The number of steps of the server so far.
        totals: The totals of the current step.
        real_time: True if clients train on machines of their own, and there is no virtual time.
    """

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        side: ServerSide,
        stages: Stages,
        who: Participation,
        folder: str | None,
    ) -> None:
        self.plan, self._side, self._stages, self._who = plan, side, stages, who
        self.step, self.totals = 0, Totals()
        self._scratch = ScratchFolder("protofl-tasks-", folder)
        self._files: dict[int, str] = {}
        self._pool, self._away = pool, set[int]()
        self._scores: dict[int, tuple[int, jobs.EvaluateReply, Payload]] = {}
        self._evaluated: dict[int, int] = {}
        self.real_time = who.clock is None and isinstance(pool, AsynchronousPool)

    @property
    def clock(self) -> VirtualClock:
        """Virtual time, and the clients' devices."""
        assert self._who.clock is not None, "a schedule without rounds needs a device model"
        return self._who.clock

    def begin(self, step: int) -> None:
        """Begin a step of the server, as the run does before `Schedule.collect`."""
        self._side.begin(step)
        self.step, self.totals = step, Totals(malicious=self._side.state.malicious)
        self._evaluated = {}
        if self._away:  # they go on
            self._stages.begin("train", sorted(self._away))

    def act(self, uploads: Mapping[int, Payload]) -> None:
        """Run the server's hooks, in a dry run; otherwise the run does so after each step."""
        self._side.learn(uploads)

    # --- clients --------------------------------------------------------------------------------

    def members(self) -> np.ndarray:
        """Return the clients that may be asked in this step, ascending."""
        return np.array(self._who.members.numbers(self.step), dtype=np.int64)

    def choose(self, count: int, among: np.ndarray, draw: int) -> list[int]:
        """Return the clients that the run's client sampler chooses, ascending.

        Args:
            count: How many, at most.
            among: The clients that can be asked, ascending.
            draw: How often it has chosen in this step before.
        """
        return self._who.sampler.choose(self.step, count, among, draw)

    def downloads(self, clients: Sequence[int]) -> dict[int, bytes]:
        """Send downloads, which count as traffic of this step; equal ones are one object."""
        return dict(self._side.downloads(clients, self.totals))

    def next_download(self, client: int) -> Payload:
        """Return what a client would download now, without sending it."""
        return self._side.next_download(client)

    def train(self, tasks: Mapping[int, tuple[int, bytes]]) -> dict[int, TrainReply]:
        """Train clients, several at a time; return {client: reply} without lost clients.

        A client's state does not change before `accept`.

        Args:
            tasks: {client: step at which it downloaded, and its download}.
        """
        skip = self.plan.settings.on_lost_client == "skip"
        work = []
        for client, (step, blob) in tasks.items():
            work.append(self._training(client, step, blob, skip))
        self._stages.begin("train", [*tasks])
        return self._stages.replies("train", work, TrainReply, self.totals)

    def accept(self, tasks: Mapping[int, tuple[int, TrainReply]]) -> dict[int, Payload]:
        """Check uploads together, and give clients the states with which they sent them.

        Args:
            tasks: {client: step at which it downloaded, and the reply of its training}.

        Returns:
            The accepted uploads, with their ``version`` and ``staleness``.

        Raises:
            RunFailure: An upload is not as it should be, and the run is to stop then.
        """
        replies = {client: reply for client, (_, reply) in sorted(tasks.items())}
        arguments = self._side, self.plan, self._stages
        uploads = admit_uploads(replies, self.step, self.totals, *arguments)
        work = []
        for client, upload in uploads.items():
            upload.version = tasks[client][0]
            upload.staleness = self.step - upload.version
            work.append(jobs.Load(client, self._file(client, upload.version)))
            self.totals.absent.pop(client, None)
            self.totals.trained[client] = replies[client].samples
        self._stages.replies("train", work, jobs.Reply, self.totals)
        self._who.hear({client: replies[client] for client in uploads})
        for client, (step, _) in tasks.items():
            file = self._file(client, step)
            unneeded = self._files.pop(client, None) if client in uploads else file
            if unneeded is not None:
                self._remove(unneeded)
            if client in uploads:
                self._files[client] = file
        return uploads

    def drop(self, client: int, step: int, reason: str) -> None:
        """Leave out the upload of a client in training; the client stays what it was before.

        Args:
            client: The client.
            step: The step at which it downloaded.
            reason: One of `protofl.hooks.transport.rules.REASONS`.
        """
        self.totals.leave_out(client, reason)
        self._remove(self._file(client, step))

    def _training(self, client: int, step: int, blob: bytes, may_fail: bool) -> jobs.Train:
        file = self._file(client, step)
        return jobs.Train(client, step, blob=blob, may_fail=may_fail, may_be_undone=True, file=file)

    def _file(self, client: int, step: int) -> str:
        """Return the file of a client in training; in real time a name, of which the pool knows."""
        name = f"task-{client:05d}-{step}.safetensors"
        return name if self.real_time else str(self._scratch.file(name))

    def _remove(self, file: str) -> None:
        if not self.real_time:
            Path(file).unlink(missing_ok=True)

    # --- in real time ---------------------------------------------------------------------------

    def reachable(self) -> np.ndarray:
        """Return the members whose machines are there and have nothing to do, ascending."""
        assert isinstance(self._pool, Presence) and isinstance(self._pool, AsynchronousPool)
        there = {*self._pool.present()}.difference(self._pool.busy())
        return np.array([c for c in self.members().tolist() if c in there], dtype=np.int64)

    def send(self, clients: Sequence[int]) -> dict[int, bytes]:
        """Send clients their downloads, with which they train, and return at once.

        A client is evaluated with its download first, as at the end of a round. `to_evaluate` reads
        these scores.

        Returns:
            {client: its download}.
        """
        assert isinstance(self._pool, AsynchronousPool)
        downloads = self.downloads(clients)
        skip = self.plan.settings.on_lost_client == "skip"
        for client, blob in sorted(downloads.items()):
            work: list[jobs.ClientJob] = [self._training(client, self.step, blob, skip)]
            if self.step:
                work.insert(0, jobs.Evaluate(client, self.step - 1, blob=blob, may_fail=skip))
            self._pool.send(work)
        self._away.update(clients)
        self._stages.begin("train", sorted(self._away))
        return downloads

    def arrived(self, seconds: float) -> dict[int, TrainReply | None]:
        """Return {client: reply of its training, None for a lost client} of tasks that ended.

        Args:
            seconds: How long to wait, at most, until there is one.
        """
        assert isinstance(self._pool, AsynchronousPool)
        result: dict[int, TrainReply | None] = {}
        for job, reply in self._pool.arrived(seconds):
            if isinstance(job, jobs.Evaluate):
                self._take_score(job, reply)
                continue
            task = jobs.of_client(job)
            self._away.discard(task.client)
            taken = self._stages.take("train", task, reply, TrainReply, self.totals)
            result[task.client] = taken
        return result

    def _take_score(self, job: jobs.Evaluate, reply: jobs.Reply) -> None:
        """Keep a client's score until the next evaluation; without an answer the last one stays."""
        totals = Totals()
        score = self._stages.take("evaluate", job, reply, jobs.EvaluateReply, totals)
        self.totals.spend(totals.seconds)
        if score is None:
            return
        try:
            self._scores[job.client] = job.round + 1, score, counts_in(self.plan, job, score)
        except Fault as fault:
            self._stages.leave_unscored(job, fault, totals)

    @property
    def evaluated(self) -> dict[int, int]:
        """{client: the version with which it was evaluated} of this step's scores, in real time."""
        return {c: v for c, v in sorted(self._evaluated.items()) if c not in self.totals.unscored}

    def to_evaluate(self, clients: Sequence[int], *, last: bool) -> list[int]:
        """Return the clients to evaluate at the end of this step.

        In real time only the last step evaluates clients, and only those that have nothing to do.
        The others have the scores that came with their last uploads. Without a score yet, none is
        evaluated.

        Args:
            clients: The clients that count.
            last: Whether the trial ends here.
        """
        if not self.real_time:
            return [*clients]
        assert isinstance(self._pool, Presence) and isinstance(self._pool, AsynchronousPool)
        there, busy = {*self._pool.present()}, {*self._pool.busy()}
        asked = [client for client in clients if last and client in there and client not in busy]
        known = [c for c in clients if c in self._scores and c in there and c not in asked]
        for client in clients if asked or known else ():
            if client in asked:
                self._evaluated[client] = self.step + 1
            elif client in known:
                self._evaluated[client], score, counts = self._scores[client]
                self.totals.add_score(client, score, counts)
            else:
                reason = "late" if client in there else "left"
                self.totals.leave_out(client, reason, stage="evaluate")
        return asked


def check_pool(plan: Plan, pool: Pool) -> None:
    """Check that the hosts of a run without rounds can do what its schedule needs.

    Raises:
        UsageError: They keep the clients' files.
    """
    if isinstance(pool, ClientFiles) and not isinstance(pool, AsynchronousPool):
        raise UsageError(
            f"--schedule {plan.settings.timing}: with --backend {plan.settings.backend} the "
            "clients' files stay on their own machines",
            "a client in training has a file with its next state, which is taken or dropped here",
            "take --schedule rounds, or another backend",
        )


def check_schedule(plan: Plan) -> None:
    """Check that a run without rounds can have its schedule.

    Raises:
        UsageError: It can't.
    """
    choice = plan.choices["schedule"]
    backend = plan.choices.get("backend")
    if backend is not None and getattr(backend.plugin, "real_time", False):
        if not getattr(choice.plugin, "real_time", False):
            raise UsageError(
                f"--schedule {choice.name} acts in virtual time, and clients of backend "
                f"{backend.name} are machines of their own",
                "a schedule for them declares real_time = True",
                "take --schedule rounds",
            )
    elif plan.settings.devices is None:
        raise UsageError(
            f"--schedule {choice.name} acts in virtual time, and this run has none",
            do="choose devices for the clients: --devices NAME, or take --schedule rounds",
        )
    choice.call("check_run", plan=plan)
