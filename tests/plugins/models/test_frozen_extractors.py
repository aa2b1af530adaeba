"""Tests of ``models.frozen``: extractors from files, which are not trained."""

from __future__ import annotations

from copy import deepcopy

import pytest
import safetensors.torch
import torch

import protofl as pf
from protofl.hooks.discovery.registry import Registry

IMAGES, ROWS = pf.datasets.SampleSpec((1, 28, 28)), pf.datasets.SampleSpec((13,), kind="table")


def nets_of(name, **options):
    group = Registry().load("model-group", name)()
    return group.architectures(config=type(group).Config(**options))


@pytest.mark.parametrize(
    ("name", "sample", "options"), [("cnn4", IMAGES, {}), ("mlp", ROWS, {"only": "mlp2"})]
)
@pytest.mark.parametrize("start", ["", "weights/model.extractor."])
def test_features_are_those_of_the_file(tmp_path, name, sample, options, start):
    """The names of tensors are those of the extractor, or those of ``protofl export``."""
    [net] = nets_of(name, **options)
    torch.manual_seed(0)
    trained = net.build(sample, 10, 32)
    weights = {start + k: v for k, v in trained.extractor.state_dict().items()}
    if start:
        weights |= {"weights/model.head." + k: v for k, v in trained.head.state_dict().items()}
    safetensors.torch.save_file(weights, tmp_path / "net.safetensors")
    [frozen] = nets_of(name, frozen=tmp_path / "net.safetensors", **options)
    model = frozen.build(sample, 10, 32).train()
    assert {each for each, _ in model.named_parameters()} == {"head.weight", "head.bias"}
    x = torch.randn(4, *sample.shape)
    found = deepcopy(model).features(x)
    assert torch.equal(found, trained.eval().features(x))
    rows = frozen.precomputed(model)(x)
    assert torch.equal(model.features(rows.flatten(1)), found), "rows of features pass unchanged"


def test_a_folder_has_a_file_for_each_net(tmp_path):
    for net in nets_of("mlp"):
        weights = net.build(ROWS, 3, 64).extractor.state_dict()
        safetensors.torch.save_file(weights, tmp_path / f"{net.name}.safetensors")
    assert all(net.precomputed for net in nets_of("mlp", frozen=tmp_path))
    with pytest.raises(pf.UsageError, match="one file for 4 nets"):
        nets_of("mlp", frozen=tmp_path / "mlp1.safetensors")
    with pytest.raises(pf.UsageError, match="is not a file"):
        nets_of("cnn4", frozen=tmp_path / "no.safetensors")
    [other] = nets_of("mlp", frozen=tmp_path / "mlp1.safetensors", only="mlp2")
    with pytest.raises(pf.UsageError, match=r"mlp1\.safetensors for mlp2: .*is missing"):
        other.build(ROWS, 3, 64)


def test_rows_that_look_like_features_are_refused(tmp_path):
    wide = pf.datasets.SampleSpec((64,), kind="table")
    [net] = nets_of("mlp", only="mlp1")
    safetensors.torch.save_file(net.build(wide, 3, 64).extractor.state_dict(), tmp_path / "a")
    [frozen] = nets_of("mlp", only="mlp1", frozen=tmp_path / "a")
    with pytest.raises(pf.UsageError, match="both are 64 numbers"):
        frozen.build(wide, 3, 64)


@pytest.mark.slow
def test_workers_train_as_this_process_does(tmp_path):
    [net] = nets_of("mlp", only="mlp1")
    safetensors.torch.save_file(net.build(ROWS, 3, 64).extractor.state_dict(), tmp_path / "a")
    given = {
        "models": "mlp", "dataset": "wine", "clients": 3, "rounds": 2, "device": "cpu",
        "set": {"models.only": "mlp1", "models.frozen": str(tmp_path / "a")}, "drop": ["align"],
    }  # fmt: skip
    here = pf.run("fedproto", **given, backend="local", out=tmp_path / "here")
    there = pf.run("fedproto", **given, backend="process", workers=2, out=tmp_path / "there")
    assert [row.train_loss for row in here.record] == [row.train_loss for row in there.record]
