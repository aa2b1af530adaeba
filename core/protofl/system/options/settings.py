"""All options of a run, each declared once; the command line and `protofl.run` fill this model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, PositiveInt

from protofl.system.files.atomic import default_data_dir
from protofl.system.options.option import (
    MEASURES,
    Epochs,
    Joins,
    KeptRounds,
    Labels,
    Measures,
    Names,
    Predictions,
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

    # --- federation ---
    models: str = federation(
        ..., "The model group", metavar="GROUP", chooses="model-group", common=True
    )
    architectures: Labels = federation(
        [], "Each client's architecture, by name or number", metavar="NAME|N[,…]", usual="i mod X"
    )
    dataset: str = federation(
        "digits", "The data set", affects="data", metavar="NAME[:PATH]", chooses="dataset",
        common=True
    )
    subset: Share = federation(
        1.0, "Class-balanced part of the samples for the clients: a share (1/20) or a number",
        affects="data", metavar="N|1/N", usual="all", gt=0
    )
    train_size: Share = federation(
        0.75, "Training samples of a client: a share or, from 1, a number; the others test it",
        affects="data", metavar="N|SHARE", gt=0
    )
    partition: str = federation(
        "dirichlet", "The partitioner", affects="data", metavar="NAME", chooses="partitioner",
        step_time=False, common=True
    )
    clients: int = federation(
        20, "Clients M", affects="data", step_time=False, common=True, ge=1, le=10_000_000
    )
    participation: float = federation(
        1.0, "Share of clients in a round, ρ", step_time=False, common=True, gt=0, le=1
    )
    sampling: str = federation(
        "uniform", "Client sampling", metavar="NAME[:PATH]",
        chooses="client-sampler", step_time=False
    )
    participants_from: Path | None = federation(
        None, "Reuse the participants of another run, without clients that dropped out",
        metavar="RUN", usual="as --sampling says"
    )
    unseen: Share = federation(
        0.0, "Clients that never train and are scored separately: a share or, from 1, a number",
        affects="data", metavar="SHARE|N", usual="none", ge=0
    )
    fine_tune: int | None = federation(
        None, "Epochs for which unseen clients, or all if none is unseen, are trained at the end",
        usual="10 times --local-epochs for unseen clients, otherwise 0", ge=0, le=1_000_000
    )
    join_round: Joins = federation(
        None, "Rounds from which further clients take part, and the share of clients that join",
        metavar="N[:SHARE][,…]", usual="all from the beginning"
    )
    malicious: float = federation(0.0, "Share of malicious clients", usual="none", ge=0, lt=1)
    devices: str | None = federation(
        None, "Devices of the clients in virtual time", metavar="NAME[:PATH]",
        chooses="device-model", usual="none: no virtual time"
    )
    timing: str = federation(
        "rounds", "When the server acts: rounds (after all participants), buffered (after some "
        "uploads) or continuous (after each); --set timing.KEY=VALUE", metavar="NAME",
        chooses="schedule", flag="schedule", step_time=False
    )
    deadline: float | None = federation(
        None, "Virtual seconds of a round after which clients are absent", metavar="SECONDS",
        usual="none", gt=0
    )
    over_select: float = federation(
        0, "Over-selection: share of extra clients to sample per round; the slowest are dropped",
        ge=0, le=1000
    )
    init: Path | None = federation(
        None, "Initial weights: a finished run, client by client, or a safetensors file",
        metavar="RUN|FILE", usual="drawn from the seed", step_time=False
    )
    rounds: int = federation(
        100, "Rounds T", affects="extent", resume=True,
        sweep=True, step_time=False, common=True, ge=1, le=10_000_000
    )
    patience: int = federation(
        0, "End a trial when its best round is N rounds old (0: never)", affects="digits",
        metavar="N", sweep=False, step_time=False, ge=0
    )
    generator: str = federation(
        "tiny-style", "Image generator of the server", metavar="NAME[:PATH]", chooses="generator"
    )

    # --- local training ---
    local_epochs: Epochs = training(
        1, "Epochs of the private phase E; 0.5: the first half of the mini-batches",
        step_time=False, common=True, gt=0, le=1_000_000
    )
    batch_size: int = training(10, "Samples per mini-batch", common=True, ge=1, le=1_000_000_000)
    optimizer: Annotated[str, AfterValidator(str.lower)] = training(
        "sgd", "Local optimizer, new in each round: sgd, adam, or another of torch.optim, with "
        "--set optimizer.KEY=VALUE", metavar="NAME", common=True
    )
    lr: float = training(
        0.01, "Learning rate η", usual="or the group's, otherwise 0.01",
        step_time=False, common=True, gt=0
    )
    lr_schedule: Literal["constant", "step", "cosine", "exponential"] = training(
        "constant", "Learning rate schedule over rounds, with --set schedule.KEY=VALUE",
        metavar="NAME", step_time=False
    )
    momentum: float = training(0.0, "Momentum of SGD", step_time=False, common=True, ge=0, lt=1)
    weight_decay: float | None = training(
        None, "Weight decay", usual="the optimiser's, mostly 0", step_time=False, common=True, ge=0
    )
    clip: float = training(
        0.0, "Clip the gradient norm of the model, and of each further module (0: off)", ge=0
    )
    feature_dim: PositiveInt | Literal["native"] = training(
        512, "Feature width K, or native", metavar="N|native", usual="or the group's", common=True
    )
    drop_last: bool = training(False, "Leave out the last, smaller batch")
    shuffle: bool = training(True, "Shuffle the training samples every epoch")
    augment: bool = training(False, "Random shifts and flips of training images")
    precision: Literal["fp32", "tf32-conv", "tf32", "bf16"] = training(
        "fp32", "Arithmetic: fp32, tf32 (also matrix products), tf32-conv or bf16 (autocast)",
        metavar="NAME", usual="fp32 on a CPU, tf32-conv on a GPU, as torch has it"
    )
    public: int | str = training(
        0, "Public samples to hold out, public images in a file, or none", affects="data",
        metavar="N|npz:PATH|none", usual="none, or what the method needs"
    )

    # --- composition ---
    options: dict[str, dict[str, Any]] = composition(
        {}, "Option of the method, of NAME (a donor, transform, metric or tracker), or of the "
        "dataset, partition, models, sampling, devices, timing (the schedule of the server), "
        "engine, backend, optimizer or schedule (of the learning rate)",
        flag="set", metavar="[NAME.]KEY=VALUE", step_time=False, common=True
    )
    use: dict[str, str] = composition(
        {}, "Replace a hook by that of another method", metavar="HOOK=METHOD", common=True
    )
    add: list[str] = composition(
        [], "Add a loss term of another method, or the result of its upload_payload, "
        "download_payload, server_aggregate or server_train",
        metavar="local_loss=METHOD.TERM|HOOK=METHOD", common=True
    )
    drop: list[str] = composition([], "Remove a loss term", metavar="local_loss.TERM", common=True)
    transforms: list[str] = composition(
        [], "Transform of payloads; several are applied in order", flag="with", metavar="TRANSFORM",
        chooses="payload-transform", common=True
    )
    block: list[str] = composition(
        [], "Ignore a plugin: NAME or KIND/NAME, optionally with @DISTRIBUTION", metavar="NAME",
        affects="nothing", resume=False
    )
    classes: dict[str, str] = composition(
        {}, "Register a class that is not installed, as my-method for MyMethod; options that name "
        "a plugin also accept FILE.py:CLASS", affects="nothing", flag="class",
        metavar="[KIND/]FILE.py:CLASS"
    )

    # --- repetition ---
    seed: int = repetition(
        0, "Seed s; trial k uses s + k", affects="extent", step_time=False, common=True, ge=0)
    trials: int = repetition(
        1, "Repetitions with other seeds", affects="extent", resume=True, step_time=False,
        common=True, ge=1, le=1_000_000
    )
    hold_split: bool = repetition(
        False, "Keep the first split in all trials", affects="data", sweep=False,
        step_time=False
    )
    same_init: bool = repetition(False, "Equal initial weights for equal architectures")
    deterministic: bool = repetition(
        False, "Use only deterministic CUDA kernels, so that equal runs give equal bits",
        affects="digits"
    )

    # --- machine ---
    device: str = machine(
        "auto", "Device: auto, cpu, cuda, cuda:N, several GPUs as cuda:0,cuda:1, cuda:all, or mps",
        metavar="DEVICE", resume=False, common=True
    )
    engine: str = machine(
        "auto", "Engine; auto is cuda-graphs on a GPU and eager on a CPU", affects="digits",
        metavar="NAME|auto", chooses="engine", common=True
    )
    backend: str = machine(
        "auto", "Place of hosts: auto, local, process or another installed backend", metavar="NAME",
        chooses="backend", recorded=False
    )
    workers: int = machine(
        0, "Number of hosts that train clients", usual="one per core, or one per GPU",
        recorded=False,
        common=True, ge=0, le=4096
    )
    client_store: Literal["auto", "device", "memory", "disk"] = machine(
        "auto", "Storage of trained clients between rounds: on the device, in host memory, on disk"
    )
    server_threads: int = machine(
        1, "Threads of the server's hooks", affects="digits", ge=1, le=1024
    )
    job_limit: float = machine(
        86_400, "Seconds that a client's job or a server's hook may take (0: no limit)",
        recorded=False, ge=0, le=10_000_000
    )
    data_dir: Path = machine(
        default_data_dir, "Cache of decoded data", metavar="DIR",
        usual="PROTOFL_DATA_DIR, otherwise ~/.cache/protofl", common=True
    )
    cache: Literal["on", "off"] = machine("on", "Whether decoded data are kept in --data-dir")

    # --- record and screen ---
    validation: Share = record(
        0.0, "Share of each client's training samples to hold out for choosing a round",
        affects="data", metavar="SHARE", usual="none", ge=0, lt=1
    )
    eval_every: int = record(
        1, "Rounds between evaluations", affects="digits", step_time=False, common=True, ge=1
    )
    eval_clients: Literal["all", "participants"] = record(
        "all", "Clients to evaluate", affects="data"
    )
    eval_server: bool = record(
        True, "Score the server's models on the global test set"
    )
    checkpoint_every: Rounds = record(
        1, "Rounds between checkpoints", affects="nothing", metavar="N|off", resume=False, ge=0
    )
    keep: Literal["best", "last", "current"] = record(
        "best", "Weights to keep of each trial: best and last round, last round, or none",
        affects="nothing"
    )
    keep_weights: KeptRounds = record(
        "", "Further rounds of each trial whose weights are kept",
        affects="nothing", metavar="every:N|rounds:R,R", usual="none"
    )
    on_bad_upload: Literal["stop", "skip"] = record(
        "stop", "What to do about an invalid upload", affects="method"
    )
    upload_limit: float = record(
        4096, "Largest upload in MiB", affects="method", gt=0
    )
    upload_bound: float = record(
        0, "Largest absolute number in an upload (0: 1e9)", affects="method", ge=0
    )
    on_lost_client: Literal["stop", "skip"] = record(
        "stop", "What to do if a client's hook fails or a client is lost", affects="nothing"
    )
    min_clients: int = record(
        1, "Minimum number of clients in a round if others are absent", affects="nothing", ge=0
    )
    wait_for_clients: float = record(
        600, "Seconds to wait before a round for --min-clients clients", affects="nothing", ge=0
    )
    dry_run: bool = record(
        True, "Check the run with two short rounds before training", affects="nothing", resume=False
    )
    measure: Measures = names([], f"Further figures to record: {', '.join(MEASURES)}")
    metrics: Names = names(
        [], "Metrics to record of the scores of test samples", chooses="metric", common=True
    )
    observe: Sights = names([], "Observations: prototypes, features of test samples, images")
    observe_every: int = record(1, "Record observations every N rounds, and in the last one", ge=1)
    observe_samples: int = record(
        50, "Test samples of a client whose features are recorded", ge=1, le=1_000_000
    )
    record_uploads: bool = record(False, "Record the uploads of every round")
    record_predictions: Predictions = record(
        [], "Record the predicted class of every test sample in these rounds of each trial: last, "
        "best (on test samples), validation (chosen on validation samples)",
        metavar="ROUND[,ROUND…]", usual="none"
    )
    track: Names = names(
        [], "Experiment trackers", affects="nothing", chooses="tracker", recorded=False, common=True
    )
    profile: bool = record(
        False, "Print where the time went, and write profile/summary.json",
        affects="nothing", recorded=False
    )

    @property
    def held_out(self) -> int:
        """Samples of the data to hold out as public ones."""
        return self.public if isinstance(self.public, int) else 0
