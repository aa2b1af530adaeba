"""Test engines on nets of the model groups: BatchNorm, depthwise convolutions, dense layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_toys import ENGINES
from slowness import quick

from protofl.testing import toy as toyfed
from protofl.testing.equality import Run, assert_equal_runs, double_precision
from protofl_plugins.models.cnn import CNN4, HTCNN8
from protofl_plugins.models.group import ModelGroup
from protofl_plugins.models.imagenet import MOBILENET_V2, RESNET4

NETS = {"cnn4": CNN4, "htcnn8": HTCNN8[4], "resnet4": RESNET4, "mobilenet": MOBILENET_V2}
# On 1×1 maps, BatchNorm amplifies rounding in every step: one step there, three elsewhere.
BATCH = {"mobilenet": 16}


def make_plan(net, folder, **options):
    class Nets(ModelGroup):
        """One net."""

        extractors = (net,)

    images = toyfed.make_images([[5, 4], [6, 6], [3, 4]])
    images = replace(images, x=images.x.to(torch.float32))
    given = {"feature_dim": 32, "lr": 0.002, "backend": "local"}
    return toyfed.make_plan("fedproto", folder, images, Nets, **given | options)


@pytest.mark.parametrize(
    ("engine", "net"),
    quick([(e, n) for e in ENGINES for n in NETS], ("cuda-graphs", "cnn4")),
)
def test_in_float64(engine, net, tmp_path):
    with double_precision():
        wanted, found = (
            Run(make_plan(NETS[net], tmp_path, batch_size=BATCH.get(net, 5), **own), start=1)
            for own in ({}, ENGINES[engine])
        )
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-9)
