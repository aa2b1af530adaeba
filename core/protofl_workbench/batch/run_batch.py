"""A batch of runs.

::

    batch_runs = [BatchRun("tau=10", request), BatchRun("tau=100", other)]
    with Batch(Path("runs")) as batch:
        checked = batch.check_all(batch_runs)            # plan and dry run of each, no training
        outcomes = batch.run_all(checked)            # in the same order

With a `BatchSource` instead of a list, `RunBatch.do` chooses the next run from earlier outcomes.

Runs start through `protofl.runs.resume.reuse` only: finished runs are not repeated, and interrupted
runs are resumed. `run_all` does not raise errors of runs; they are in each `Outcome`.

Each parallel run has a worker process, which also does later runs. There are as many parallel runs
as cores; fewer runs have several hosts each. Results do not depend on these numbers.

^C, or an exception of a follower, stops all runs before the ``with`` block ends: finished rounds
are in their folders, and the same batch continues from there.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.federation.events import Event
from protofl.runs.request.request import Request
from protofl.system.files.home import expand_user
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome
from protofl_workbench.batch.batch_tasks import (
    BatchChecks,
    BatchSource,
    OrderedRuns,
    RunExecution,
    shared_cores,
)
from protofl_workbench.batch.workers import GRACE, LocalWorker, ProcessWorker, WorkerMessage


class RunBatch:
    """Executes runs; a context manager, after which no run is in progress.

    Args:
        runs: The folder of runs.
        at_once: Number of parallel runs; None for one per core, or one on a GPU. 0 executes them
            one by one in this process, which knows the classes of this program.
        follow: Called with every event (`protofl_workbench.batch.batch_events`).
        group: Group name of the runs for trackers; empty for none.
        repeat_diverged: False if a run that diverged before, and would diverge again here, fails
            with its recorded error instead of being trained again.
    """

    def __init__(
        self,
        runs: Path,
        *,
        at_once: int | None = None,
        follow: events.Follow = events.ignore,
        group: str = "",
        repeat_diverged: bool = True,
    ) -> None:
        self._group, self._repeat_diverged = group, repeat_diverged
        self.runs, self._at_once, self._follow = expand_user(runs).absolute(), at_once, follow
        self._inbox: queue.Queue[tuple[ProcessWorker, WorkerMessage]] = queue.Queue()
        self._workers: list[ProcessWorker | LocalWorker] = []
        self._free: list[ProcessWorker | LocalWorker] = []
        self._going: dict[ProcessWorker | LocalWorker, BatchRun] = {}
        self._task: BatchChecks | RunExecution = BatchChecks((), measure=False)

    def __enter__(self) -> RunBatch:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.close()
        try:
            if self._going and self._at_once != 0:
                self._follow(events.BatchStopping(len(self._going)))
        finally:
            self._end()

    def _end(self) -> None:
        """Wait until all workers have ended."""
        until, again = time.monotonic() + GRACE, None
        processes = [worker for worker in self._workers if isinstance(worker, ProcessWorker)]
        while processes:
            try:
                processes.pop().wait(until)
            except KeyboardInterrupt as stop:  # a second ^C ends them at once
                until, again = 0.0, stop
        if again is not None:
            raise again

    # --- requests ---------------------------------------------------------------------------------

    def check_all(
        self, batch_runs: Sequence[BatchRun], *, measure: bool = False, only_plan: bool = False
    ) -> list[CheckedRun]:
        """Plan every run, and do the dry run of unfinished runs; nothing is trained.

        Args:
            batch_runs: The runs.
            measure: True to measure steps, for `CheckedRun.seconds`.
            only_plan: True to leave out dry runs and events, for runs that others execute.

        Returns:
            The results in the same order, with the errors of runs.
        """
        task = BatchChecks(batch_runs, measure=measure, only_plan=only_plan)
        most = shared_cores([one.request for one in batch_runs], self._at_once)[0]
        self._work(task, most)
        return [task.found[one] for one in batch_runs]

    def run_all(self, checked: Sequence[CheckedRun]) -> list[Outcome]:
        """Execute runs.

        Args:
            checked: Results of `check_all`; runs with an error are not started.

        Returns:
            The outcomes in the same order.
        """
        source = OrderedRuns(checked)
        todo = [one for one in checked if one.error is None and not one.finished]
        devices = {one.device for one in todo}
        self.do(source, [one.batch_run.request for one in todo], on_gpu=devices - {"cpu"} != set())
        return [source.outcomes[one.batch_run] for one in checked]

    def do(
        self,
        source: BatchSource,
        alike: Sequence[Request],
        *,
        on_gpu: bool = False,
    ) -> None:
        """Execute the runs of a source until it has no more.

        Args:
            source: Gives the runs.
            alike: The requests, or as many similar ones, for the number of parallel runs.
            on_gpu: True if the runs use a GPU.
        """
        most, hosts = shared_cores(alike, self._at_once, on_gpu=on_gpu)
        again = self._repeat_diverged
        task = RunExecution(source, hosts=hosts, group=self._group, repeat_diverged=again)
        self._work(task, most)

    # --- execution --------------------------------------------------------------------------------

    def _work(self, task: BatchChecks | RunExecution, most: int) -> None:
        self._task = task
        while True:
            while len(self._going) < most and (batch_run := task.next(self._follow)) is not None:
                self._begin(batch_run)
            if not self._going:
                return
            worker, message = self._inbox.get()
            self._take(worker, message)

    def _begin(self, batch_run: BatchRun) -> None:
        if batch_run.request.extra and self._at_once != 0:
            kind, name = next(iter(batch_run.request.extra))
            error = UsageError(
                f"{kind} {name!r} is a class of this program, which other processes cannot import",
                do="give it as FILE.py:CLASS, or run in this process (at_once=0)",
            )
            self._task.end(batch_run, error, self._follow)
            return
        worker = self._free.pop() if self._free else self._worker()
        self._going[worker] = batch_run
        worker.send(self._task.job(batch_run, self.runs))

    def _worker(self) -> ProcessWorker | LocalWorker:
        worker = LocalWorker(self._take) if self._at_once == 0 else ProcessWorker(self._inbox)
        self._workers.append(worker)
        return worker

    def _take(self, worker: ProcessWorker | LocalWorker, message: Any) -> None:  # noqa: ANN401 - `WorkerMessage`
        """Take an event or the result of a job."""
        if isinstance(message, Event):
            assert isinstance(self._task, RunExecution), "checks have no events"
            self._task.forward(self._going[worker], message, self._follow)
            return
        ended = self._going.pop(worker, None)
        if message is not None:
            self._free.append(worker)
        elif isinstance(worker, ProcessWorker):  # the process has ended
            self._workers.remove(worker)
            self._free = [one for one in self._free if one is not worker]
            message = worker.failure()
            worker.wait(0.0)
        if ended is not None and message is not None:
            self._task.end(ended, message, self._follow)
