"""Models of ``run``, ``sweep``, ``watch``, ``runs`` and of commands about one run."""

from __future__ import annotations

from typing import Any, Literal

from protofl.records.schema import Config, Summary
from protofl_cli.json.base import Output, Pair

State = Literal["finished", "going on", "unfinished", "diverged", "damaged"]

Value = str | int | float | bool | list[Any] | dict[str, Any] | None


# --- runs -----------------------------------------------------------------------------------------


class ListedRun(Output):
    """A recorded run."""

    folder: str
    """Run folder."""
    state: State
    """State."""
    identity: str
    """Identity; equal for runs that differ only in seed, trials and rounds. May be empty."""
    name: str
    """The method."""
    method: str
    """Method."""
    models: str
    """Model group."""
    dataset: str
    """Data set, as of `--dataset`."""
    digest: str
    """Digest of the data."""
    partition: str
    """Partitioner."""
    clients: int
    """Number of clients M."""
    seed: int
    """Seed of the first trial."""
    trials: int
    """Number of trials asked for."""
    rounds: int
    """Rounds of each trial asked for."""
    done: int
    """Finished rounds of all trials."""
    finished: bool
    """True if all rounds are done."""
    best: float | None
    """Best test accuracy, 0 to 1, mean over trials; null before the first evaluation."""
    final: float | None
    """Last test accuracy, 0 to 1, mean over trials."""
    time: float
    """End of the last round, or creation of the run, in seconds since 1970."""
    problem: str
    """Damage of the files; empty if there is none."""


ListedRuns = list[ListedRun]


class ShownRun(Output):
    """The options and the results of a run."""

    folder: str
    """Run folder."""
    state: State
    """State."""
    config: Config
    """Content of `config.json`: all options, versions and plugins."""
    summary: Summary | None
    """Content of `summary.json`; null for an unfinished run."""


ShownRuns = list[ShownRun]

Pairs = list[tuple[str, Value, Value]]


class RunsDifference(Output):
    """The difference of two runs; each entry has a name, the value of A and the value of B."""

    options: Pairs
    """Options that differ."""
    data: Pairs
    """Digests of data, splits and files that differ."""
    software: Pairs
    """Plugins, versions and machines that differ."""
    results: Pairs
    """Rounds, accuracies, loss, traffic and time of both, also equal ones."""
    equal_rounds: int
    """Number of rounds from the first on that are equal to the last bit."""
    shared_rounds: int
    """Number of rounds that both runs have."""
    first: Pairs
    """Figures that differ in the first round that differs."""
    first_round: tuple[int, int] | None
    """Trial and round, from 0, of the first difference; null if there is none."""
    a: str
    """First run, as given."""
    b: str
    """Second run, as given."""


# --- run ------------------------------------------------------------------------------------------


class PlannedArchitecture(Output):
    """An architecture of a planned run."""

    architecture: str
    """Name."""
    clients: int
    """Number of its clients."""
    parameters: int
    """Number of parameters."""
    forward_flops: float
    """FLOPs of the forward pass of one sample."""


class Traffic(Output):
    """Bytes of a round in which all participants answer."""

    upload_bytes: int
    """Bytes to the server."""
    download_bytes: int
    """Bytes to the clients."""


class Costs(Output):
    """The expected cost of a run."""

    architectures: list[PlannedArchitecture]
    """Architectures of the clients."""
    training_flops: float
    """FLOPs of local training in a round."""
    first_round: Traffic
    """Traffic of the first round."""
    later_rounds: Traffic
    """Traffic of each later round."""
    steps: int
    """Mini-batches of all rounds and trials."""
    seconds: float
    """Estimated seconds of all rounds and trials in one process."""
    majority: float
    """Score of always guessing the most frequent class of a client, 0 to 1."""


class RunPlan(Output):
    """A planned run (`run --plan`); nothing was trained."""

    plan: list[Pair]
    """Providers of hooks, data, models and training, as the table shows them."""
    notes: list[str]
    """Notes for the user."""
    costs: Costs | None
    """Expected cost; null if the data are on other machines."""


class FinishedRun(ShownRun):
    """A finished run."""

    profile: dict[str, Any] | None
    """Content of `profile/summary.json`, with `--profile`."""


RunOutput = FinishedRun | RunPlan
"""`run`, and `run --plan`."""


# --- sweep ----------------------------------------------------------------------------------------


