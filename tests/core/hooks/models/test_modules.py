"""Tests of the modules of a client."""

from __future__ import annotations

from torch import nn

from protofl.hooks.models.modules import set_mode


def test_a_mode_is_set_where_any_part_has_another_one():
    calls = []

    class Frozen(nn.BatchNorm1d):
        """Stays in eval mode, and counts calls."""

        def train(self, mode: bool = True) -> nn.Module:
            calls.append(mode)
            return super().train(False)

    plain = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()), nn.Dropout())
    plain[1][0].eval()
    set_mode(plain, True)
    assert all(module.training for module in plain.modules())
    set_mode(plain, False)
    assert not any(module.training for module in plain.modules())
    frozen = nn.Sequential(nn.Linear(2, 2), Frozen(2))
    set_mode(frozen, True)
    assert frozen[0].training and not frozen[1].training and calls == [True]
    set_mode(frozen, False)
    set_mode(frozen, False)
    assert not frozen.training and calls == [True, False]
