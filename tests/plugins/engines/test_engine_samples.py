"""Compare engines with eager on series, token sequences, tables and images that aren't square."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_toys import ENGINES
from slowness import quick

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import Run, assert_equal_runs, double_precision

SAMPLES = {
    "table": ("mlp", "mlp2", pf.datasets.SampleSpec((5,), "table")),
    "series": ("cnn1d", "resnet1d", pf.datasets.SampleSpec((2, 24), "series")),
    "bag": ("text", "bag-mlp", pf.datasets.SampleSpec((10,), "tokens", vocabulary=40, padding=0)),
    "textcnn": (
        "text",
        "textcnn",
        pf.datasets.SampleSpec((10,), "tokens", vocabulary=40, padding=0),
    ),
    "gru": ("text", "gru", pf.datasets.SampleSpec((10,), "tokens", vocabulary=40)),
    "harcnn3": ("htfe-sen-8", "harcnn3-s1", pf.datasets.SampleSpec((2, 30), "series")),
    **{
        net: ("htfe-txt-6", net, pf.datasets.SampleSpec((10,), "tokens", vocabulary=40, padding=0))
        for net in ("fasttext", "bilstm", "transformer-h8-l2")
    },
    "oblong images": ("cnn4", None, pf.datasets.SampleSpec((1, 28, 40))),
}


def make_plan(name, folder, **options):
    models, only, sample = SAMPLES[name]
    data = toyfed.make_data(sample, [[5, 4], [6, 6], [3, 4]])
    if sample.kind != "tokens":
        data = replace(data, x=data.x.to(torch.float32))
    given = {"feature_dim": 16, "lr": 0.05, "backend": "local", **options}
    chosen = {"models": {"only": only}} if only else {}
    if models.startswith("htfe-txt"):
        chosen["models"]["dropout"] = False  # drawn numbers differ between engines
    given["options"] = {**chosen, **options.get("options", {})}
    return toyfed.make_plan("fedproto", folder, data, models, **given)


# The warning is from torch.compile: it reads the .grad of a GRU's weights while it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("engine", "name"),
    quick(
        [(engine, name) for engine in ENGINES for name in SAMPLES],
        *(("vmapped", name) for name in ("table", "series", "textcnn", "gru")),
        ("cuda-graphs", "textcnn"),
    ),
)
def test_in_float64(engine, name, tmp_path):
    with double_precision():
        wanted, found = (
            Run(make_plan(name, tmp_path, **own), start=1) for own in ({}, ENGINES[engine])
        )
    # torch has no vmap rule for recurrent nets
    alone = engine == "vmapped" and name in ("gru", "bilstm")
    assert bool(found.notes) == alone
    assert_equal_runs(found, wanted, 1e-9)
