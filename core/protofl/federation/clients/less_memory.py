"""Training on a device whose memory does not suffice: fewer clients at once, then more slowly.

Where training of several clients at once runs out of memory, half as many are trained at once, down
to one; then the reference engine takes its place; then clients that do not work leave the device.
Results are the same, as each attempt begins with the weights, the state and the random numbers of
the first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from protofl.errors import device_is_full
from protofl.federation.clients.local_training import Sums, by_engine
from protofl.federation.clients.train_job import TrainJob
from protofl.hooks.plugin.members import Choice
from protofl.system.transfers import gathered, spread


class Attempts:
    """Runs an engine on clients, with what memory there is.

    Args:
        reference: Returns the engine ``eager``.
        leave_device: Moves clients that do not work off the device; returns whether any did.
        note: Takes a line for the user.

    Attributes:
        most: Clients at once, at most; None for any number.
    """

    def __init__(
        self,
        reference: Callable[[], Choice],
        leave_device: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._reference, self._leave_device, self._note = reference, leave_device, note
        self._slow: set[tuple[str, str]] = set()
        self.most: int | None = None

    def __call__(self, engine: Choice, jobs: list[TrainJob]) -> list[Sums]:
        """Train clients in one phase; return each one's sums of loss terms."""
        size = self.most or len(jobs)
        if len(jobs) > size:
            return [
                sums
                for at in range(0, len(jobs), size)
                for sums in self(engine, jobs[at : at + size])
            ]
        if len(jobs) > 1:
            found = self._tried(engine, jobs)
            if found is not None:
                return found
            self.most = (len(jobs) + 1) // 2
            clients = "1 client" if self.most == 1 else f"{self.most} clients"
            self._note(f"memory of the device ran out: {clients} at once, not {len(jobs)}")
            return self(engine, jobs)
        return self._alone(engine, jobs)

    def _alone(self, engine: Choice, jobs: list[TrainJob]) -> list[Sums]:
        """Train one client, whatever it takes."""
        key = jobs[0].architecture, jobs[0].phase.name
        if engine.name != "eager":
            if key not in self._slow:
                found = self._tried(engine, jobs)
                if found is not None:
                    return found
                self._slow.add(key)
                why = "memory of the device ran out"
                self._note(f"engine {engine.name}: {key[0]} is trained by eager: {why}")
            engine = self._reference()
        if (found := self._tried(engine, jobs)) is not None:
            return found
        if self._leave_device():
            self._note("memory of the device ran out: clients lie in host memory from now on")
        return by_engine(engine, jobs)

    def _tried(self, engine: Choice, jobs: list[TrainJob]) -> list[Sums] | None:
        """Train clients; None if memory ran out, and then they are what they were."""
        # Engines that train groups work on memory of their own and change no client if they fail.
        before = [Before(job, copied=not engine.trains_groups) for job in jobs]
        try:
            return by_engine(engine, jobs)
        except Exception as error:
            if not device_is_full(error) or not all(each.can_restore for each in before):
                raise
        for each in before:  # here the error and what its frames held are gone
            each.restore()
        return None


class Before:
    """A client before a phase of its training.

    Args:
        job: The phase.
        copied: Whether its weights are copied; without, it can be restored only while nothing has
            been written to them.
    """

    def __init__(self, job: TrainJob, *, copied: bool) -> None:
        whole = job.whole()
        tensors = [*whole.parameters(), *whole.buffers()]
        self._tensors = {str(place): tensor.detach() for place, tensor in enumerate(tensors)}
        self._versions = self._now
        self._restore_state = job.snapshot()
        self._piece: torch.Tensor | None = None
        if not copied:
            return
        try:
            self._piece = gathered(self._tensors)
        except torch.OutOfMemoryError:
            self._piece = gathered({name: t.to("cpu") for name, t in self._tensors.items()})

    @property
    def _now(self) -> list[int]:
        """How often each tensor has been written to."""
        return [tensor._version for tensor in self._tensors.values()]

    @property
    def can_restore(self) -> bool:
        """True if the client can be what it was."""
        return self._piece is not None or self._versions == self._now

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the client's weights and state."""
        if self._piece is not None:
            for name, values in spread(self._piece, self._tensors).items():
                self._tensors[name].copy_(values)
        self._restore_state()
