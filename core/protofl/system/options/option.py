"""Declaration of run options, and types of options with a text form of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, cast

import pydantic
from pydantic import AfterValidator, BeforeValidator, PlainSerializer
from pydantic.fields import FieldInfo

from protofl.errors import unknown
from protofl.system.options.parsing import (
    read_joins,
    read_kept,
    read_labels,
    read_names,
    read_rounds,
    read_share,
    whole_number,
)

MEASURES = ("train-accuracy", "global-accuracy", "public-logits", "flops")
"""Figures that a run records on request, see docs/reference/record.md."""

SIGHTS = ("prototypes", "features", "images")
"""Observations that a run records on request, see docs/how-to/observe-prototypes.md."""


CHOSEN_ROUNDS = ("last", "best", "validation")
"""Rounds whose predictions a run records on request, see docs/reference/record.md."""


def _known(value: Any, known: Sequence[str], noun: str) -> Any:  # noqa: ANN401 - as pydantic has it
    """Return names in the order in which they are listed.

    Raises:
        UsageError: A name is unknown.
    """
    names = read_names(value)
    if not isinstance(names, list):
        return names
    for name in names:
        if name not in known:
            raise unknown(noun, str(name), known)
    return [name for name in known if name in names]


Share = Annotated[float, BeforeValidator(read_share)]

Epochs = Annotated[
    float, AfterValidator(whole_number), PlainSerializer(whole_number, return_type=Any)
]

Rounds = Annotated[int, BeforeValidator(read_rounds)]

Joins = Annotated[str | None, BeforeValidator(read_joins)]

KeptRounds = Annotated[str, BeforeValidator(read_kept)]

Labels = Annotated[list[str], BeforeValidator(read_labels)]

Names = Annotated[list[str], BeforeValidator(read_names)]

Measures = Annotated[
    list[str], BeforeValidator(partial(_known, known=MEASURES, noun="figure of --measure"))
]

Sights = Annotated[
    list[str], BeforeValidator(partial(_known, known=SIGHTS, noun="word of --observe"))
]

Predictions = Annotated[
    list[str],
    BeforeValidator(partial(_known, known=CHOSEN_ROUNDS, noun="round of --record-predictions")),
]

Affects = Literal["method", "data", "digits", "extent", "record", "nothing"]
"""The results that depend on an option.

- ``method``: the training.
- ``data``: the data of a run, and the samples or clients on which it is scored.
- ``digits``: the last digits of results, or the rounds that have results.
- ``extent``: how often and how long: two runs share the trials and rounds that both have.
- ``record``: additional records.
- ``nothing``: no result, only the machine, the screen or the places of files.
"""


RESULTS = ("method", "data", "digits")
"""Values of `Affects` with which two runs that differ in the option are different runs."""


@dataclass(frozen=True)
class Option:
    """Declaration of a run option, in addition to its type, default and range.

    Attributes:
        help: A description, for ``--help`` and for reports.
        resume: True if it may change when a run is resumed. Default: no result depends on it.
        sweep: True if it may be an axis of a sweep. Default: results depend on it, and its value
            is not a list.
        affects: The results that depend on it.
        recorded: True if ``config.json`` holds it.
        chooses: The kind of plugin that the option names, if any. In ``--set`` the name of the
            option then stands for the chosen plugin.
        step_time: True if it may change the time of a mini-batch.
        panel: The panel of ``protofl run --help``; empty for an option without a flag.
        metavar: The placeholder of its value in the help; empty for the name of its type.
        flag: The long name on the command line, if it differs from the name of the option.
        usual: The default in words, if it depends on something.
        common: True if ``--help`` shows the option; ``--help-all`` shows all.
    """

    help: str
    resume: bool
    sweep: bool
    affects: Affects = "method"
    recorded: bool = True
    chooses: str = ""
    step_time: bool = True
    panel: str = ""
    metavar: str = ""
    flag: str = ""
    usual: str = ""
    common: bool = False

    @property
    def results(self) -> bool:
        """True if two runs that differ in the option are different runs."""
        return self.affects in RESULTS


def option(
    default: Any,  # noqa: ANN401 - of any type
    help: str,
    *,
    affects: Affects = "method",
    **about: Any,  # noqa: ANN401 - attributes of several types
) -> Any:  # noqa: ANN401 - as pydantic's Field has it
    """Declare an option of a run.

    Args:
        default: The default; ``...`` for a required option, a function for a default that depends
            on the machine.
        help: A description.
        affects: The results that depend on it.
        **about: Further attributes of `Option`, and the bounds of a number (``ge``, ``gt``, ``le``,
            ``lt``).
    """
    bounds = {key: about.pop(key) for key in ("ge", "gt", "le", "lt") if key in about}
    several = isinstance(default, (list, dict))
    by_default = {
        "resume": affects in ("record", "nothing"),
        "sweep": affects in RESULTS and not several,
    }
    extra: Any = {"option": Option(help, affects=affects, **by_default | about)}
    if callable(default):
        return pydantic.Field(default_factory=default, description=help, json_schema_extra=extra)
    return pydantic.Field(default, description=help, json_schema_extra=extra, **bounds)


def declared(field: FieldInfo) -> Option:
    """Return what `option` said about a field."""
    return cast("dict[str, Option]", field.json_schema_extra)["option"]


# --- one for each panel of the help ---------------------------------------------------------------

federation = partial(option, panel="Federation")

training = partial(option, panel="Local training")

composition = partial(option, panel="Composition")

repetition = partial(option, panel="Repetition")

machine = partial(option, panel="Machine", affects="nothing")

record = partial(option, panel="Record and screen", affects="record")
names = partial(record, metavar="NAME[,NAME…]", usual="none")
