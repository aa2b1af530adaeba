"""A batch of runs.

::

    wanted = [BatchRun("tau=10", request), BatchRun("tau=100", other)]
    with Batch(Path("runs")) as batch:
        tried = batch.check_all(wanted)            # plan and dry step of each, nothing is trained
        outcomes = batch.run_all(tried)           # in the order of what is wanted

or, where any mistake is to end it, ``run_batch(wanted, Path("runs"))``. Runs are begun through
`protofl.runs.reuse` alone: one that is finished is not repeated, one that was interrupted
goes on. `run_all` never raises because of a run; its `Outcome` says what became of it, and its
``run`` is the recorded run. What is wanted next may depend on what was
found before: `Batch.do` takes a `Source` in place of a list.

Several runs are done at once, each in a process of its own that stays for the next one. Cores are
shared out: as many runs as there are cores, and where fewer are wanted, each run has several hosts.
Numbers of a run depend on neither.

^C, or any exception of who follows, ends all runs in order before it leaves the ``with`` block:
finished rounds are in their folders, and the same batch goes on from there.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from protofl.errors import UsageError
from protofl.runs.request import Request
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome
from protofl_workbench.batch.batch_tasks import (
    OrderedRuns,
    RunChecks,
    RunExecution,
    Source,
    check_error,
    shared_cores,
)
from protofl_workbench.batch.workers import GRACE, LocalWorker, ProcessWorker, WorkerMessage


class Batch:
    """Does runs that are wanted; a context manager, behind which nothing goes on.

    Args:
        runs: The runs' folder.
        at_once: Runs that are done at once; None for as many as there are cores, on a GPU one. 0
            does them in this process, one after the other: it sees classes of this program, and
            has nothing to start.
        follow: Called with every event (`protofl_workbench.batch.batch_events`).
        group: The name under which trackers of the runs, where they have some, put them together.
    """

    def __init__(
        self,
        runs: Path,
        *,
        at_once: int | None = None,
        follow: events.Follow = events.ignore,
        group: str = "",
    ) -> None:
        self._group = group
        self.runs, self._at_once, self._follow = runs.expanduser().absolute(), at_once, follow
        self._inbox: queue.Queue[tuple[ProcessWorker, WorkerMessage]] = queue.Queue()
        self._workers: list[ProcessWorker | LocalWorker] = []
        self._free: list[ProcessWorker | LocalWorker] = []
        self._going: dict[ProcessWorker | LocalWorker, BatchRun] = {}
        self._task: RunChecks | RunExecution = RunChecks((), measure=False)

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.close()
        try:
            if self._going and self._at_once != 0:
                self._follow(events.BatchStopping(len(self._going)))
        finally:
            self._end()

    def _end(self) -> None:
        """Wait until all that was done has ended."""
        until, again = time.monotonic() + GRACE, None
        processes = [worker for worker in self._workers if isinstance(worker, ProcessWorker)]
        while processes:
            try:
                processes.pop().wait(until)
            except KeyboardInterrupt as stop:  # once more: end them at once
                until, again = 0.0, stop
        if again is not None:
            raise again

    # --- what is asked of it --------------------------------------------------------------------

    def check_all(self, wanted: Sequence[BatchRun], *, measure: bool = False) -> list[CheckedRun]:
        """Plan every run, and do the dry step of those that are not finished; train nothing.

        Args:
            wanted: The runs.
            measure: Whether to measure what steps take, for `CheckedRun.seconds`.

        Returns:
            What was found of each, in their order; check_error are in it.
        """
        task = RunChecks(wanted, measure=measure)
        most = shared_cores([one.request for one in wanted], self._at_once)[0]
        self._work(task, most)
        return [task.found[one] for one in wanted]

    def run_all(self, tried: Sequence[CheckedRun]) -> list[Outcome]:
        """Do runs to their ends.

        Args:
            tried: The runs, as `check_all` found them; those with a mistake are left out.

        Returns:
            What became of each, in their order.
        """
        source = OrderedRuns(tried)
        todo = [one for one in tried if one.error is None and not one.finished]
        devices = {one.device for one in todo}
        self.do(source, [one.batch_run.request for one in todo], on_gpu=devices - {"cpu"} != set())
        return [source.outcomes[one.batch_run] for one in tried]

    def do(
        self,
        source: Source,
        alike: Sequence[Request],
        *,
        on_gpu: bool = False,
    ) -> None:
        """Do what a source wants, until it wants nothing and nothing goes on.

        Args:
            source: Says what is wanted.
            alike: The requests, or as many that are like them: by these cores are shared out.
            on_gpu: Whether they compute on a GPU.
        """
        most, hosts = shared_cores(alike, self._at_once, on_gpu=on_gpu)
        self._work(RunExecution(source, hosts=hosts, group=self._group), most)

    # --- how it is done -------------------------------------------------------------------------

    def _work(self, task: RunChecks | RunExecution, most: int) -> None:
        self._task = task
        while True:
            while len(self._going) < most and (wanted := task.next(self._follow)) is not None:
                self._begin(wanted)
            if not self._going:
                return
            worker, told = self._inbox.get()
            goes_on = self._take(worker, told)
            if isinstance(told, events.RoundDone):
                worker.send(goes_on)

    def _begin(self, wanted: BatchRun) -> None:
        if wanted.request.extra and self._at_once != 0:
            self._task.end(wanted, _unseen(wanted.request), self._follow)
            return
        worker = self._free.pop() if self._free else self._worker()
        self._going[worker] = wanted
        worker.send(self._task.job(wanted, self.runs))

    def _worker(self) -> ProcessWorker | LocalWorker:
        worker = LocalWorker(self._take) if self._at_once == 0 else ProcessWorker(self._inbox)
        self._workers.append(worker)
        return worker

    def _take(self, worker: ProcessWorker | LocalWorker, told: Any) -> bool:  # noqa: ANN401 - `WorkerMessage`
        """Take an event or the result of a worker's job; return whether its run goes on."""
        if isinstance(told, events.Event):
            event: Any = told
            return self._task.forward(replace(event, batch_run=self._going[worker]), self._follow)
        wanted = self._going.pop(worker, None)
        if told is not None:
            self._free.append(worker)
        elif isinstance(worker, ProcessWorker):  # it has ended
            self._workers.remove(worker)
            self._free = [one for one in self._free if one is not worker]
            told = worker.failure()
            worker.wait(0.0)
        if wanted is not None and told is not None:
            self._task.end(wanted, told, self._follow)
        return True


def _unseen(request: Request) -> UsageError:
    kind, name = next(iter(request.extra))
    return UsageError(
        f"{kind} {name!r} is a class of this program, which no other process can see",
        do="give it as FILE.py:CLASS, or do the runs in this process (at_once=0)",
    )


def run_batch(
    wanted: Sequence[BatchRun],
    runs: Path,
    *,
    at_once: int | None = None,
    follow: events.Follow = events.ignore,
) -> list[Outcome]:
    """Have runs done, none of them if one can't be.

    Args:
        wanted: The runs.
        runs: The runs' folder.
        at_once: As `Batch` takes it.
        follow: As `Batch` takes it.

    Returns:
        What became of each, in their order: finished, or failed.

    Raises:
        UsageError: One can't be done; nothing has been trained.
    """
    with Batch(runs, at_once=at_once, follow=follow) as batch:
        tried = batch.check_all(wanted)
        if (wrong := check_error(tried)) is not None:
            raise wrong
        return batch.run_all(tried)
