"""Which parameters of a test run by default."""

from __future__ import annotations

import pytest


def quick(values, *chosen):
    """The values as parameters of a test, all but the chosen ones marked slow."""
    assert {*chosen} <= {*values}, f"{chosen} are not all among {[*values]}"
    return [v if v in chosen else pytest.param(v, marks=pytest.mark.slow) for v in values]
