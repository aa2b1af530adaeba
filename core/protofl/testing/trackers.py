"""Contract of trackers."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protofl.hooks.views.tracked_run import TrackedRun
from protofl.runs.results.configuration import config_of
from protofl.testing import toy
from protofl.testing.contract import Contract, expect

SUMMARY = {"best_test_accuracy": 0.75, "final_test_accuracy": 0.5, "trials": [{"best": 0.75}]}


def line(trial: int, round: int) -> dict[str, Any]:
    """A line of a record: figures, tables, lists, what clients have, and what there is not."""
    return {
        "trial": trial,
        "round": round,
        "test_accuracy": 0.25 * (round + 1) if round != 1 else None,
        "train_loss": 1 / (round + 1),
        "loss_terms": {"ce": 0.5, "align": None},
        "upload_bytes": 1000,
        "participants": 2,
        "evaluated": 2,
        "answered": [0, 1],
        "absent": {"2": "left"},
        "client_accuracies": {"0": 0.5, "1": 0.25},
        "metrics": {
            "macro-f1": {"all": 0.5, "clients": {"0": 0.5}},
            "recall": {"all": [0.5, None]},
        },
        "extra": {},
        "seconds": {"total": 0.5},
        "time": "2026-01-01T00:00:00",
    }


class TrackerContract(Contract):
    """The checks of a tracker, on a record that is made up and in a folder that goes away."""

    kind = "tracker"

    def setup_method(self) -> None:
        """Have a folder, and be in it: a tracker may write where the program is."""
        super().setup_method()
        self._was = Path.cwd()
        os.chdir(self.folder)

    def teardown_method(self) -> None:
        """Leave nothing behind."""
        os.chdir(self._was)
        super().teardown_method()

    def tracked(self, rows: list[dict[str, Any]], trials: int = 1, key: str = "key0") -> TrackedRun:
        """A run with a folder of its own and the configuration of a toy."""
        folder = self.folder / f"run-{key}"
        folder.mkdir(exist_ok=True)
        config = config_of(toy.make_plan("fedproto", self.folder))
        return TrackedRun(key, folder.name, "group", folder, config, trials, 3, rows)

    def told(
        self, run: TrackedRun, rows: list[dict[str, Any]], status: str = "finished", error: str = ""
    ) -> None:
        """Tell the tracker of a run from its opening to its end."""
        choice = self.choice()
        handle = choice.call("open_run", run=run)
        for number, row in enumerate(rows, len(run.rows)):
            choice.call("log_round", opened=handle, run=run, row=row, number=number)
        summary: Mapping[str, Any] = SUMMARY if status == "finished" else {}
        ending = {"status": status, "summary": summary, "error": error}
        choice.call("end_run", opened=handle, run=run, **ending)

    def test_its_hooks(self) -> None:
        """The tracker has open_run and log_round, and its library is installed."""
        choice = self.choice()
        for hook in ("open_run", "log_round"):
            expect(hook in choice.hooks, f"{hook} is missing: @pf.hookimpl def {hook}(…)")
        choice.call("check")

    def test_a_run(self) -> None:
        """The tracker takes lines of two trials with tables, lists and missing figures."""
        rows = [line(0, 0), line(1, 0), line(0, 1), line(1, 1)]
        self.told(self.tracked([], trials=2), rows)

    def test_however_it_ends(self) -> None:
        """The tracker takes runs that fail or are interrupted, also before their first round."""
        for status, error in (("failed", "client 3: no memory\nat all"), ("interrupted", "")):
            for rows in ([], [line(0, 0)]):
                self.told(self.tracked([], key=f"{status}{len(rows)}"), rows, status, error)

    def test_it_goes_on(self) -> None:
        """The tracker continues a known run, and takes one whose first rounds it has never seen."""
        rows = [line(0, number) for number in range(3)]
        self.told(self.tracked([]), rows[:1], "interrupted")
        self.told(self.tracked(rows[:2]), rows[2:])
        self.told(self.tracked(rows, key="other"), [])

    def test_it_writes_nothing_of_the_run(self) -> None:
        """The tracker changes neither lines nor the configuration, and keeps nothing on self."""
        rows = [line(0, 0)]
        run = self.tracked([])
        before = copy.deepcopy((rows, run.config))
        self.told(run, rows)
        expect(toy.same((rows, run.config), before), "it writes into what it is told")
        attributes = vars(self.choice().instance)
        expect(not attributes, f"self holds {', '.join(attributes)}")
