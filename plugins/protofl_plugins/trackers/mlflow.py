"""MLflow: a run's options as parameters and its figures as metrics, in a store or on a server.

Needs mlflow-skinny alone. Where the store is says MLflow's own variable ``MLFLOW_TRACKING_URI``, or
the option ``uri``; who may write there say its variables ``MLFLOW_TRACKING_TOKEN``,
``MLFLOW_TRACKING_USERNAME`` and ``MLFLOW_TRACKING_PASSWORD``. A run is found again by the tag
``protofl.key``; of a run that goes on the metrics' history says which rounds it lacks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import protofl as pf
from protofl_plugins.trackers.libraries import expect_library

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

KEY = "protofl.key"
COUNTED = "upload_bytes"
"""A figure that every round has."""

AT_ONCE = 100
"""Parameters in a request; a server takes no more."""

LONGEST = 500
"""Characters of a parameter, in every version of MLflow."""

ENDS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


@dataclass
class Opened:
    """A run in MLflow."""

    client: MlflowClient
    run_id: str


class MLflow:
    """Runs of MLflow (extra ``mlflow``)."""

    check_options = {"uri": "file:mlruns"}

    class Config(pf.Config):
        """Options: --set mlflow.OPTION=VALUE."""

        uri: str | None = pf.Field(
            None,
            consent=True,
            description="the store: http://HOST:PORT, sqlite:///FILE, file:DIR. None: what "
            "MLFLOW_TRACKING_URI says, otherwise MLflow's own default",
        )
        experiment: str = pf.Field(
            "protofl", description="the experiment, made where there is none"
        )

    @pf.hookimpl
    def check(self, config: Config) -> None:
        """Check that MLflow is installed, and that no password is visible."""
        expect_library("mlflow", "mlflow")
        if config.uri is not None and urlsplit(config.uri).password:
            raise pf.UsageError(
                "mlflow.uri holds a password",
                "options stand in shells' histories and in files",
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, and leave it out",
            )

    @pf.hookimpl
    def open_run(self, run: pf.TrackedRun, config: Config) -> Opened:
        """Open the run of this key or a new one, and add the rounds that it lacks."""
        uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri and uri.startswith("file:"):
            uri = f"file:{Path(uri.removeprefix('file:')).absolute()}"
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # somebody asked for one
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = _experiment(client, config.experiment)
        known = client.search_runs([experiment], f"tags.`{KEY}` = '{run.key}'", max_results=1)
        if known:
            handle = Opened(client, known[0].info.run_id)
            client.set_terminated(handle.run_id, "RUNNING")
        else:
            tags = {KEY: run.key, "folder": str(run.folder)} | (
                {"group": run.group} if run.group else {}
            )
            made = client.create_run(experiment, tags=tags, run_name=run.name)
            handle = Opened(client, made.info.run_id)
            _log_parameters(handle, run)
        _log(handle, run, _lacking(handle, run) if known else run.rows)
        return handle

    @pf.hookimpl
    def log_round(self, opened: Opened, run: pf.TrackedRun, row: Mapping[str, Any]) -> None:
        """Log a metric for each figure."""
        _log(opened, run, [row])

    @pf.hookimpl
    def end_run(
        self,
        opened: Opened,
        run: pf.TrackedRun,
        status: str,
        summary: Mapping[str, Any],
        error: str,
    ) -> None:
        """Log the summary as metrics without steps, and the status."""
        metrics = {f"summary/{name}": value for name, value in run.figures(summary).items()}
        _log_metrics(opened, metrics, 0)
        if error:
            opened.client.set_tag(opened.run_id, "error", error[:LONGEST])
        opened.client.set_terminated(opened.run_id, ENDS[status])


def _experiment(client: MlflowClient, name: str) -> str:
    """Return the id of the experiment, which another run may create at the same moment."""
    for _ in range(2):
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        try:
            return str(client.create_experiment(name))
        except Exception:  # it is there now, or nothing can be written
            continue
    return str(client.create_experiment(name))


def _log_parameters(handle: Opened, run: pf.TrackedRun) -> None:
    from mlflow.entities import Param

    parameters = [Param(name, str(value)[:LONGEST]) for name, value in run.parameters().items()]
    for first in range(0, len(parameters), AT_ONCE):
        handle.client.log_batch(handle.run_id, params=parameters[first : first + AT_ONCE])


def _lacking(handle: Opened, run: pf.TrackedRun) -> list[Mapping[str, Any]]:
    """Return the rounds of the record that MLflow lacks."""
    have: dict[str, set[int]] = {}
    for trial in {run.trial(row) for row in run.rows}:
        history = handle.client.get_metric_history(handle.run_id, _name(trial, COUNTED))
        have[trial] = {metric.step for metric in history}
    return [row for row in run.rows if run.step(row) not in have[run.trial(row)]]


def _log(handle: Opened, run: pf.TrackedRun, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        trial = run.trial(row)
        metrics = {_name(trial, name): value for name, value in run.figures(row).items()}
        _log_metrics(handle, metrics, run.step(row))


def _name(trial: str, name: str) -> str:
    return f"{trial}/{name}" if trial else name


def _log_metrics(handle: Opened, figures: Mapping[str, float], step: int) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [Metric(name, value, now, step) for name, value in figures.items()]
    for first in range(0, len(metrics), 10 * AT_ONCE):
        handle.client.log_batch(handle.run_id, metrics=metrics[first : first + 10 * AT_ONCE])
