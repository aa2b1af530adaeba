"""Tests of methods that share one part of a model, where both parts have one tensor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runtime_toys import PARTS, _dense, make_plan

import protofl as pf
from protofl.testing import toy

BASE = _dense(8)


def _group():
    def build(sample, classes, feature_dim):
        model = BASE.build(sample, classes, feature_dim)
        model.head.bias = model.extractor[-1].bias
        return model

    return toy.group(replace(BASE, build=build), K=4, side=8)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setitem(PARTS, ("model-group", "tied"), _group())


@pytest.mark.parametrize("method", ["lg-fedavg", "fedper", "fedrep", "fedgh"])
def test_a_tensor_of_both_parts_is_refused(method):
    with pytest.raises(pf.UsageError) as caught:
        make_plan(method, models="tied")
    assert "dense8 has one tensor in both (extractor.3.bias, head.bias)" in str(caught.value)
    make_plan(method, models="toy1")


def test_whole_models_may_have_tied_weights():
    make_plan("fedavg", models="tied")
