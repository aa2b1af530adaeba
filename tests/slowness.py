"""Choose which parameters of a test run by default."""

from __future__ import annotations

import pytest

SLOW = pytest.mark.slow

KINDS = ("fedavg", "fedgen", "fedkd", "fedpkd", "fedproto")
"""One method of each kind: averaged models; heads and a generator that the server trains; a model
beside the client's own; public samples in phases; class prototypes."""


def quick(values, *chosen, always=False):
    """Return the values as test parameters, slow unless chosen. A tuple sets several arguments.

    With `always`, the slow ones run in every part of the slow tests: they guard against lost data.
    """
    values = [*values]
    assert all(value in values for value in chosen), f"{chosen} are not all among {values}"
    slow = [SLOW, pytest.mark.always] if always else [SLOW]
    rows = [(v if isinstance(v, tuple) else (v,), [] if v in chosen else slow) for v in values]
    return [pytest.param(*row, marks=marks) for row, marks in rows]
