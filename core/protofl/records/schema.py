"""Forms of the JSON files of runs and sweeps; an error names file, line, key and value.

Readers use values without further checks. Keys that are not declared here may have any value, as
other versions of protofl and plugins record more.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypeAliasType

from protofl.system.files.checksums import Damaged

Number = Annotated[float, Field(allow_inf_nan=False, le=1e300, ge=-1e300)]
Seconds = Annotated[Number, Field(ge=0, le=1e12)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Positive = Annotated[int, Field(ge=1, lt=1 << 63)]
Client = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
ByClient = dict[Client, Number]
Named = dict[str, Number | None]
Scalar = str | bool | Annotated[int, Field(lt=1 << 64, gt=-(1 << 64))] | Number | None
Json = TypeAliasType("Json", "Scalar | list[Json] | dict[str, Json]")

ANY = "finite numbers, texts, or lists and tables of them"


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class Line(_Form):
    """A line of ``metrics.jsonl``; `protofl.records.row.Row` has its figures as attributes."""

    trial: Count
    round: Count
    time: str = ""
    ended: str = ""
    test_accuracy: Number | None = None
    client_test_accuracy: Number | None = None
    test_accuracy_std: Number | None = None
    validation_accuracy: Number | None = None
    client_validation_accuracy: Number | None = None
    validation_accuracy_std: Number | None = None
    unseen_accuracy: Number | None = None
    fine_tuned_accuracy: Number | None = None
    fine_tuned_validation_accuracy: Number | None = None
    honest_accuracy: Number | None = None
    client_accuracies: ByClient = {}
    client_unseen_accuracies: ByClient = {}
    client_fine_tuned_accuracies: ByClient = {}
    evaluated: Count
    train_loss: Number | None
    loss_terms: Named
    lr: Number | None = None
    upload_floats: Count
    upload_bytes: Count
    download_floats: Count
    download_bytes: Count
    participants: Count
    answered: list[Count] | None = None
    absent: dict[Client, str] = {}
    unfollowed: dict[Client, str] = {}
    unscored: dict[Client, str] = {}
    failures: dict[Client, str] = {}
    skipped_uploads: list[Count] = []
    malicious: list[Count] = []
    joined: list[Count] = []
    unseen: list[Count] = []
    client_losses: dict[Client, Number | None] = {}
    extra: Named
    metrics: dict[str, dict[str, Json]] = {}
    measures: dict[str, Json] = {}
    seconds: _Stages
    virtual: _Virtual | None = None
    schedule: _Schedule | None = None


class _Stages(_Form):
    __pydantic_extra__: dict[str, Seconds]

    total: Seconds


class _Virtual(_Form):
    elapsed: Number
    seconds: Number


class _Spread(_Form):
    mean: Number | None = None
    max: Count | None = None


class _Schedule(_Form):
    time: Number | None = None
    version: Count | None = None
    uploads: Count | None = None
    staleness: _Spread | None = None
    idle: Number | None = None
    clock: str = "virtual"
    versions: dict[Client, Count] = {}
    seconds: ByClient = {}
    evaluated: dict[Client, Count] = {}


class _Plugin(_Form):
    kind: str
    name: str
    distribution: str
    version: str


class _Data(_Form):
    digest: str
    samples: Count = 0
    shape: list[Count] = []


class Config(_Form):
    """The content of ``config.json``; other options have scalars, or lists or tables of them."""

    __pydantic_extra__: dict[str, Scalar | list[Scalar] | dict[str, Json]]

    method: str
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    rounds: Positive
    trials: Positive
    clients: Positive
    models: str
    dataset: str
    partition: str
    participation: Number
    local_epochs: Number
    optimizer: str
    lr: Number
    device: str
    engine: str
    options: dict[str, dict[str, Json]]
    identity: str = ""
    eval_every: Positive = 1
    patience: Count = 0
    eval_clients: str = "all"
    eval_server: bool = True
    architectures: list[str] = []
    use: dict[str, str] = {}
    add: list[str] = []
    drop: list[str] = []
    transforms: list[str] = []
    block: list[str] = []
    measure: list[str] = []
    metrics: list[str] = []
    observe: list[str] = []
    classes: dict[str, str] = {}
    files: dict[str, str] = {}
    depends_on: list[str] = []
    notes: list[str] = []
    plugins: list[_Plugin] = []
    versions: dict[str, str] = {}
    machine: dict[str, str] = {}
    data: _Data | None = None
    layout: dict[str, Json] = {}


class _Scored(_Form):
    __pydantic_extra__: dict[str, Number | list[Count] | None]

    trial: Count
    best_test_accuracy: Number
    best_round: Count
    final_test_accuracy: Number
    ended: str = "rounds"


class Summary(_Form):
    """The content of ``summary.json``."""

    best_test_accuracy: Number
    final_test_accuracy: Number
    rounds: Positive
    eval_clients: str = "all"
    trials: Annotated[list[_Scored], Field(min_length=1)]
    mean: dict[str, Number]
    std: dict[str, Number]


class _Split(_Form):
    trial: Count
    classes: list[str]
    train_counts: list[list[Count]]
    test_counts: list[list[Count]]
    validation_counts: list[list[Count]] | None = None
    public_samples: Count = 0
    global_test_samples: Count = 0
    hash: str
    client_names: list[str] | None = None

    @model_validator(mode="after")
    def _is_a_table(self) -> _Split:
        tables = self.train_counts, self.test_counts, self.validation_counts or self.test_counts
        if any(len(t) != len(self.train_counts) for t in tables) or any(
            len(row) != len(self.classes) for table in tables for row in table
        ):
            raise ValueError("expected counts of all clients and classes")
        if self.client_names is not None and len(self.client_names) != len(self.train_counts):
            raise ValueError("expected names of all clients")
        return self


class Partition(_Split):
    """The content of ``partition.json``: the split of the first trial, and of the others."""

    trials: list[_Split] = []


class _PointRun(_Form):
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    state: str
    value: Number | None
    test: Number | None
    round: Count | None
    chosen_on: str | None
    rounds: Count
    folder: str | None
    error: str
    samples: Count

    @model_validator(mode="after")
    def _is_whole(self) -> _PointRun:
        figure = self.value, self.test, self.round, self.chosen_on
        if len({entry is None for entry in figure}) > 1:
            raise ValueError("expected value, test, round and chosen_on, or none of them")
        return self


class _Point(_Form):
    point: dict[str, Scalar]
    runs: Annotated[list[_PointRun], Field(min_length=1)]


class SweepResults(_Form):
    """The content of ``results.json`` of a sweep."""

    figure: str
    points: list[_Point]

    @model_validator(mode="after")
    def _has_the_same_options(self) -> SweepResults:
        if any(one.point.keys() != self.points[0].point.keys() for one in self.points):
            raise ValueError("expected the same options in all points")
        return self


def check(values: Any, form: type[BaseModel], place: str) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value that has a form.

    Args:
        values: The value.
        form: One of the classes above.
        place: The file, and the line, for errors.

    Raises:
        Damaged: The value has another form.
    """
    try:
        form.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key, value = _found(values, first["loc"])
        if first["type"] == "missing":
            problem = f"{'.'.join(filter(None, (key, str(first['loc'][-1]))))} is missing"
        else:
            is_choice = len(key.split(".")) < len(first["loc"])
            expected = ANY if is_choice else first["msg"].removeprefix("Input should be ")
            problem = f"{key or 'it'} is {reprlib.repr(value)}, expected {expected}"
            if first["type"] == "value_error":
                problem = str(first["ctx"]["error"])
        raise Damaged(f"{place} is damaged: {problem}") from None
    return values


def _found(values: Any, path: Sequence[int | str]) -> tuple[str, Any]:  # noqa: ANN401 - JSON
    """Return the key with dots, and the value, to which the location of an error leads."""
    key: list[str] = []
    for step in path:  # names of types of a union are among the steps
        if isinstance(values, Mapping) and step in values:
            values = values[step]
        elif isinstance(values, list) and isinstance(step, int) and step < len(values):
            values = values[step]
        else:
            continue
        key.append(str(step))
    return ".".join(key), values
