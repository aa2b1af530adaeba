"""TensorBoard: a run's figures as curves, in event files beside the run.

``tensorboard --logdir runs`` then shows all runs in ``runs``. Files hold scalars by step, a writer
for each trial, so that trials are curves of one picture; the configuration is a text. The reader
takes out what lies behind a purged step, so a run that goes on is written anew from its record and
is whole in the last file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import protofl as pf
from protofl_plugins.trackers.libraries import expect_library

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

Writers = dict[str, "SummaryWriter"]


class TensorBoard:
    """Event files of TensorBoard (extra ``tensorboard``)."""

    class Config(pf.Config):
        """Options: --set tensorboard.OPTION=VALUE."""

        folder: Path | None = pf.Field(
            None,
            consent="outside",
            description="a folder of event files, in which each run has its own: GROUP/NAME. None: "
            "tensorboard in the run's folder",
        )

    @pf.hookimpl
    def check(self) -> None:
        """Check that TensorBoard is installed."""
        expect_library("tensorboard", "tensorboard")

    @pf.hookimpl
    def open_run(self, run: pf.TrackedRun, config: Config) -> Writers:
        """Write the configuration as a text, and the existing rounds."""
        writers: Writers = {}
        text = json.dumps(run.config, indent=1, ensure_ascii=False)
        writer = self._writer(writers, run, "", config)
        writer.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()), 0)
        for row in run.rows:
            self._write(writers, run, row, config)
        writer.flush()
        return writers

    @pf.hookimpl
    def log_round(
        self, opened: Writers, run: pf.TrackedRun, row: Mapping[str, Any], config: Config
    ) -> None:
        """Write a scalar for each figure."""
        self._write(opened, run, row, config)

    @pf.hookimpl
    def end_run(self, opened: Writers, status: str, summary: Mapping[str, Any], error: str) -> None:
        """Write the end of the run as a text."""
        told = json.dumps(dict(summary), indent=1) if summary else error
        lines = "\n".join(f"    {line}" for line in told.splitlines())
        opened[""].add_text("status", f"{status}\n\n{lines}" if lines else status, 0)
        for writer in opened.values():
            writer.close()

    def _write(
        self, writers: Writers, run: pf.TrackedRun, row: Mapping[str, Any], config: Config
    ) -> None:
        writer = self._writer(writers, run, run.trial(row), config)
        for name, value in run.figures(row).items():
            writer.add_scalar(name, value, run.step(row))

    def _writer(
        self, writers: Writers, run: pf.TrackedRun, trial: str, config: Config
    ) -> SummaryWriter:
        """Return the writer of a trial, or of the run."""
        if trial not in writers:
            from torch.utils.tensorboard.writer import SummaryWriter

            folder = run.folder / "tensorboard"
            if config.folder is not None:
                folder = pf.expand_user(config.folder) / run.group / run.name
            writers[trial] = SummaryWriter(str(folder / trial), purge_step=0, flush_secs=10)
        return writers[trial]
