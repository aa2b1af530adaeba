"""The options of a run, as one validated model; the command line and `protofl.run` fill it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from protofl.errors import UsageError, unknown
from protofl.options.declared import refuse_truths
from protofl.options.written import names_in, read_share

DEFAULT_DATA_DIR = Path("~/.cache/protofl")


class Settings(BaseModel):
    """All options of a run; None where a method's, a data set's or the list's default applies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = Field(description="the method")
    models: str = Field(description="the model group")
    dataset: str = Field("digits", description="the data set, NAME or NAME:PATH")
    subset: Annotated[float, BeforeValidator(read_share)] = Field(
        1.0,
        gt=0,
        description="class-balanced part of the data: a share (1/20) or, above 1, samples",
    )
    partition: str = Field("dirichlet", description="the partitioner")
    clients: int = Field(20, ge=1, le=10_000_000, description="clients M")
    participation: float = Field(1.0, gt=0, le=1, description="share of clients in a round, ρ")
    rounds: int = Field(100, ge=1, le=10_000_000, description="rounds T")
    local_epochs: int = Field(1, ge=1, le=1_000_000, description="epochs of the private phase E")
    batch_size: int = Field(10, ge=1, le=1_000_000_000, description="samples per mini-batch")
    drop_last: bool = Field(False, description="leave out the last, smaller batch")
    optimizer: Literal["sgd", "adam"] = Field(
        "sgd", description="local optimiser, fresh each round"
    )
    lr: float = Field(0.01, gt=0, description="learning rate η")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    clip: float = Field(
        0.0,
        ge=0,
        description="largest gradient norm of the model, and of each further module; 0 for any",
    )
    feature_dim: int = Field(512, ge=1, description="feature width K; the group's where not given")
    public: int | str = Field(0, description="public samples to hold out, npz:PATH, or none")
    augment: bool = Field(False, description="random shifts and flips of training images")
    seed: int = Field(0, ge=0, description="seed s; trial k uses s + k")
    trials: int = Field(
        1, ge=1, le=1_000_000, description="repetitions with other weights and splits"
    )
    hold_split: bool = Field(False, description="keep the first trial's split in all trials")
    same_init: bool = Field(False, description="the same initial weights for one architecture")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    deterministic: bool = Field(False, description="deterministic CUDA kernels only")
    precision: Literal["fp32", "bf16"] = Field("fp32", description="arithmetic of training")
    generator: str = Field(
        "tiny-style", description="the server's image generator, for methods that need one"
    )
    engine: str = Field("eager", description="the training engine")
    backend: str = Field("auto", description="where hosts live: auto, local, process, …")
    workers: int = Field(0, ge=0, le=4096, description="hosts; 0 for one per core")
    client_store: Literal["memory", "disk"] = Field(
        "memory", description="where clients that have trained are kept between rounds"
    )
    server_threads: int = Field(1, ge=1, le=1024, description="threads of the server's hooks")
    job_limit: float = Field(
        86_400,
        ge=0,
        le=10_000_000,
        description="seconds that a client's job or a server's hook may take; 0 for any",
    )
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="{plugin or kind: {key: value}} of --set"
    )
    use: dict[str, str] = Field(default_factory=dict, description="{hook: method} of --use")
    add: list[str] = Field(default_factory=list, description="METHOD.TERM of --add")
    drop: list[str] = Field(default_factory=list, description="TERM of --drop")
    wrappers: list[str] = Field(default_factory=list, description="wrappers of --with")
    block: list[str] = Field(default_factory=list, description="plugins of --block")
    eval_every: int = Field(1, ge=1, description="rounds between evaluations")
    eval_clients: Literal["all", "participants"] = Field(
        "all", description="the clients that are evaluated"
    )
    checkpoint_every: int = Field(1, ge=0, description="rounds between checkpoints; 0 for never")
    on_bad_upload: Literal["stop", "skip"] = Field(
        "stop", description="what becomes of an upload that is not as it should be"
    )
    upload_limit: float = Field(4096, gt=0, description="largest upload in MiB")
    upload_bound: float = Field(
        0, ge=0, description="largest absolute number in an upload; 0 for any that is finite"
    )
    on_lost_client: Literal["stop", "skip"] = Field(
        "stop", description="what to do about a client whose training ends three workers"
    )
    min_clients: int = Field(
        1, ge=0, description="clients that a round needs where others are absent"
    )
    participants_from: Path | None = Field(
        None, description="a run folder whose rounds' participants, without the absent, take part"
    )
    dry_step: bool = Field(True, description="try two short rounds before the first")
    recipe: dict[str, str] = Field(
        default_factory=dict, description="name, version and distribution of the recipe, if any"
    )
    measure: list[str] = Field(
        default_factory=list,
        description="further figures of the record: train-accuracy, margins, public-logits, flops",
    )
    metrics: Annotated[list[str], BeforeValidator(names_in)] = Field(
        default_factory=list, description="metrics of the test samples' scores to record"
    )
    profile: bool = Field(False, description="time every stage; write profile/trace.json")
    data_dir: Path = Field(DEFAULT_DATA_DIR, description="where decoded data are cached")

    @model_validator(mode="before")
    @classmethod
    def _no_truths(cls, data: dict[str, Any]) -> dict[str, Any]:
        refuse_truths(cls, data)
        return data

    @field_validator("measure", mode="before")
    @classmethod
    def _known_figures(cls, value: list[str] | str) -> list[str]:
        names = names_in(value)
        for name in names:
            if name not in MEASURES:
                raise unknown("figure of --measure", name, MEASURES)
        return [name for name in MEASURES if name in names]

    @property
    def held_out(self) -> int:
        """Samples of the data to hold out as public ones."""
        return self.public if isinstance(self.public, int) else 0


MEASURES = ("train-accuracy", "margins", "public-logits", "flops")
"""Figures that a run records where it is asked to, see docs/results.md."""

CHOOSING = {
    "dataset": "dataset",
    "partition": "partitioner",
    "models": "model-group",
    "engine": "engine",
    "generator": "generator",
    "backend": "backend",
}
"""Options that choose the plugin of a kind; in --set they stand for the chosen one."""

FREE = set(
    "backend workers client_store profile job_limit measure metrics on_lost_client "
    "min_clients".split()
)
"""Options that may differ on resume: results don't depend on them."""

UNRECORDED = {"backend", "workers", "profile", "job_limit"}
"""Those of them that config.json doesn't hold.

It holds backend and profile where the engine trains groups of clients: which those are depends on
them, and so do the last bits, so that they may not differ on resume either.
"""


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
