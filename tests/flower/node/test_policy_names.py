"""Tests of former names of rules in a node's policy."""

from __future__ import annotations

import pytest

from protofl_flower.node.policy import Policy


def test_the_former_name_of_a_rule():
    with pytest.warns(FutureWarning, match=r"\[policy\] wrappers is now transforms"):
        assert Policy.read({"wrappers": ["quantise"]}) == Policy(transforms=["quantise"])
