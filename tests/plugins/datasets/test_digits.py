"""Tests of the embedded data set digits."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import protofl as pf
from protofl.federation.plan.resolution import resolve
from protofl.hooks.discovery.registry import Registry
from protofl.system.options.table import build
from protofl_plugins.datasets.digits import Digits


def test_digits_are_scikit_learns_in_256_shades(tmp_path):
    from sklearn.datasets import load_digits

    images = Digits().decode(config=pf.Config(), data_dir=tmp_path)
    source = load_digits()
    assert images.x.shape == (1797, 1, 8, 8) and images.x.dtype == torch.uint8
    expected = [[round(v * 255 / 16) for v in row] for row in source.data.tolist()]
    assert torch.equal(images.x.flatten(1), torch.tensor(expected, dtype=torch.uint8))
    assert images.x.min() == 0 and images.x.max() == 255
    assert images.y.tolist() == source.target.tolist()
    assert images.classes == list("0123456789")
    assert (images.num_train, images.split, images.note) == (1797, None, "")
    assert Digits().cache_key(config=pf.Config(), data_dir=tmp_path) == "digits"


@pytest.mark.parametrize(
    ("given", "partitioner", "over"),
    [
        ({}, {"classes_per_client": 4, "min_samples": 22}, 2),
        (
            {"options": {"partition": {"classes_per_client": 3}, "schedule": {"over": 9}}},
            {"classes_per_client": 3, "min_samples": 22},
            9,
        ),
        ({"partition": "pathological", "lr_schedule": "cosine"}, {}, None),
        ({"partition": "dirichlet", "lr_schedule": "constant"}, {}, None),
    ],
    ids=["none", "some", "the same plugins by name", "others"],
)
def test_options_of_their_defaults_belong_to_the_plugins_of_their_defaults(
    given, partitioner, over
):
    resolution = resolve(build({"method": "fedproto", "models": "htfe8", **given}), Registry())
    assert resolution.set_by["feature_dim"] == "data set digits"  # not the group's
    found = resolution.settings
    assert found.options.get("partition", {}) == partitioner
    assert found.options.get("schedule", {}).get("over") == over


@pytest.mark.parametrize(
    ("models", "options", "side"),
    [("htfe8", {}, 16), ("htfe8", {"min_side": 32}, 32), ("htcnn8", {}, None)],
)
def test_large_nets_train_on_fewer_pixels_without_small_batches(models, options, side):
    given = {"method": "fedproto", "models": models, "options": {"models": options}}
    found = resolve(build(given), Registry()).settings
    assert found.options.get("models", {}).get("min_side") == side
    assert found.drop_last == (side == 16)
    assert (found.lr, found.rounds, found.local_epochs, found.batch_size) == (0.03, 3, 3, 16)


@pytest.mark.slow
def test_the_modules_of_data_sets_import_none_of_the_slow_libraries():
    names = ["digits", "npz", "folder", "pfllib", "tiny_imagenet", "torchvision_sets"]
    lines = [f"import protofl_plugins.datasets.{name}" for name in names]
    lines.append("import sys; print([m for m in ('sklearn', 'torchvision', 'PIL', 'scipy')")
    lines[-1] += " if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done
