"""A batch: runs that are wanted, all done.

::

    wanted = [Wanted("tau=10", request), Wanted("tau=100", other)]
    with Batch(Path("runs")) as batch:
        tried = batch.try_all(wanted)            # plan and dry step of each, nothing is trained
        outcomes = batch.do_all(tried)           # in the order of what is wanted

or, where any mistake is to end it, ``done(wanted, Path("runs"))``. Runs are begun through
`protofl.recorded.once` alone: one that is finished is not repeated, one that was interrupted goes
on. `do_all` never raises because of a run; what became of it says its `Outcome`, whose ``run`` is
the recorded run. What is wanted next may depend on what was found before: `Batch.do` takes a
`Source` in place of a list.

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
from pathlib import Path
from types import TracebackType

from protofl.batch import events
from protofl.batch.hands import GRACE, Hand, Here, ProcessHand
from protofl.batch.sharing import shared
from protofl.batch.tasks import InOrder, Message, Runs, Source, Task, Tries, mistakes
from protofl.batch.wanted import Outcome, Tried, Wanted, grouped
from protofl.errors import ProtoflError, UsageError
from protofl.request.request import Request


class Batch:
    """Does runs that are wanted; a context manager, behind which nothing goes on.

    Args:
        runs: The runs' folder.
        at_once: Runs that are done at once; None for as many as there are cores, on a GPU one. 0
            does them in this process, one after the other: it sees classes of this program, and
            has nothing to start.
        follow: Called with every event (`protofl.batch.events`).
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
        self._inbox: queue.Queue[tuple[Hand, Message | None]] = queue.Queue()
        self._hands: list[Hand] = []
        self._free: list[Hand] = []
        self._going: dict[Hand, Wanted] = {}
        self._task: Task = Tries((), measure=False)

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hand in self._hands:
            hand.close()
        try:
            if self._going and self._at_once != 0:
                self._follow(events.Ending(len(self._going)))
        finally:
            self._end()

    def _end(self) -> None:
        """Wait until all that was done has ended."""
        until, again = time.monotonic() + GRACE, None
        while self._hands:
            try:
                self._hands.pop().wait(until)
            except KeyboardInterrupt as stop:  # once more: end them at once
                until, again = 0.0, stop
        if again is not None:
            raise again

    # --- what is asked of it --------------------------------------------------------------------

    def try_all(self, wanted: Sequence[Wanted], *, measure: bool = False) -> list[Tried]:
        """Plan every run, and do the dry step of those that are not finished; train nothing.

        Args:
            wanted: The runs.
            measure: Whether to measure what steps take, for `Tried.seconds`.

        Returns:
            What was found of each, in their order; mistakes are in it.
        """
        task = Tries(wanted, measure=measure)
        most = shared([one.request for one in wanted], self._at_once)[0]
        self._work(task, most)
        return [task.found[one] for one in wanted]

    def do_all(self, tried: Sequence[Tried]) -> list[Outcome]:
        """Do runs to their ends.

        Args:
            tried: The runs, as `try_all` found them; those with a mistake are left out.

        Returns:
            What became of each, in their order.
        """
        source = InOrder(tried)
        todo = [one for one in tried if one.error is None and not one.finished]
        devices = {one.device for one in todo}
        self.do(source, [one.wanted.request for one in todo], on_gpu=devices - {"cpu"} != set())
        return [source.outcomes[one.wanted] for one in tried]

    def do(
        self,
        source: Source,
        alike: Sequence[Request],
        *,
        asks: bool = False,
        on_gpu: bool = False,
    ) -> None:
        """Do what a source wants, until it wants nothing and nothing goes on.

        Args:
            source: Says what is wanted.
            alike: The requests, or as many that are like them: by these cores are shared out.
            asks: Whether the source is asked behind every round.
            on_gpu: Whether they compute on a GPU.
        """
        most, hosts = shared(alike, self._at_once, on_gpu=on_gpu)
        self._work(Runs(source, hosts=hosts, asks=asks), most)

    # --- how it is done -------------------------------------------------------------------------

    def _work(self, task: Task, most: int) -> None:
        self._task = task
        while True:
            while len(self._going) < most and (wanted := task.next(self._follow)) is not None:
                self._begin(wanted)
            if not self._going:
                return
            self._take(*self._inbox.get())

    def _begin(self, wanted: Wanted) -> None:
        if wanted.request.extra and self._at_once != 0:
            self._task.end(wanted, _unseen(wanted.request), {}, self._follow)
            return
        hand = self._free.pop() if self._free else self._hand()
        self._going[hand] = wanted
        request, order = self._task.order(wanted)
        hand.order({**order, "runs": str(self.runs)}, grouped(request, self._group))

    def _hand(self) -> Hand:
        hand = Here(self._take) if self._at_once == 0 else ProcessHand(self._inbox)
        self._hands.append(hand)
        return hand

    def _take(self, hand: Hand, message: Message | None) -> None:
        """Something that was told of what a hand does."""
        wanted = self._going.get(hand)
        if message is None:  # its process has ended
            self._hands.remove(hand)
            self._free = [one for one in self._free if one is not hand]
            failure = hand.failure()
            hand.wait(0.0)
            if wanted is not None:
                del self._going[hand]
                self._task.end(wanted, failure, {}, self._follow)
        elif wanted is None:
            return
        elif "end" in message:
            values = message.get("error")
            del self._going[hand]
            self._free.append(hand)
            error = ProtoflError.from_values(values) if values else None
            self._task.end(wanted, error, message, self._follow)
        else:
            goes_on = self._task.told(wanted, message, self._follow)
            if message.get("asks"):
                hand.answer(goes_on)


def _unseen(request: Request) -> UsageError:
    kind, name = next(iter(request.extra))
    return UsageError(
        f"{kind} {name!r} is a class of this program, which no other process can see",
        do="give it as FILE.py:CLASS, or do the runs in this process (at_once=0)",
    )


def done(
    wanted: Sequence[Wanted],
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
        tried = batch.try_all(wanted)
        if (wrong := mistakes(tried)) is not None:
            raise wrong
        return batch.do_all(tried)
