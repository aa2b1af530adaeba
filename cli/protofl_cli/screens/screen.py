"""Screen of ``protofl run``: configuration, progress, and results."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

from protofl.federation import events
from protofl.system.formatting import count, round_word, size_text
from protofl_cli.screens import render
from protofl_cli.screens.last_table import result_rows, run_rows, show_clients
from protofl_cli.screens.profile_tables import show_profile
from protofl_cli.screens.tables import clock, composition_rows, shown_path

if TYPE_CHECKING:
    from protofl.federation.plan.plan import Plan
    from protofl.records.row import Row
    from protofl.records.run_folder import RunFolder

IMPORTS = "torch and plugins"
"""The words of the first progress line, while Python imports them."""

TRAINING_SHARE = 0.8
"""Assumed share of training in the time of a round until a round was measured."""

STAGES = {
    "train": "training",
    "server": "server step",
    "evaluate": "evaluation",
    "checkpoint": "saving",
}
"""{stage: name on the screen}."""


class Screen:
    """Shows the events of a run.

    Args:
        quiet: True to print only the results.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.folder: RunFolder | None = None
        """The run folder, if it exists."""
        self._bar = render.Bars()
        self._title = ""
        self._plan: Plan | None = None
        self._trial, self._round = 0, 0
        self._label, self._doing, self._stage = "", "", ""
        self._jobs, self._done = 0, 0
        self._begin = self._moved = self._said = self._entered = time.monotonic()
        self._spent: list[float] = []
        self._before = 0.0
        """Seconds of the round before the current one; its end may be reported late."""
        self._training = TRAINING_SHARE
        self._last: float | None = None
        self._best: tuple[float, int] | None = None
        self._ended = threading.Event()
        self._ticking: threading.Thread | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Screen:
        if not self.quiet:
            self._ticking = threading.Thread(target=self._every_second, daemon=True)
            self._ticking.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._ended.set()
            self._bar.stop()
        if self._ticking is not None:
            # Otherwise it may free the run's tensors while the interpreter ends.
            self._ticking.join()

    def __call__(self, event: events.Event) -> None:
        """Show an event of `protofl.run`."""
        with self._lock:
            self._moved = time.monotonic()
            match event:
                case events.Note():
                    if not self.quiet:
                        self._bar.line(f"note: {event.text}", "yellow")
                        if self._doing == IMPORTS:  # whoever tells something has been imported
                            self._enter("loading", "data")
                case events.Planned():
                    self._planned(event.plan, event.folder)
                case events.DryRunStarted():
                    text = "two short rounds with two clients"
                    if not self.quiet and not self._bar.live:
                        self._bar.line(f"dry run: {text}")
                    self._enter("dry run", text)
                case events.FolderMade():
                    self.folder = event.folder
                    self._enter("set-up", "of workers and server")
                case events.RoundStarted():
                    self._round_started(event.trial, event.round)
                case events.StageStarted():
                    self._enter_stage(event)
                case events.ClientDone():
                    self._done += 1
                    self._draw()
                case events.RoundDone():
                    self._round_done(event.row)
                case events.Finished():
                    self._finished(event)

    def loading(self, title: str) -> None:
        """Print the first line of a run; importing torch and the plugins takes seconds."""
        if self.quiet:
            return
        self._title = title
        render.heading(title)
        self._enter("loading", IMPORTS)

    # --- events -----------------------------------------------------------------------------------

    def _planned(self, plan: Plan, folder: RunFolder) -> None:
        self._plan = plan
        self._bar.stop()
        if folder.commit is not None or folder.path.exists():
            self.folder = folder
        if folder.rows:
            trial_rows = [r for r in folder.rows if r.trial == folder.rows[-1].trial]
            for row in trial_rows:
                self._note_accuracy(row)
        if self.quiet:
            return
        s = plan.settings
        title = f"{s.method} · {s.models} · {s.dataset}"
        if title != self._title:
            render.heading(title)
        render.pairs(composition_rows(plan, folder))
        for note in plan.all_notes:
            render.text(f"  note: {note}", "yellow")
        render.text()
        if folder.commit is not None and len(folder.rows) < s.trials * s.rounds:
            done = count(len(folder.rows), f"finished {round_word(s.timing)}")
            render.text(f"Resuming after {done}.")

    def _round_started(self, trial: int, round: int) -> None:
        if trial != self._trial:
            self._last = self._best = None
        self._trial, self._round = trial, round
        self._before = time.monotonic() - self._begin
        from protofl.runs.lifecycle.progress_lines import where  # it imports torch

        assert self._plan is not None
        self._enter(where(trial, round, self._plan.settings), "set-up")

    def _enter_stage(self, event: events.StageStarted) -> None:
        """Show a stage of a round."""
        self._stage, self._doing = event.stage, STAGES.get(event.stage, event.stage)
        self._jobs, self._done = event.jobs, 0
        self._entered = time.monotonic()
        self._draw()

    def _enter(self, label: str, doing: str) -> None:
        """Show the start of a round, or of work without clients."""
        self._label, self._doing, self._stage = label, doing, ""
        self._jobs = self._done = 0
        self._begin = self._said = self._entered = time.monotonic()
        self._draw()

    def _round_done(self, row: Row) -> None:
        """Take a finished round: the current one, or the one before, which was saved meanwhile."""
        seconds, late = row.seconds, row.round != self._round
        self._spent.append(self._before if late else time.monotonic() - self._begin)
        whole = seconds["total"]
        if whole > 0 and row.test_accuracy is not None:
            # Stages are summed over hosts; only their proportion is used.
            train, test = seconds["train"] + seconds["setup"], seconds["evaluate"]
            self._training = train / (train + test) if train + test else TRAINING_SHARE
        better = self._note_accuracy(row)
        if not late:
            self._label = ""
        if not self.quiet and self._plan is not None and not self._bar.live:
            self._bar.line(self._round_line(row, better, self._within() if late else 1.0))

    def _finished(self, event: events.Finished) -> None:
        from protofl.runs.lifecycle.progress_lines import guess_warning
        from protofl_workbench.recorded.removal import size_of

        result, plan = event.result, event.plan
        self._ended.set()
        self._bar.stop()
        columns, rows = result_rows(result, plan)
        s = plan.settings
        if not self.quiet:
            render.text()
        name = f"{s.method} · {s.models} · {s.dataset}"
        others = run_rows(result, round_word(s.timing))
        folder = shown_path(result.folder)
        others += [("run folder", folder), ("on disk", size_text(size_of(result.folder)))]
        others += [("report", f"protofl report {folder}")]
        if columns:
            render.table((name, *columns), rows, right=columns)
            render.pairs(others)
            render.text()
        else:
            render.table((name, ""), rows + [list(row) for row in others])
        show_clients(result.clients, self._score, s.trials)
        if warning := guess_warning(event):
            render.text(warning, "yellow")
        if result.profile is not None:
            show_profile(result.profile)

    # --- the progress -----------------------------------------------------------------------------

    def _note_accuracy(self, row: Row) -> bool:
        accuracy = row.test_accuracy
        if accuracy is None:
            return False
        self._last = accuracy
        if self._best is None or accuracy > self._best[0]:
            self._best = accuracy, row.round
            return True
        return False

    def _draw(self) -> None:
        """Draw the live line: clients of a stage, time left and accuracy."""
        if self.quiet or not self._label or not self._bar.live:
            return
        parts, left = [self._work()], self._time_left(self._within())
        if not self._jobs or not left:  # otherwise nothing would move
            parts[0] += f" {clock(time.monotonic() - self._entered)}"
        parts += [f"{left} left"] if left else []
        if self._last is not None and self._best is not None:
            parts.append(f"acc {self._last:.1%}")
            parts[-1] += f", best {self._best[0]:.1%}" if self._best[0] > self._last else ""
        share = self._done / self._jobs if self._jobs else None
        self._bar.show(self._label, "  ".join(parts), share)

    def _work(self) -> str:
        """Return the current work, and how much of it is done."""
        if self._jobs:
            return f"{self._doing} {self._done}/{self._jobs} clients"
        return self._doing

    def _within(self) -> float:
        """Return the finished share of the round."""
        share = self._done / self._jobs if self._jobs else 0.0
        if self._stage == "train":
            return share * self._training
        if self._stage == "evaluate":
            return self._training + share * (1 - self._training)
        return {"server": self._training, "checkpoint": 1.0}.get(self._stage, 0.0)

    def _time_left(self, share: float) -> str:
        """Estimate the time left from recent rounds, or from the finished share of the first."""
        if self._plan is None:
            return ""
        settings = self._plan.settings
        recent = self._spent[-5:]
        if recent:
            each = statistics.mean(recent)
        elif share > 0.2:
            each = (time.monotonic() - self._begin) / share
        else:
            return ""
        rounds = settings.rounds * settings.trials - self._trial * settings.rounds - self._round
        return clock(max(0.0, each * (rounds - share) - (time.monotonic() - self._moved)))

    @property
    def _score(self) -> str:
        """The name of the run's score."""
        return "accuracy" if self._plan is None else self._plan.data.task.score_name

    def _round_line(self, row: Row, better: bool, share: float) -> str:
        """Return the line of a finished round; ``share`` of the current round is finished."""
        from protofl.runs.lifecycle.progress_lines import round_line

        assert self._plan is not None
        text = round_line(row, self._plan.settings, better=better, score=self._score)
        text += f", {clock(self._spent[-1], exact=True)}"
        left = self._time_left(share)
        return f"{text}, {left} left" if left not in ("", "0:00") else text

    def _every_second(self) -> None:
        """Update the time left; without a terminal, print a line every ten seconds of a round."""
        while not self._ended.wait(1.0):
            with self._lock:
                now = time.monotonic()
                if self._ended.is_set() or self.quiet or not self._label:
                    continue
                if self._bar.live:
                    self._draw()
                elif now - self._said >= render.SIGN_OF_LIFE:
                    self._said = now
                    self._bar.line(f"  {self._label}: {self._work()}, {clock(now - self._begin)}")
