"""Models of the lines of ``protofl run --events FILE`` (`protofl_cli.json.event_lines`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protofl.records.schema import Line, Summary
from protofl_cli.json.base import Output


class _Event(Output):
    time: str
    """Time of the event, UTC, ISO 8601."""


class _InRound(_Event):
    trial: int
    """Trial, from 0."""
    round: int
    """Round of the trial, from 0."""


class Planned(_Event):
    """The options are valid, and the plugins and data are loaded."""

    event: Literal["planned"]
    format: Literal[1]
    """Number of the form of the lines."""
    method: str
    """Method."""
    name: str
    """The method."""
    models: str
    """Model group."""
    dataset: str
    """Data set."""
    clients: int
    """Number of clients M."""
    seed: int
    """Seed of the first trial."""
    trials: int
    """Number of trials."""
    rounds: int
    """Rounds of each trial."""
    rounds_done: int
    """Finished rounds of a resumed run."""
    folder: str
    """Run folder, which may not exist yet."""


class DryRun(_Event):
    """The dry run starts: two short rounds on throw-away copies."""

    event: Literal["dry_run"]


class Started(_Event):
    """Training starts or continues; the run folder exists."""

    event: Literal["started"]
    folder: str
    """Run folder."""
    rounds_done: int
    """Finished rounds of a resumed run."""


class RoundStarted(_InRound):
    """A round starts."""

    event: Literal["round_started"]


class StageStarted(_Event):
    """A stage of the round starts."""

    event: Literal["stage"]
    stage: str
    """`train`, `server`, `evaluate` or `checkpoint`."""
    clients: int
    """Number of clients in it; 0 for the step of the server."""


class RefusedUpload(_InRound):
    """The server refused an upload (`--on-bad-upload skip`)."""

    event: Literal["refused_upload"]
    client: int
    """Number of the client."""


class EvaluationDone(_InRound):
    """Clients were evaluated; a figure is null if the run has none."""

    event: Literal["evaluation"]
    evaluated: int
    """Number of evaluated clients."""
    test_accuracy: float | None
    """Over all test samples, 0 to 1."""
    client_test_accuracy: float | None
    """Mean over clients."""
    test_accuracy_std: float | None
    """Population standard deviation over clients."""
    validation_accuracy: float | None
    """Over all validation samples."""
    unseen_accuracy: float | None
    """Test accuracy of unseen clients."""
    fine_tuned_accuracy: float | None
    """Test accuracy of unseen clients after fine-tuning."""
    honest_accuracy: float | None
    """Test accuracy of honest clients."""


class RoundDone(_InRound):
    """A round is finished."""

    event: Literal["round"]
    row: Line
    """Its line of `metrics.jsonl`."""


class Checkpoint(_InRound):
    """A round is saved; an interrupted run resumes after it."""

    event: Literal["checkpoint"]
    folder: str
    """Folder of the checkpoint."""


class Note(_Event):
    """A note or a warning for the user; it may come at any time."""

    event: Literal["note"]
    text: str
    """Text."""


class Finished(_Event):
    """All rounds are done; the last line."""

    event: Literal["finished"]
    folder: str
    """Run folder."""
    summary: Summary
    """Content of `summary.json`."""


class Failed(_Event):
    """The run failed, or was refused before training; the last line."""

    event: Literal["failed"]
    what: str
    """The problem."""
    near: str
    """Accepted or similar values; may be empty."""
    do: str
    """Advice, such as how to resume; may be empty."""
    exit_code: int
    """Exit code: 2 for an error before training, otherwise 1."""


class Interrupted(_Event):
    """The run was interrupted; the last line."""

    event: Literal["interrupted"]
    exit_code: int
    """Exit code: 130, or 143 for SIGTERM."""


EventLine = Annotated[
    Planned
    | DryRun
    | Started
    | RoundStarted
    | StageStarted
    | RefusedUpload
    | EvaluationDone
    | RoundDone
    | Checkpoint
    | Note
    | Finished
    | Failed
    | Interrupted,
    Field(discriminator="event"),
]
