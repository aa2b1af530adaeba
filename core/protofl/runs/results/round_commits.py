"""Commits of rounds: at once, or in a thread that writes a round while the next one trains."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from protofl.federation import events
from protofl.federation.events import Event, Progress
from protofl.records.run_folder import RunFolder


class CommitThread(threading.Thread):
    """The thread of one commit.

    It is a daemon, so that an interruption which doesn't wait for it can end the program.

    Args:
        commit: Writes the files of a round, then commits it.

    Attributes:
        error: The error that ended it.
    """

    def __init__(self, commit: Callable[[], None]) -> None:
        super().__init__(name="commit of a round", daemon=True)
        self._commit: Callable[[], None] | None = commit
        self._over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Commit the round; an error is kept for the thread of the run."""
        try:
            assert self._commit is not None
            self._commit()
        except BaseException as error:
            self.error = error
        finally:
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Return True if the commit has ended."""
        return self._over.is_set()

    def wait(self) -> BaseException | None:
        """Wait until the commit has ended; return its error.

        Unlike `join`, it may be interrupted. The commit's tensors are freed here: freeing pinned
        memory calls CUDA, which another thread must not do while this one captures a graph.
        """
        while not self._over.wait(1.0):  # Windows interrupts no wait without an end
            pass
        self._commit = None
        return self.error


def wait_for_commits() -> None:
    """Wait for commits of this process that an interrupted run has not waited for."""
    for thread in threading.enumerate():
        if isinstance(thread, CommitThread):
            thread.wait()


class RoundCommits:
    """The commits of a run, in the order of its rounds, and its progress.

    At most one round is being committed while the next one trains. `events.RoundDone` comes when a
    round is committed. At the end of the block the last commit is waited for, also after an error
    or an interruption; a second interruption ends the wait.

    Args:
        folder: The run folder; only commits change it while the block runs.
        progress: Called with every event, in the thread of the run.
    """

    def __init__(self, folder: RunFolder, progress: Progress) -> None:
        self._folder, self._progress = folder, progress
        self._thread: CommitThread | None = None

    def __call__(self, event: Event) -> None:
        """Report an event, and before it a round that has been committed by now.

        Raises:
            OSError, RunFailure: The round could not be committed.
        """
        # Steps are reported from inside a client's job, which an error of a commit is not part of.
        between_jobs = isinstance(
            event, (events.RoundStarted, events.StageStarted, events.ClientDone)
        )
        if between_jobs and self._thread is not None and self._thread.is_over:
            self.wait()
        self._progress(event)

    def commit(self, commit: Callable[[], None], *, beside: bool = False) -> None:
        """Commit a round after those before it.

        Args:
            commit: Writes its files and appends its line to the record. It uses nothing that the
                next round changes.
            beside: Return at once; a thread commits the round.

        Raises:
            OSError, RunFailure: This round, or one before it, could not be committed.
        """
        self.wait()
        if beside:
            self._thread = CommitThread(commit)
            self._thread.start()
        else:
            commit()
            self._report()

    def wait(self) -> None:
        """Wait until all rounds are committed and reported.

        Raises:
            OSError, RunFailure: A round could not be committed.
        """
        if self._thread is None:
            return
        error = self._thread.wait()
        self._thread = None
        if error is not None:
            raise error
        self._report()

    def _report(self) -> None:
        self._progress(events.RoundDone(self._folder.rows[-1]))

    def __enter__(self) -> RoundCommits:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        thread = self._thread
        if problem is None:
            self.wait()
        elif thread is not None and thread.ident is not None:
            interrupted = not isinstance(problem, Exception)
            if interrupted and not thread.is_over:
                with suppress(Exception):
                    self._note("waiting until the last round is saved; interrupt again to stop now")
            if error := thread.wait():
                with suppress(Exception):
                    self._note(f"the last round is not saved: {error}")
            elif not interrupted:
                self._report()

    def _note(self, line: str) -> None:
        self._progress(events.Note(line))
