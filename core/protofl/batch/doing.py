"""What a process of a batch does: a run is tried, or done, and told about as it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from protofl.batch.estimate import pace, seconds_of, steps_in, workload
from protofl.batch.wanted import of_values
from protofl.dry_step.step import dry_step
from protofl.errors import ProtoflError
from protofl.machine.idle import Idle
from protofl.options.table import EXTENT, OPTIONS
from protofl.participation.taking_part import check_participation
from protofl.plan.plan import Plan
from protofl.recorded.once import once
from protofl.recorded.wanted import Wanted
from protofl.request.request import Request
from protofl.rounds import events
from protofl.rounds.measures import check_measures
from protofl.tracking.following import check_trackers

Tell = Callable[[dict[str, Any]], None]

SELDOM = 1.0
"""Seconds between two words on the steps of a round, at least."""


class Stopped(BaseException):
    """The run is to stop behind this round; no `Exception`, so that no hook catches it."""


class Doing:
    """Does what the process of a batch is told.

    Args:
        tell: Takes what is told of it, as JSON can hold it.
        ask: Whether a run goes on behind a round that has been told.
    """

    def __init__(self, tell: Tell, ask: Callable[[], bool]) -> None:
        self._tell, self._ask = tell, ask
        self._idle = Idle()
        self._dry: set[str] = set()
        self._paces: dict[str, dict[str, float]] = {}

    def do(self, order: Mapping[str, Any], request: Request | None = None) -> None:
        """Carry out an order, and tell its end.

        Args:
            order: ``do`` is ``try`` or ``run``; ``request`` what is asked for (`to_values`);
                ``runs`` the runs' folder; ``measure`` whether steps are measured; ``asks`` whether
                to ask behind each round.
            request: What is asked for, where it comes from this process.
        """
        request = request or of_values(order["request"])
        try:
            if order["do"] == "try":
                found = self._try(request, Path(order["runs"]), measure=order["measure"])
            else:
                found = self._run(request, Path(order["runs"]), asks=order["asks"])
        except Exception as error:
            self._idle.close()  # a host may be in the middle of something
            found = {"error": ProtoflError.to_values(error)}
        self._tell({"end": True, **found})

    def close(self) -> None:
        """End the hosts that wait for a next run."""
        self._idle.close()

    # --- before anything is trained -------------------------------------------------------------

    def _try(self, request: Request, runs: Path, *, measure: bool) -> dict[str, Any]:
        """Plan a run and, unless it is finished already, do its dry step."""
        wanted = Wanted.of(request, events.ignore)  # its notes come when it is done
        plan, s = wanted.plan, wanted.plan.settings
        plan.split(0)
        check_measures(plan)
        check_participation(plan)
        check_trackers(plan)
        there = wanted.candidates(runs)
        part = next((part for run in there if (part := wanted.part_of(run))), None)
        load, whole = workload(plan), s.rounds * s.trials
        done = whole if part else 0
        if part is None and (part := next(filter(wanted.can_extend, there), None)):
            # It may have all rounds, the last of them not evaluated as a last one is.
            done = min(part.rounds_done, whole - 1)
        ended = wanted.failed_before(part) if part and done < whole else None
        found: dict[str, Any] = {
            "identity": wanted.identity,
            "folder": str(part.folder) if part else None,
            "done": done,
            **_asked(plan),
            "device": plan.device.type,
            "steps": steps_in(load),
            "failed_before": asdict(ended) if ended else None,
            "scores_server": _scores_server(plan),
        }
        if done < whole:
            alike = _without(request.options, EXTENT)
            if s.dry_step and alike not in self._dry:
                dry_step(plan)
                self._dry.add(alike)
            if measure:
                left = 1 - done / whole
                found["seconds"] = seconds_of(load, self._pace(plan, request.options)) * left
        return found

    def _pace(self, plan: Plan, options: Mapping[str, Any]) -> dict[str, float]:
        """Seconds of steps, measured once for runs in which they are the same."""
        alike = _without(options, [n for n, option in OPTIONS.items() if not option.step_time])
        if alike not in self._paces:
            self._paces[alike] = pace(plan)
        return self._paces[alike]

    # --- a run ----------------------------------------------------------------------------------

    def _run(self, request: Request, runs: Path, *, asks: bool) -> dict[str, Any]:
        """Have a run done, unless it is done already."""
        trained, told = 0, time.monotonic()

        def follow(event: events.Event) -> None:
            nonlocal trained, told
            match event:
                case events.StepsDone() if event.stage == "train":
                    if time.monotonic() - told >= SELDOM:
                        told = time.monotonic()
                        self._tell({"training": event.share})
                case events.Note():
                    self._note(event.text)
                case events.Planned():
                    folder = event.folder
                    there = str(folder.path) if folder.rows else None
                    about = {"folder": there, "done": len(folder.rows), **_asked(event.plan)}
                    self._tell({"planned": True, **about})
                    for row in folder.rows:
                        self._row(row, asks=asks, before=True)
                case events.FolderMade():
                    self._tell({"folder": str(event.folder.path)})
                case events.RoundDone():
                    trained += 1
                    self._row(event.row, asks=asks)

        try:
            run = once(request, runs, progress=follow, idle=self._idle)
        except Stopped:
            return {"state": "stopped"}
        about = {key: run.config[key] for key in EXTENT}
        return {"state": "finished", "folder": str(run.folder), "reused": not trained, **about}

    def _row(self, row: Mapping[str, Any], *, asks: bool, before: bool = False) -> None:
        """Tell of a round that is over."""
        found = {**_plain(row), "extra": _plain(row["extra"]), "seconds": row["seconds"]["total"]}
        self._tell({"row": found, "before": before, "asks": asks})
        if asks and not self._ask():
            raise Stopped

    def _note(self, line: str) -> None:
        self._tell({"note": line})


def _scores_server(plan: Plan) -> bool:
    """Whether a record may have the server's accuracy."""
    is_scored = plan.composition.has("global_models") and plan.split(0).global_test is not None
    return is_scored or plan.composition.has("end_round")  # which may tell of anything


def _asked(plan: Plan) -> dict[str, int]:
    return {key: getattr(plan.settings, key) for key in EXTENT}


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """What of a row is one number or text."""
    return {k: v for k, v in row.items() if v is None or isinstance(v, (int, float, str))}


def _without(options: Mapping[str, Any], keys: Collection[str]) -> str:
    """Options without some of them, as a text by which equal ones are found."""
    kept = {key: value for key, value in options.items() if key not in keys}
    return json.dumps(kept, sort_keys=True, default=str)
