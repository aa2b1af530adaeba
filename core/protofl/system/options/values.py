"""Types of run options that are written in a form of their own, and read by pydantic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator

from protofl.errors import unknown
from protofl.system.options.written import every, names_in, read_joins, read_share

MEASURES = ("train-accuracy", "margins", "public-logits", "flops")
"""Figures that a run records on request, see docs/reference/record.md."""

SIGHTS = ("prototypes", "features", "images")
"""What a run keeps of its rounds on request, see docs/how-to/observe-prototypes.md."""


def _known(value: Any, known: Sequence[str], noun: str) -> Any:  # noqa: ANN401 - as pydantic has it
    """Return names in the order in which they are listed.

    Raises:
        UsageError: A name is unknown.
    """
    names = names_in(value)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return names
    for name in names:
        if name not in known:
            raise unknown(noun, name, known)
    return [name for name in known if name in names]


Share = Annotated[float, BeforeValidator(read_share)]
Rounds = Annotated[int, BeforeValidator(every)]
Joins = Annotated[str | None, BeforeValidator(read_joins)]
Names = Annotated[list[str], BeforeValidator(names_in)]
Measures = Annotated[
    list[str], BeforeValidator(partial(_known, known=MEASURES, noun="figure of --measure"))
]
Sights = Annotated[
    list[str], BeforeValidator(partial(_known, known=SIGHTS, noun="word of --observe"))
]
