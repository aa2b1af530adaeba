"""Pydantic models of the JSON that commands print with ``--json``.

Only `protofl_cli.json.json_output.schema_of` and the tests import them.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Output(BaseModel):
    """Base class of all models: other keys are errors, and docstrings describe the fields."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Pair(Output):
    """A line of a table of names and values."""

    name: str
    """Name, as the table shows it."""
    value: str
    """Value as text, as the table shows it."""


class PairTable(Output):
    """A table of names and values."""

    rows: list[Pair]
    """Lines of the table."""
