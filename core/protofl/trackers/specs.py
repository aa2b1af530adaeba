"""Hooks of trackers: where else a run is written down, as it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protofl.hookspecs.markers import hookspec

if TYPE_CHECKING:
    from protofl.options.declared import Config
    from protofl.trackers.tracked import TrackedRun


class TrackerSpec:
    """A tracker writes a run down elsewhere: in a service, a data base, files of another program.

    Its hooks but ``check`` are called in a thread of its own, in order: ``open_run``, ``log_round``
    for every round, ``end_run``. What they raise is a note and ends nothing; where they are slow,
    rounds wait in a queue and at last are left out, and the run waits for none of it. What they
    need of each other is what ``open_run`` returns; nothing is kept on ``self``.

    Keys and passwords come from where the service's own library has them (its environment
    variables, its files), never from options: those are typed, and stand in scripts.
    """

    @hookspec(firstresult=True)
    def check(self, config: Config) -> None:
        """Raise an error where it can't track at all (optional): a library that is missing.

        Called before the run starts and in its thread, so look at what is here and ask no service.

        Raises:
            UsageError: What is missing, and what to do.
        """

    @hookspec(firstresult=True)
    def open_run(self, run: TrackedRun, config: Config) -> Any:  # noqa: ANN401 - the tracker's own
        """Return what the other hooks need: a writer, a client of the service.

        A run with a ``key`` that the tracker knows goes on: it was interrupted, or is given more
        rounds. Of ``run.rows``, the lines that its record has already, the tracker writes down
        those that it lacks, be it all of them.

        Args:
            run: The run.
            config: The tracker's options.
        """

    @hookspec(firstresult=True)
    def log_round(
        self,
        opened: Any,  # noqa: ANN401 - the tracker's own
        run: TrackedRun,
        row: Mapping[str, Any],
        number: int,
        config: Config,
    ) -> None:
        """Write a round down.

        Args:
            opened: What ``open_run`` returned.
            run: The run; ``run.figures(row)`` are the line's figures, ``run.step(row)`` the step.
            row: The round's line of ``metrics.jsonl``.
            number: The line's place in the record, from 0.
            config: The tracker's options.
        """

    @hookspec(firstresult=True)
    def end_run(
        self,
        opened: Any,  # noqa: ANN401 - the tracker's own
        run: TrackedRun,
        status: str,
        summary: Mapping[str, Any],
        error: str,
        config: Config,
    ) -> None:
        """Send what is left, and close.

        Args:
            opened: What ``open_run`` returned.
            run: The run.
            status: ``finished``, ``failed`` or ``interrupted``.
            summary: What ``summary.json`` holds; empty for a run that did not finish.
            error: Of one that failed what was wrong, in a line.
            config: The tracker's options.
        """
