"""The options of a run, as one validated model; the command line and `protofl.run` fill it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from protofl.errors import UsageError, unknown
from protofl.files.folders import default_data_dir
from protofl.options.declared import refuse_truths
from protofl.options.written import names_in, read_joins, read_share

Share = Annotated[float, BeforeValidator(read_share)]
StopOrSkip = Literal["stop", "skip"]


def option(default: Any, description: str, **bounds: Any) -> Any:  # noqa: ANN401 - of any type
    """An option of a run; ``...`` for its default where it has none."""
    return Field(default, description=description, **bounds)


class Settings(BaseModel):
    """All options of a run; None where a method's, a data set's or the list's default applies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = option(..., "the method")
    models: str = option(..., "the model group")
    dataset: str = option("digits", "the data set, NAME or NAME:PATH")
    subset: Share = option(
        1.0, "class-balanced part of the data: a share (1/20) or, above 1, samples", gt=0
    )
    partition: str = option("dirichlet", "the partitioner")
    clients: int = option(20, "clients M", ge=1, le=10_000_000)
    participation: float = option(1.0, "share of clients in a round, ρ", gt=0, le=1)
    unseen: Share = option(
        0.0, "clients that never train and are scored apart: a share or, from 1, a number", ge=0
    )
    fine_tune: int | None = option(
        None, "epochs for which unseen clients are trained at the end", ge=0, le=1_000_000
    )
    join_round: Annotated[str | None, BeforeValidator(read_joins)] = option(
        None, "rounds from which further clients take part, and what share of them"
    )
    malicious: float = option(0.0, "share of clients that are malicious", ge=0, lt=1)
    selection: str = option("uniform", "who is asked in a round, NAME or NAME:PATH")
    world: str | None = option(None, "clients' devices in virtual time, NAME or NAME:PATH")
    deadline: float | None = option(
        None, "virtual seconds of a round after which clients are absent", gt=0
    )
    over_select: float = option(
        0, "share of clients that are asked beyond those awaited; the fastest count", ge=0, le=1000
    )
    rounds: int = option(100, "rounds T", ge=1, le=10_000_000)
    local_epochs: int = option(1, "epochs of the private phase E", ge=1, le=1_000_000)
    batch_size: int = option(10, "samples per mini-batch", ge=1, le=1_000_000_000)
    validation: Share = option(
        0.0, "share of each client's training samples that is held out to choose by", ge=0, le=0.5
    )
    drop_last: bool = option(False, "leave out the last, smaller batch")
    shuffle: bool = option(True, "take the samples in another order in each epoch")
    optimizer: Annotated[str, AfterValidator(str.lower)] = option(
        "sgd", "local optimiser, fresh each round: sgd, adam, or another of torch.optim"
    )
    lr: float = option(0.01, "learning rate η", gt=0)
    lr_schedule: Literal["constant", "step", "cosine", "exponential"] = option(
        "constant", "how the learning rate falls from round to round"
    )
    weight_decay: float | None = option(
        None, "weight decay; the optimiser's own where not given, mostly 0", ge=0
    )
    momentum: float = option(0.0, "momentum of SGD", ge=0, lt=1)
    clip: float = option(
        0.0, "largest gradient norm of the model, and of each further module; 0 for any", ge=0
    )
    feature_dim: int = option(512, "feature width K; the group's where not given", ge=1)
    public: int | str = option(0, "public samples to hold out, npz:PATH, or none")
    augment: bool = option(False, "random shifts and flips of training images")
    seed: int = option(0, "seed s; trial k uses s + k", ge=0)
    trials: int = option(1, "repetitions with other weights and splits", ge=1, le=1_000_000)
    hold_split: bool = option(False, "keep the first trial's split in all trials")
    same_init: bool = option(False, "the same initial weights for one architecture")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    deterministic: bool = option(False, "deterministic CUDA kernels only")
    precision: Literal["fp32", "bf16"] = option("fp32", "arithmetic of training")
    generator: str = option("tiny-style", "the server's image generator, for methods that need one")
    engine: str = option("eager", "the training engine")
    backend: str = option("auto", "where hosts live: auto, local, process, …")
    workers: int = option(0, "hosts; 0 for one per core", ge=0, le=4096)
    client_store: Literal["memory", "disk"] = option(
        "memory", "where clients that have trained are kept between rounds"
    )
    server_threads: int = option(1, "threads of the server's hooks", ge=1, le=1024)
    job_limit: float = option(
        86_400,
        "seconds that a client's job or a server's hook may take; 0 for any",
        ge=0,
        le=10_000_000,
    )
    options: dict[str, dict[str, Any]] = option({}, "{plugin or kind: {key: value}} of --set")
    use: dict[str, str] = option({}, "{hook: method} of --use")
    add: list[str] = option([], "METHOD.TERM of --add")
    drop: list[str] = option([], "TERM of --drop")
    wrappers: list[str] = option([], "wrappers of --with")
    block: list[str] = option([], "plugins of --block")
    classes: dict[str, str] = option(
        {}, "{KIND/NAME: FILE.py:CLASS or MODULE:CLASS} of plugins that are not installed"
    )
    eval_every: int = option(1, "rounds between evaluations", ge=1)
    eval_clients: Literal["all", "participants"] = option("all", "the clients that are evaluated")
    keep: Literal["best", "last", "current"] = option(
        "best", "rounds of each trial whose weights stay: the best and the last, the last, none"
    )
    checkpoint_every: int = option(1, "rounds between checkpoints; 0 for never", ge=0)
    on_bad_upload: StopOrSkip = option(
        "stop", "what becomes of an upload that is not as it should be"
    )
    upload_limit: float = option(4096, "largest upload in MiB", gt=0)
    upload_bound: float = option(
        0, "largest absolute number in an upload; 0 for any that is finite", ge=0
    )
    on_lost_client: StopOrSkip = option(
        "stop", "what to do about a client whose training ends three workers"
    )
    min_clients: int = option(1, "clients that a round needs where others are absent", ge=0)
    participants_from: Path | None = option(
        None, "a run folder whose rounds' participants, without the absent, take part"
    )
    dry_step: bool = option(True, "try two short rounds before the first")
    recipe: dict[str, str] = option({}, "name, version and distribution of the recipe, if any")
    measure: list[str] = option(
        [], "further figures of the record: train-accuracy, margins, public-logits, flops"
    )
    metrics: Annotated[list[str], BeforeValidator(names_in)] = option(
        [], "metrics of the test samples' scores to record"
    )
    observe: list[str] = option(
        [], "what to keep of rounds: prototypes, features of test samples, images"
    )
    observe_every: int = option(1, "rounds between those that are observed; the last is", ge=1)
    observe_samples: int = option(
        50, "test samples of a client whose features are observed", ge=1, le=1_000_000
    )
    observe_limit: float = option(1000, "MB that what is observed may take", gt=0)
    record_uploads: bool = option(False, "keep every round's uploads, for protofl replay")
    track: Annotated[list[str], BeforeValidator(names_in)] = option(
        [], "trackers that are told of the run as it goes on"
    )
    track_group: str = option("", "a name under which trackers put several runs together")
    track_wait: float = option(
        30, "seconds that a run waits for trackers at its end", ge=0, le=86_400
    )
    profile: bool = option(False, "time every stage; write profile/trace.json")
    data_dir: Path = Field(
        default_factory=default_data_dir, description="where decoded data are cached"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_truths(cls, data: dict[str, Any]) -> dict[str, Any]:
        refuse_truths(cls, data)
        return data

    @field_validator("measure", mode="before")
    @classmethod
    def _known_figures(cls, value: list[str] | str) -> list[str]:
        return _in_order(names_in(value), MEASURES, "figure of --measure")

    @field_validator("observe", mode="before")
    @classmethod
    def _known_sights(cls, value: list[str] | str) -> list[str]:
        return _in_order(names_in(value), SIGHTS, "word of --observe")

    @property
    def held_out(self) -> int:
        """Samples of the data to hold out as public ones."""
        return self.public if isinstance(self.public, int) else 0


MEASURES = ("train-accuracy", "margins", "public-logits", "flops")
"""Further figures that a run can record (docs/reference/record.md)."""

SIGHTS = ("prototypes", "features", "images")
"""Observations that a run can record (docs/how-to/observe-prototypes.md)."""

CHOOSING = {
    "dataset": "dataset",
    "partition": "partitioner",
    "models": "model-group",
    "selection": "selection",
    "world": "world",
    "engine": "engine",
    "generator": "generator",
    "backend": "backend",
}
"""Options that choose the plugin of a kind; in --set they stand for the chosen one."""

FREE = set(
    "backend workers client_store profile job_limit measure metrics on_lost_client "
    "min_clients classes keep observe observe_every observe_samples observe_limit "
    "record_uploads track track_group track_wait".split()
)
"""Options that may differ on resume: results don't depend on them."""

UNRECORDED = {*"backend workers profile job_limit track track_group track_wait".split()}
"""Those of them that config.json doesn't hold.

It holds backend and profile where the engine trains groups of clients: which those are depends on
them, and so do the last bits, so that they may not differ on resume either.
"""


def untracked(settings: Settings) -> Settings:
    """The settings without trackers and their options, which are nobody else's business."""
    own = {f"tracker/{name}" for name in settings.track}
    update = {
        "track": [],
        "options": {k: v for k, v in settings.options.items() if k not in settings.track},
        "classes": {k: v for k, v in settings.classes.items() if k not in own},
    }
    return settings.model_copy(update=update)


def _in_order(names: Sequence[str], known: Sequence[str], noun: str) -> list[str]:
    """Names as they are listed; a `UsageError` for one that is not among them."""
    for name in names:
        if name not in known:
            raise unknown(noun, name, known)
    return [name for name in known if name in names]


def check_names(values: Iterable[str], noun: str, others: Iterable[str] = ()) -> None:
    """Raise a `UsageError` for a name that is none of an option.

    Args:
        values: The names.
        noun: What they are, for the error.
        others: Further names that are known there.
    """
    for key in values:
        if key not in Settings.model_fields:
            known = {*Settings.model_fields, "set", "with", *others}
            raise unknown(noun, key, known, "see: protofl run --help")


def build(values: dict[str, Any]) -> Settings:
    """Validate options given by their long names.

    Raises:
        UsageError: One is unknown, missing, or out of its range.
    """
    check_names(values, "option")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise UsageError(str(first["ctx"]["error"]), do="see: protofl run --help") from None
        key = str(first["loc"][0])
        flag = f"--{key.replace('_', '-')}"
        if first["type"] == "missing":
            raise UsageError(f"{flag} is missing", do="see: protofl run --help") from None
        raise UsageError(
            f"{flag} {first.get('input')} is not possible: {first['msg']}",
            do="see: protofl run --help",
        ) from None
