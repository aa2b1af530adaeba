"""All options of a run, each declared once; the command line and `protofl.run` fill this model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict

from protofl.system.files.atomic import default_data_dir
from protofl.system.options.option import (
    MEASURES,
    Joins,
    Measures,
    Names,
    Rounds,
    Share,
    Sights,
    composition,
    federation,
    machine,
    names,
    option,
    record,
    repetition,
    training,
)
from protofl.system.options.plugin_options import Strict


# fmt: off
class Settings(Strict):
    """All options of a run; None if a method, a data set or another option has the default.

    The order is that of ``protofl run --help``. `Option` describes each declaration.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = option(..., "The method", chooses="method")
    recipe: dict[str, str] = option(
        {}, "Name, version and distribution of the recipe, if any", affects="nothing", resume=False
    )

    # --- federation ---
    models: str = federation(
        ..., "The model group", metavar="GROUP", chooses="model-group", common=True
    )
    dataset: str = federation(
        "digits", "The data set", affects="data", metavar="NAME[:PATH]", chooses="dataset",
        common=True
    )
    subset: Share = federation(
        1.0, "Class-balanced part of the samples for the clients: a share (1/20) or a number",
        affects="data", metavar="N|1/N", usual="all", gt=0
    )
    partition: str = federation(
        "dirichlet", "The partitioner", affects="data", metavar="NAME", chooses="partitioner",
        step_time=False, common=True
    )
    clients: int = federation(
        20, "Clients M", affects="data", usual="the data set's, otherwise 20", step_time=False,
        common=True, ge=1, le=10_000_000
    )
    participation: float = federation(
        1.0, "Share of clients in a round, ρ", step_time=False, common=True, gt=0, le=1
    )
    selection: str = federation(
        "uniform", "How the clients of a round are selected", metavar="NAME[:PATH]",
        chooses="selection", step_time=False
    )
    participants_from: Path | None = federation(
        None, "Reuse the participants of another run, without clients that dropped out",
        metavar="RUN", usual="as --selection says", recipe=False
    )
    unseen: Share = federation(
        0.0, "Clients that never train and are scored separately: a share or, from 1, a number",
        affects="data", metavar="SHARE|N", usual="none", ge=0
    )
    fine_tune: int | None = federation(
        None, "Epochs for which unseen clients are trained at the end",
        usual="10 times --local-epochs", ge=0, le=1_000_000
    )
    join_round: Joins = federation(
        None, "Rounds from which further clients take part, and the share of clients that join",
        metavar="N[:SHARE][,…]", usual="all from the beginning"
    )
    malicious: float = federation(
        0.0, "Share of clients that are malicious", usual="none", ge=0, lt=1
    )
    world: str | None = federation(
        None, "Devices of the clients in virtual time", metavar="NAME[:PATH]", chooses="world",
        usual="none: no virtual time"
    )
    deadline: float | None = federation(
        None, "Virtual seconds of a round after which clients are absent", metavar="SECONDS",
        usual="none", gt=0
    )
    over_select: float = federation(
        0, "Over-selection: share of extra clients to sample per round; the slowest are dropped",
        ge=0, le=1000
    )
    rounds: int = federation(
        100, "Rounds T", affects="extent", usual="the data set's, otherwise 100", resume=True,
        recipe=True, sweep=True, step_time=False, common=True, ge=1, le=10_000_000
    )
    generator: str = federation(
        "tiny-style", "The image generator of the server, for methods that need one",
        metavar="NAME[:PATH]", chooses="generator"
    )

    # --- local training ---
    local_epochs: int = training(
        1, "Epochs of the private phase E", step_time=False, common=True, ge=1, le=1_000_000
    )
    batch_size: int = training(10, "Samples per mini-batch", common=True, ge=1, le=1_000_000_000)
    optimizer: Annotated[str, AfterValidator(str.lower)] = training(
        "sgd", "Local optimiser, fresh each round: sgd, adam, or another of torch.optim, with "
        "--set optimizer.KEY=VALUE", metavar="NAME", common=True
    )
    lr: float = training(0.01, "Learning rate η", step_time=False, common=True, gt=0)
    lr_schedule: Literal["constant", "step", "cosine", "exponential"] = training(
        "constant", "How the learning rate falls from round to round, with --set "
        "schedule.KEY=VALUE", metavar="NAME", step_time=False
    )
    momentum: float = training(0.0, "Momentum of SGD", step_time=False, common=True, ge=0, lt=1)
    weight_decay: float | None = training(
        None, "Weight decay", usual="the optimiser's own, mostly 0", step_time=False, common=True,
        ge=0
    )
    clip: float = training(
        0.0, "Clip the gradient norm of the model, and of each further module, to this value (0: "
        "off)", ge=0
    )
    feature_dim: int = training(
        512, "Feature width K", usual="the group's, mostly 512", common=True, ge=1
    )
    drop_last: bool = training(False, "Leave out the last, smaller batch")
    shuffle: bool = training(True, "Shuffle the training samples every epoch")
    augment: bool = training(False, "Random shifts and flips of training images")
    precision: Literal["fp32", "bf16"] = training("fp32", "Arithmetic of training", metavar="NAME")
    public: int | str = training(
        0, "Public samples to hold out, public images in a file, or none", affects="data",
        metavar="N|npz:PATH|none", usual="none, or what the method needs"
    )

    # --- composition ---
    options: dict[str, dict[str, Any]] = composition(
        {}, "An option of the method, of NAME (a donor, wrapper, metric or tracker), or of the "
        "chosen dataset, partition, models, selection, world, engine or backend, the optimizer or "
        "the schedule", flag="set", metavar="[NAME.]KEY=VALUE", step_time=False, common=True
    )
    use: dict[str, str] = composition(
        {}, "Replace a hook of the method by the hook of another method", metavar="HOOK=METHOD",
        common=True
    )
    add: list[str] = composition(
        [], "Add a loss term of another method, or what its hook sends (upload_payload, "
        "download_payload) or gives to the server's knowledge (server_aggregate, server_train)",
        metavar="local_loss=METHOD.TERM|HOOK=METHOD", common=True
    )
    drop: list[str] = composition(
        [], "Leave a loss term out", metavar="local_loss.TERM", common=True
    )
    wrappers: list[str] = composition(
        [], "Wrap what is sent, in the order given", flag="with", metavar="WRAPPER",
        chooses="wrapper", common=True
    )
    block: list[str] = composition(
        [], "Leave a plugin out: NAME or KIND/NAME, either with @DISTRIBUTION", affects="nothing",
        metavar="NAME", resume=False
    )
    classes: dict[str, str] = composition(
        {}, "Make a class known that is not installed, under its own name (my-method of "
        "MyMethod); where a plugin is named, FILE.py:CLASS may stand too", affects="nothing",
        flag="class", metavar="[KIND/]FILE.py:CLASS", recipe=True
    )

    # --- repetition ---
    seed: int = repetition(
        0, "Seed s; trial k uses s + k", affects="extent", step_time=False, common=True, ge=0
    )
    trials: int = repetition(
        1, "Repetitions with other weights and splits", affects="extent", resume=True,
        step_time=False, common=True, ge=1, le=1_000_000
    )
    hold_split: bool = repetition(
        False, "Keep the first trial's split in all trials", affects="data", recipe=False,
        sweep=False, step_time=False
    )
    same_init: bool = repetition(False, "The same initial weights for one architecture")
    deterministic: bool = repetition(False, "Deterministic CUDA kernels only", affects="digits")

    # --- machine ---
    device: str = machine(
        "auto", "Where to compute: auto, cpu, cuda or cuda:N", metavar="DEVICE", resume=False,
        common=True
    )
    engine: str = machine(
        "eager", "The training engine", affects="digits", metavar="NAME", chooses="engine",
        common=True
    )
    backend: str = machine(
        "auto", "Where hosts live: auto, local, process or another installed one", metavar="NAME",
        chooses="backend", recorded=False
    )
    workers: int = machine(
        0, "Number of hosts, which train the clients", usual="one per core", recorded=False,
        common=True, ge=0, le=4096
    )
    client_store: Literal["memory", "disk"] = machine(
        "memory", "Where clients that have trained are kept between rounds"
    )
    server_threads: int = machine(
        1, "Threads of the server's hooks", affects="digits", ge=1, le=1024
    )
    job_limit: float = machine(
        86_400, "Seconds that a client's job or a server's hook may take (0: no limit)",
        recorded=False, ge=0, le=10_000_000
    )
    data_dir: Path = machine(
        default_data_dir, "Folder in which decoded data are cached", metavar="DIR",
        usual="PROTOFL_DATA_DIR, otherwise ~/.cache/protofl", common=True
    )

    # --- record and screen ---
    validation: Share = record(
        0.0, "Share of each client's training samples that is held out to choose by",
        affects="data", metavar="SHARE", usual="none", ge=0, le=0.5
    )
    eval_every: int = record(
        1, "Rounds between evaluations", affects="digits", step_time=False, common=True, ge=1
    )
    eval_clients: Literal["all", "participants"] = record(
        "all", "The clients that are evaluated", affects="data", recipe=False
    )
    checkpoint_every: Rounds = record(
        1, "Rounds between checkpoints", affects="nothing", metavar="N|off", resume=False, ge=0
    )
    keep: Literal["best", "last", "current"] = record(
        "best", "Rounds of each trial whose weights stay: the best and the last, the last, none",
        affects="nothing"
    )
    on_bad_upload: Literal["stop", "skip"] = record(
        "stop", "What to do about an invalid upload", affects="method", recipe=False
    )
    upload_limit: float = record(
        4096, "Largest upload in MiB", affects="method", recipe=False, gt=0
    )
    upload_bound: float = record(
        0, "Largest absolute number in an upload (0: any finite number)", affects="method",
        recipe=False, ge=0
    )
    on_lost_client: Literal["stop", "skip"] = record(
        "stop", "What to do about a client whose training ends three workers", affects="nothing"
    )
    min_clients: int = record(
        1, "Clients that a round needs where others are absent", affects="nothing", ge=0
    )
    dry_step: bool = record(
        True, "Try two short rounds before the first", affects="nothing", resume=False
    )
    measure: Measures = names([], f"Further figures to record: {', '.join(MEASURES)}")
    metrics: Names = names(
        [], "Metrics of the test samples' scores to record", chooses="metric", common=True
    )
    observe: Sights = names(
        [], "What to keep of rounds: prototypes, features of test samples, images"
    )
    observe_every: int = record(
        1, "Record observations every N rounds, and in the last round", ge=1
    )
    observe_samples: int = record(
        50, "Test samples of a client whose features are observed", ge=1, le=1_000_000
    )
    observe_limit: float = record(
        1000, "MB that observations may use", affects="nothing", metavar="MB", gt=0
    )
    record_uploads: bool = record(False, "Keep every round's uploads, for protofl replay")
    track: Names = names(
        [], "Trackers that follow the run", affects="nothing", chooses="tracker", recorded=False,
        common=True
    )
    track_group: str = record(
        "", "A name under which trackers put several runs together", affects="nothing",
        metavar="TEXT", usual="none", recorded=False
    )
    track_wait: float = record(
        30, "Seconds that a run waits for trackers at its end", affects="nothing", recorded=False,
        ge=0, le=86_400
    )
    profile: bool = record(
        False, "Print where the time went, and write profile/trace.json for Perfetto or Chrome",
        affects="nothing", recorded=False
    )

    @property
    def held_out(self) -> int:
        """Samples of the data to hold out as public ones."""
        return self.public if isinstance(self.public, int) else 0
