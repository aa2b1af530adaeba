"""Weights & Biases: a run's options and figures there, or in files to be sent later.

Who writes says W&B's own key, from ``wandb login`` or ``WANDB_API_KEY``; without a network, or
without a key, ``--set wandb.mode=offline`` writes files that ``wandb sync`` sends. Nothing is
recorded of this machine, its consoles and its code. A run's id there is its key, so a run that goes
on is the same run; offline each part of it has files of its own, and the last one holds all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import protofl as pf
from protofl_plugins.trackers.libraries import expect_library

if TYPE_CHECKING:
    from wandb import Run

TIMEOUT = 30.0
"""Seconds in which W&B answers, or is taken for dead."""

ENDS = {"finished": 0, "failed": 1, "interrupted": 255}
"""Exit codes, which W&B shows as finished, failed, crashed."""


class WandB:
    """Runs of Weights & Biases, online or offline (extra ``wandb``)."""

    check_options = {"mode": "offline"}

    class Config(pf.Config):
        """Options: --set wandb.OPTION=VALUE."""

        project: str = pf.Field("protofl", consent=True, description="the project")
        entity: str | None = pf.Field(
            None, consent=True, description="who owns it. None: who the key is of"
        )
        mode: Literal["online", "offline"] | None = pf.Field(
            None,
            description="offline writes files for wandb sync. None: as WANDB_MODE says",
        )
        folder: Path | None = pf.Field(
            None,
            consent="outside",
            description="where W&B keeps its files. None: wandb in the run's folder",
        )

    @pf.hookimpl
    def check(self, config: Config) -> None:
        """Check that W&B is installed, and has a key if it needs one."""
        expect_library("wandb", "wandb")
        if (config.mode or os.environ.get("WANDB_MODE", "online")) == "online":
            import wandb

            if not wandb.api.api_key:
                raise pf.UsageError(
                    "--track wandb: there is no key for Weights & Biases",
                    "it is asked for by wandb login, or stands in WANDB_API_KEY",
                    "log in, or write files to be sent later: --set wandb.mode=offline",
                )

    @pf.hookimpl
    def open_run(self, run: pf.TrackedRun, config: Config) -> Run:
        """Open the run of this id, and add the rounds that it lacks."""
        import wandb

        settings = wandb.Settings(
            silent=True,
            init_timeout=TIMEOUT,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        folder = pf.expand_user(config.folder) if config.folder else run.folder
        folder.mkdir(parents=True, exist_ok=True)
        wandb_run = wandb.init(
            id=run.key,
            name=run.name,
            group=run.group or None,
            project=config.project,
            entity=config.entity,
            mode=config.mode,
            dir=str(folder),
            config=run.parameters(),
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
        wandb_run.define_metric("*", step_metric="round")
        for number in range(wandb_run.step, len(run.rows)):
            _log(wandb_run, run, run.rows[number], number)
        return wandb_run

    @pf.hookimpl
    def log_round(
        self, opened: Run, run: pf.TrackedRun, row: Mapping[str, Any], number: int
    ) -> None:
        """Log all figures of the round."""
        _log(opened, run, row, number)

    @pf.hookimpl
    def end_run(
        self, opened: Run, run: pf.TrackedRun, status: str, summary: Mapping[str, Any], error: str
    ) -> None:
        """Log the summary and the status."""
        for name, value in run.figures(summary).items():
            opened.summary[f"summary/{name}"] = value
        opened.summary["status"] = status
        if error:
            opened.summary["error"] = error
        opened.finish(exit_code=ENDS[status])


def _log(wandb_run: Run, run: pf.TrackedRun, row: Mapping[str, Any], number: int) -> None:
    trial = run.trial(row)
    metrics = {f"{trial}/{k}" if trial else k: v for k, v in run.figures(row).items()}
    wandb_run.log({**metrics, "round": run.step(row)}, step=number)