class PointRun(Output):
    """A run of a point."""

    seed: int
    """Seed."""
    state: str
    """State of the run."""
    value: float | None
    """Figure by which points are compared."""
    test: float | None
    """Test accuracy in the same round."""
    round: int | None
    """Round of the figure, from 0."""
    chosen_on: str | None
    """Samples that chose the round: `validation` or `test`."""
    rounds: int
    """Finished rounds."""
    samples: int
    """Number of samples of the figure."""
    folder: str | None
    """Run folder, relative to the folder of the sweep."""
    error: str
    """Error of a failed run; may be empty."""


class Point(Output):
    """A point of the grid."""

    point: dict[str, Value]
    """Value of each axis."""
    state: str
    """State of its runs."""
    mean: float | None
    """Mean of the figure over runs."""
    std: float | None
    """Population standard deviation over runs."""
    test_mean: float | None
    """Mean test accuracy in the same rounds."""
    test_std: float | None
    """Standard deviation of the test accuracy."""
    runs: list[PointRun]
    """Its runs, by seed."""


class SweepResults(Output):
    """The results of a sweep: its `results.json`, and its folder."""

    folder: str
    """Folder of the sweep."""
    figure: str
    """Figure by which points are compared."""
    chosen_on: str
    """Samples that chose rounds and points."""
    words: str
    """Description of the figure."""
    best: dict[str, Value] | None
    """Best point."""
    ties: list[dict[str, Value]]
    """Points that differ from the best by less than 1.96 standard errors."""
    points: list[Point]
    """Points, best first."""


class PlannedSweepRun(Output):
    """A run of a planned sweep."""

    run: str
    """Point and seed."""
    rounds: int
    """Rounds of each trial."""
    steps: int
    """Mini-batches of all clients."""
    done: int
    """Finished rounds."""
    finished: bool
    """True if the run is finished."""
    folder: str | None
    """Folder of an existing run."""
    seconds: float | None
    """Estimated seconds of the remaining rounds with one host; null if not measured."""


class SweepPlan(Output):
    """A planned sweep (`sweep --plan`); nothing was trained."""

    runs: list[PlannedSweepRun]
    """Runs; of a search those at the ends of its ranges."""
    all_runs: int
    """Number of runs of the sweep."""


SweepOutput = SweepResults | SweepPlan
"""`sweep`, and `sweep --plan`."""


# --- watch ----------------------------------------------------------------------------------------


class WatchedRun(Output):
    """The progress of a run."""

    folder: str
    """Run folder."""
    name: str
    """The method."""
    state: State
    """State."""
    trial: int
    """Trial of the last round, from 0."""
    round: int
    """Finished rounds of this trial."""
    rounds: int
    """Rounds of each trial asked for."""
    trials: int
    """Trials asked for."""
    curve: list[float]
    """Test accuracies of the evaluated rounds of this trial, 0 to 1."""
    megabytes: float
    """Traffic of all clients so far, in MB."""
    absent: int
    """Number of times that a selected client was absent."""
    left: float | None
    """Estimated seconds to the end."""
    problem: str
    """Damage of the files; empty if there is none."""


WatchedRuns = list[WatchedRun]


# --- commands about one run -----------------------------------------------------------------------


class Evaluation(Output):
    """Accuracies of clients on new data."""

    data: str
    """Samples of the data that were used."""
    clients: list[dict[str, float | int | None]]
    """Client, samples, correct (or points) and accuracy of each client, and metrics of the run."""
    overall: dict[str, Any]
    """The same over all clients, with mean and standard deviation over clients."""
    notes: list[str]
    """Notes for the user."""


class Scores(Output):
    """Scores of samples by an exported client."""

    samples: list[dict[str, Any]]
    """File, number of the sample, answer (`class`, `labels`, `number` or `perplexity`) and the
    score of each output; null for a class that cannot be predicted."""


class ExportedFile(Output):
    """An exported client."""

    file: str
    """File."""
    bytes: int
    """Size of the file."""
    client: int
    """Number of the client."""
    trial: int
    """Trial."""
    which: str
    """Round of the weights: `last`, `best` or its number."""
    samples: str
    """Kind, shape and type of the samples that the file takes."""
    preparation: str
    """Preparation of samples that the file contains, or why it contains none."""
    outputs: list[str]
    """Names of the outputs: the classes."""
