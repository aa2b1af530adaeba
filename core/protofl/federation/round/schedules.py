"""Types for schedules: the desk of a run, and uploads with their versions.

Public as ``protofl.schedules``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from protofl.errors import UsageError
from protofl.federation.jobs import jobs
from protofl.federation.jobs.jobs import TrainReply
from protofl.federation.jobs.pool_interface import ClientFiles, Pool
from protofl.federation.plan.plan import Plan
from protofl.federation.round.participation import Participation
from protofl.federation.round.round_stages import Stages
from protofl.federation.round.round_totals import Totals
from protofl.federation.round.server_side import ServerSide, admit_uploads
from protofl.federation.time.virtual_clock import VirtualClock
from protofl.hooks.wire.payload import Payload
from protofl.system.files.atomic import ScratchFolder

__all__ = ["Desk", "Schedule", "TrainReply"]


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


class Desk:
    """What a schedule does with the server and the clients of a trial.

    A client in flight has downloaded and not yet uploaded. It trains at any time between; its new
    state lies in a file until its upload is accepted.

    Args:
        plan: The run.
        side: The server.
        stages: Orders jobs, and tells the user lines.
        who: The clients, and virtual time.
        folder: A folder for files of clients, inside the run folder; None for a temporary one.

    Attributes:
        plan: The run.
        step: The number of steps of the server so far.
        totals: The totals of the current step.
    """

    def __init__(
        self,
        plan: Plan,
        side: ServerSide,
        stages: Stages,
        who: Participation,
        folder: str | None,
    ) -> None:
        self.plan, self._side, self._stages, self._who = plan, side, stages, who
        self.step, self.totals = 0, Totals()
        self._scratch = ScratchFolder("protofl-flights-", folder)
        self._files: dict[int, str] = {}

    @property
    def clock(self) -> VirtualClock:
        """Virtual time, and the clients' devices."""
        assert self._who.clock is not None, "a schedule without rounds needs a device model"
        return self._who.clock

    def begin(self, step: int) -> None:
        """Begin a step of the server, as the run does before `Schedule.collect`."""
        self.step, self.totals = step, Totals()
        self._side.begin(step)

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

    def train(self, flights: Mapping[int, tuple[int, bytes]]) -> dict[int, TrainReply]:
        """Train clients, several at a time; return {client: reply} without lost clients.

        A client's state does not change before `accept`.

        Args:
            flights: {client: step at which it downloaded, and its download}.
        """
        skip = self.plan.settings.on_lost_client == "skip"
        work = []
        for client, (step, blob) in flights.items():
            work.append(self._training(client, step, blob, skip))
        self._stages.begin("train", [*flights])
        return self._stages.replies("train", work, TrainReply, self.totals)

    def accept(self, flights: Mapping[int, tuple[int, TrainReply]]) -> dict[int, Payload]:
        """Check uploads together, and give clients the states with which they sent them.

        Args:
            flights: {client: step at which it downloaded, and the reply of its training}.

        Returns:
            The accepted uploads, with their ``version`` and ``staleness``.

        Raises:
            RunFailure: An upload is not as it should be, and the run is to stop then.
        """
        replies = {client: reply for client, (_, reply) in sorted(flights.items())}
        arguments = self._side, self.plan, self._stages
        uploads = admit_uploads(replies, self.step, self.totals, *arguments)
        work = []
        for client, upload in uploads.items():
            upload.version = flights[client][0]
            upload.staleness = self.step - upload.version
            work.append(jobs.Load(client, self._file(client, upload.version)))
            self.totals.absent.pop(client, None)
            self.totals.trained[client] = replies[client].samples
        self._stages.replies("train", work, jobs.Reply, self.totals)
        self._who.hear({client: replies[client] for client in uploads})
        for client, (step, _) in flights.items():
            file = self._file(client, step)
            unneeded = self._files.pop(client, None) if client in uploads else file
            if unneeded is not None:
                Path(unneeded).unlink(missing_ok=True)
            if client in uploads:
                self._files[client] = file
        return uploads

    def drop(self, client: int, step: int, reason: str) -> None:
        """Leave out the upload of a client in flight; the client stays what it was before.

        Args:
            client: The client.
            step: The step at which it downloaded.
            reason: One of `protofl.hooks.transport.rules.REASONS`.
        """
        self.totals.leave_out(client, reason)
        Path(self._file(client, step)).unlink(missing_ok=True)

    def _training(self, client: int, step: int, blob: bytes, may_fail: bool) -> jobs.Train:
        file = self._file(client, step)
        return jobs.Train(client, step, blob=blob, may_fail=may_fail, may_be_undone=True, file=file)

    def _file(self, client: int, step: int) -> str:
        """Return the file of a client in flight."""
        return str(self._scratch.file(f"flight-{client:05d}-{step}.safetensors"))


def check_pool(plan: Plan, pool: Pool) -> None:
    """Check that the hosts of a run can do what its schedule needs.

    Raises:
        UsageError: They keep the clients' files.
    """
    choice = plan.choices["schedule"]
    if "open_schedule" in choice.hooks and isinstance(pool, ClientFiles):
        raise UsageError(
            f"--schedule {choice.name}: with --backend {plan.settings.backend} the clients' files "
            "stay on their own machines",
            "a client in flight has a file with its next state, which is taken or dropped here",
            "take --schedule rounds, or another backend",
        )


def check_schedule(plan: Plan) -> None:
    """Check that a run can have its schedule.

    Raises:
        UsageError: It can't.
    """
    choice = plan.choices["schedule"]
    if "open_schedule" not in choice.hooks:
        return
    if plan.settings.devices is None:
        raise UsageError(
            f"--schedule {choice.name} acts in virtual time, and this run has none",
            do="choose devices for the clients: --devices NAME, or take --schedule rounds",
        )
    choice.call("check_run", plan=plan)
