"""Models of ``compare`` and ``reproduce``."""

from __future__ import annotations

from protofl_cli.json.base import Output


class ComparedFigure(Output):
    """A figure of a group of runs on the same data."""

    setting: str
    """Data and split."""
    figure: str
    """Figure, as `--figure` takes it."""
    method: str
    """Label of the group."""
    trials: int
    """Number of trials."""
    found: int
    """Number of trials that have the figure."""
    mean: float | None
    """Mean over trials; shares are 0 to 1."""
    std: float | None
    """Population standard deviation over trials."""
    baseline: str
    """Label of the baseline; empty if there is only one group."""
    pairs: int | None
    """Number of pairs of the difference; null for the baseline."""
    difference: float | None
    """Mean difference to the baseline."""
    difference_std: float | None
    """Standard deviation over pairs."""
    low: float | None
    """Lower end of the confidence interval of the difference."""
    high: float | None
    """Upper end."""
    p: float | None
    """p of the test."""
    p_holm: float | None
    """p after Holm's correction over all comparisons with this baseline."""
    better: int | None
    """Pairs in which the group is better."""
    worse: int | None
    """Pairs in which the group is worse."""
    machines_differ: bool
    """True if the figure depends on the machine, and the machines differ."""
    seeds: list[int]
    """Seeds of the trials."""
    values: list[float | None]
    """The figure of each trial."""


class Comparison(Output):
    """The comparison of runs."""

    figures: list[ComparedFigure]
    """A line for each group and figure."""
    notes: list[str]
    """Notes for the user."""


# --- reproduce ------------------------------------------------------------------------------------


class Cell(Output):
    """A cell of a table, or a curve of a figure."""

    reproduction: str
    """Name of the reproduction."""
    scale: str
    """Scale."""
    row: str
    """Row."""
    column: str
    """Column."""
    figure: str
    """Description of the figure."""
    unit: str
    """Unit of the figures; empty for numbers without one."""
    state: str
    """`done`, or the reason why the figure is missing."""
    ours: float | None
    """Our mean over trials."""
    ours_std: float | None
    """Standard deviation over trials."""
    trials: int
    """Number of trials."""
    rounds: int | None
    """Rounds of each trial."""
    published: float | None
    """Published figure."""
    published_std: float | None
    """Published standard deviation."""
    derived: bool
    """True if the published figures are computed from others that the paper prints."""
    difference: float | None
    """Ours minus published."""
    folder: str | None
    """Run folder."""
    why: str
    """Error or remark; may be empty."""
    partial: str
    """Deviation from the paper's conditions in this cell; may be empty."""
    mark: str
    """Mark of the figure; may be empty."""
    conditions: str
    """Deviation from the paper's conditions in all cells; may be empty."""


class ReproducedTable(Output):
    """A reproduction."""

    title: str
    """Title."""
    conditions: str
    """Deviation from the paper's conditions; may be empty."""
    notes: list[str]
    """Notes for the user."""
    cells: list[Cell]
    """Cells, row by row."""


class PlannedRun(Output):
    """A run of a planned reproduction."""

    run: str
    """Name of its first cell."""
    cells: int
    """Number of cells that are read from it."""
    rounds: int
    """Rounds of all trials."""
    done: int
    """Finished rounds."""
    steps: int
    """Mini-batches of all clients."""
    seconds: float | None
    """Estimated seconds of the remaining rounds with one host; null if not measured."""
    missing: str
    """Missing data or weights; may be empty."""
    folder: str | None
    """Run folder."""
    diverged: bool
    """True if the run diverged before and would diverge again."""


class ReproductionPlan(Output):
    """A planned reproduction (`reproduce --plan`); nothing was trained."""

    reproduction: str
    """Name of the reproduction."""
    facts: list[str]
    """Scale, splits, trials and rounds."""
    runs: list[PlannedRun]
    """Runs, in the order of the cells."""
    accounts: int
    """Number of accounts, which need no training."""
    files: dict[str, str]
    """Files that `--file` should give, with descriptions."""
    code: list[str]
    """Imported code outside the installed plugins."""


class ListedReproduction(Output):
    """An installed reproduction (`reproduce --list`)."""

    reproduction: str
    """Name, as `protofl reproduce` takes it."""
    place: str
    """Table or figure of the paper; may be empty."""
    title: str
    """Title; empty if the reproduction is broken."""
    rows: int
    """Number of rows."""
    columns: int
    """Number of columns."""
    scales: list[str]
    """Scales."""
    problem: str
    """Error of a broken reproduction; empty otherwise."""


class Standing(Output):
    """A method in a setting of a benchmark; figures are means over seeds in the chosen rounds."""

    method: str
    """Method."""
    accuracy: float | None
    """Accuracy over the test samples of all clients, 0 to 1."""
    low: float | None
    """Lower end of the 95 % interval over seeds."""
    high: float | None
    """Upper end."""
    seeds: int
    """Number of finished seeds."""
    global_accuracy: float | None
    """Accuracy of each client's model on all classes alike."""
    worst: float | None
    """Accuracy of the worst client."""
    worse_off: float | None
    """Clients that are less accurate than alone."""
    chance: float | None
    """Number of such clients that coin tosses would give."""
    upload: float | None
    """Bytes uploaded up to the chosen round."""
    download: float | None
    """Bytes downloaded up to the chosen round."""
    rounds: float | None
    """The chosen round, from 1."""
    seconds: float | None
    """Seconds of a round."""
    rate: float | None
    """Learning rate that the search chose."""
    weight: str
    """Main weight that the search chose, NAME=VALUE; may be empty."""
    mean_rank: float | None
    """Mean rank over clients and seeds; null for methods that are not ranked."""
    rank: int
    """Place by the mean rank; 0 for methods that are not ranked."""
    groups: str
    """Letters: methods with a common letter do not differ significantly."""


class BenchmarkSetting(Output):
    """A setting of a benchmark."""

    setting: str
    """Name."""
    label: str
    """Description."""
    standings: list[Standing]
    """Methods, best mean rank first."""
    refused: dict[str, str]
    """Methods that do not fit, with reasons."""
    failed: dict[str, str]
    """Methods whose runs failed, with reasons."""
    notes: list[str]
    """Remarks."""


class Benchmark(Output):
    """The standings of a benchmark."""

    reproduction: str
    """Name of the benchmark."""
    scale: str
    """Scale."""
    settings: list[BenchmarkSetting]
    """Settings."""
    missing: dict[str, str]
    """Settings whose data are missing, with reasons."""


ReproduceOutput = ReproducedTable | ReproductionPlan | list[ListedReproduction] | Benchmark
"""`reproduce`, `--plan`, `--list`, and of a benchmark its standings."""
