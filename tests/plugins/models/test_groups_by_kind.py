"""Tests of the model groups for tables, series and token sequences."""

from __future__ import annotations

import pytest
import torch

import protofl as pf
from protofl.hooks.models.flops import cost, profile
from protofl.testing import toy as toyfed
from protofl_plugins.models.cnn1d import SeriesNets
from protofl_plugins.models.mlp import MLPs
from protofl_plugins.models.text import TextNets

TEXT = pf.datasets.SampleSpec((12,), "tokens", vocabulary=50, padding=0)
SERIES = pf.datasets.SampleSpec((2, 30), "series")
GROUPS = {
    "mlp": (MLPs, pf.datasets.SampleSpec((13,), "table")),
    "cnn1d": (SeriesNets, SERIES),
    "text": (TextNets, TEXT),
}


def members(group, only=None):
    return group().architectures(config=group.Config(only=only))


@pytest.mark.parametrize("name", GROUPS)
def test_every_net_is_another_one(name):
    group, sample = GROUPS[name]
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in a.build(sample, 3, 64).parameters()) for a in members(group)
        ]
    assert len({*sizes}) == len(sizes) == 4
    server = group.server_architecture
    offered = group().server_architectures(config=group.Config())
    assert server in [a.name for a in offered]


@pytest.mark.parametrize("name", GROUPS)
def test_the_extractors_own_width_is_k(name):
    group, sample = GROUPS[name]
    for architecture in members(group):
        model = architecture.build(sample, 3, group.feature_dim).eval()
        x = toyfed.random_batch(sample, 5)
        assert model.extractor(x).shape == (5, group.feature_dim)  # no pool in between


@pytest.mark.parametrize("name", GROUPS)
def test_one_net_for_everybody(name):
    group, _ = GROUPS[name]
    names = [a.name for a in members(group)]
    assert [a.name for a in members(group, only=names[1])] == [names[1]]
    with pytest.raises(pf.UsageError, match=f"only={names[0]}x is not a net") as error:
        members(group, only=names[0] + "x")
    assert names[0] in error.value.near


@pytest.mark.parametrize("name", [a.name for a in members(TextNets)])
@pytest.mark.parametrize("padding", [0, 7])
def test_padding_changes_no_score(name, padding):
    torch.manual_seed(0)
    (architecture,) = members(TextNets, only=name)
    long = pf.datasets.SampleSpec((12,), "tokens", vocabulary=50, padding=padding)
    short = pf.datasets.SampleSpec((6,), "tokens", vocabulary=50, padding=padding)
    model = architecture.build(long, 3, 64).eval()
    x = toyfed.random_batch(short, 8)
    filled = torch.full((8, 12), padding)
    filled[:, :6] = x
    torch.testing.assert_close(model(filled), model(x))
    assert torch.isfinite(model(torch.full((2, 12), padding))).all()  # only padding


@pytest.mark.parametrize("name", [a.name for a in members(TextNets)])
def test_a_vocabulary_without_padding(name):
    (architecture,) = members(TextNets, only=name)
    model = architecture.build(pf.datasets.SampleSpec((9,), "tokens", 20), 3, 64).eval()
    x = torch.zeros(2, 9, dtype=torch.int64)
    x[1, 8] = 5  # id 0 is a normal token, so the last one counts
    assert not torch.allclose(*model(x))


def test_the_causal_net_reaches_back_to_the_start():
    torch.manual_seed(0)
    (architecture,) = members(SeriesNets, only="tcn1d")
    model = architecture.build(pf.datasets.SampleSpec((1, 64), "series"), 3, 64).double().eval()
    x = torch.randn(1, 1, 64, dtype=torch.double, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert (gradient[0, 0] != 0).all()


@pytest.mark.parametrize("name", GROUPS)
def test_the_cost_is_half_the_flops(name):
    group, sample = GROUPS[name]
    for architecture in members(group):
        sizes = (sample, 3, 64)
        assert 2 * cost(architecture, *sizes) == profile(architecture, *sizes)[1], architecture
