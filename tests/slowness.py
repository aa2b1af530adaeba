"""Which parameters of a test run by default."""

from __future__ import annotations

import pytest

SLOW = pytest.mark.slow

KINDS = ("fedavg", "fedgen", "fedkd", "fedpkd", "fedproto")
"""A method of each kind: models that are averaged; heads and a generator that the server trains; a
model beside the client's own; public samples in phases; tables of the client's classes."""


def quick(values, *chosen):
    """The values as parameters of a test, all but the chosen ones marked slow; tuples are rows."""
    assert {*chosen} <= {*values}, f"{chosen} are not all among {[*values]}"
    rows = [(v if isinstance(v, tuple) else (v,), [] if v in chosen else [SLOW]) for v in values]
    return [pytest.param(*row, marks=marks) for row, marks in rows]
