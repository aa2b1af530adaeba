"""When a captured step counts as equal to its code."""

from __future__ import annotations

import pytest
import torch

from protofl_plugins.engines.captured_steps import LEAST, MARGIN, Step, difference


def step(loss=2.0, update=0.1, *, small=0.0, weight=1.0):
    before = {"head.weight": torch.full((4,), weight), "head.bias": torch.full((2,), weight)}
    after = {name: tensor + update for name, tensor in before.items()}
    after["head.bias"] = before["head.bias"] + update * (1 + small)
    return Step({"ce": torch.tensor(loss), "align": torch.tensor(0.01)}, before, after)


def test_equal_steps_agree():
    assert difference(step(), step(), step()) == ""


def test_a_loss_term_is_named_with_both_values():
    assert difference(step(), step(), step(2.1)) == "loss term ce is 2.1 and not 2"
    assert not difference(step(), step(), step(2 + LEAST))


def test_an_update_is_named():
    found = difference(step(), step(), step(small=0.05))
    assert found == "the update of head.bias differs by 5.0%"


@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_what_rounding_does_is_allowed_six_times(noise):
    code, rounded = step(), step(2 * (1 + noise), 0.1 * (1 + noise))
    within, beyond = noise * (MARGIN - 0.5), noise * (MARGIN + 0.5)
    assert not difference(code, rounded, step(2 * (1 + within), 0.1 * (1 + within)))
    assert "loss term ce" in difference(code, rounded, step(2 * (1 + beyond)))
    assert "the update of" in difference(code, rounded, step(update=0.1 * (1 + beyond)))


def test_an_update_is_as_exact_as_its_weight_stores_it():
    """An update of 1e-7 of a weight in float32 is rounded to one or two units in the last place."""
    code, graph = step(update=1e-6, weight=8.0), step(update=2e-6, weight=8.0)
    assert not difference(code, code, graph)
    assert difference(
        step(update=1e-6, weight=0.0), step(update=1e-6, weight=0.0), step(update=2e-6, weight=0.0)
    )


def test_a_step_that_diverges_is_no_difference_and_one_of_the_graph_is():
    nan = step(float("nan"), float("nan"))
    assert not difference(nan, nan, nan)
    assert "loss term ce is nan" in difference(step(), step(), nan)
