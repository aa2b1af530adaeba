"""Tests of ``protofl show`` for every installed plugin."""

from __future__ import annotations

import platform

import pytest
import torch

from protofl import Config, __version__
from protofl.hooks.discovery.kinds import hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import donation
from protofl.system.options.plugin_options import option_names
from protofl_cli.pages import machine_page

PLUGINS = Registry().plugins()
LARGE = {"htfe3", "htfe4", "htfe5", "htfe8", "htfe9", "htm10", "htfe8-htc4", "res34-htc4"}
LARGE |= {"resnet18", "resnet34", "fedpkd-het"}
LARGE |= {"htfe-txt-4", "htfe-txt-5-1", "htfe-txt-5-2", "htfe-txt-5-3", "htfe-txt-6"}
"""Groups whose parameters and operations take a second to count."""


@pytest.mark.parametrize(
    "plugin",
    [pytest.param(p, marks=[pytest.mark.slow] * (p.name in LARGE), id=p.label) for p in PLUGINS],
)
def test_every_plugin(cli, plugin):
    result = cli("show", plugin.label)
    assert result.exit_code == 0, result.output
    assert plugin.label in result.output and "``" not in result.output
    loaded = Registry().load(plugin.kind, plugin.name)
    for option in option_names(getattr(loaded, "Config", Config)):
        assert f"\n{option} " in result.output
    for hook in hooks_of(plugin.kind, loaded):
        assert f"\n{hook} " in result.output
    if hasattr(loaded, "donates"):
        assert donation(loaded, plugin.name, loaded.donates[0]) in result.output
    elif plugin.kind == "method":
        for term in getattr(loaded, "terms", {"ce": ""}):
            assert f"\n{term} " in result.output


def test_a_method(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    output = cli("show", "fedsa").output
    assert "Zhou et al." in output  # the paper
    assert "λ₂ of L_MCL" in output and "0 … 1" in output  # options with their ranges
    assert "λ₃·L_CC, Eq. 8" in output  # loss terms
    assert "Uploads" in output and "mean features" in output
    assert "Eq. 10" in output and "variant=official" in output  # deviations
    assert "--drop local_loss.calibration" in output  # ablations
    assert "variant=official   --drop-last true" in output  # run defaults of the variant


def test_run_defaults_of_a_data_set(cli):
    lines = " ".join(cli("show", "digits").output.split())
    assert "--local-epochs 3 --batch-size 16" in lines
    large = lines.partition("with models for any side")[2]
    assert large.lstrip().startswith("--drop-last true --set models.min_side=16")


@pytest.mark.parametrize("method", ["fedmd", "ds-fl", "feddf", "fedet", "fedpkd"])
def test_run_defaults_of_the_papers_epochs(cli, monkeypatch, method):
    """With epochs=paper all methods of FedPKD's comparison use its Adam; FedPKD always does."""
    monkeypatch.setenv("COLUMNS", "200")
    output = cli("show", method).output
    adam = "--optimizer adam --lr 0.001 --batch-size 32"
    assert f"epochs=paper   {adam} --local-epochs" in output
    assert (f"by default     {adam} " in output) == (method == "fedpkd")


@pytest.mark.slow
def test_a_model_group(cli):
    output = cli("show", "htfe4").output
    assert "resnet18" in output and "11,181,642" in output and "FLOPs" in output
    more = cli("show", "htfe4", "--classes", "100").output
    assert "100 classes" in more and "11,227,812" in more


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "words"), [("htfe4", "its first architecture"), ("res34-htc4", "cnn4 (fml, fedkd)")]
)
def test_the_auxiliary_of_a_group(cli, monkeypatch, group, words):
    monkeypatch.setattr(
        "protofl.hooks.models.flops.profile", lambda *_: (1, 1.0)
    )  # counting is slow
    assert words in cli("show", group).output


@pytest.mark.slow
def test_a_group_written_in_its_name(cli):
    for name in ("model-group/torchvision:resnet18", "torchvision:resnet18"):
        result = cli("show", name)
        assert result.exit_code == 0
        assert "11,181,642" in result.output
    result = cli("show", "torchvision:resnet19")
    assert result.exit_code == 2 and "resnet18" in result.stderr


def test_the_method_comes_first(cli):
    output = cli("show", "local").output
    assert output.startswith("method/local") and "backend/local" in output
    assert cli("show", "backend/local").output.startswith("backend/local")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("fedsaa", "did you mean 'fedsa'"),
        ("methd/fedsa", "did you mean 'method'"),
        ("method/htfe8", "unknown method 'htfe8'"),
        ("htfe8:x", "takes no argument"),
    ],
)
def test_unknown(cli, name, near):
    result = cli("show", name)
    assert result.exit_code == 2
    assert near in result.stderr


PLACED = """import protofl as pf
class OwnGroup:
    feature_dim = 8
    @pf.hookimpl
    def architectures(self):
        from torch import nn
        def build(sample, num_classes, feature_dim):
            body = nn.Sequential(nn.Flatten(), nn.LazyLinear(feature_dim))
            body(sample.zeros(1))
            return pf.models.SplitModel(body, nn.Linear(feature_dim, num_classes), feature_dim)
        return [pf.models.Architecture("only", build)]
class Ours:
    'What this one does.'
    uploads = {"spread": pf.Key("[n]", "deviation in each class", by_class=True), "samples": "n_i"}
    class Config(pf.Config):
        power: int = pf.Field(2, description="of the force")
    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload()
"""


def test_a_class_by_its_place(cli, tmp_path):
    (tmp_path / "placed.py").write_text(PLACED)
    output = cli("show", "placed.py:Ours").output
    assert output.startswith("method/ours") and "What this one does." in output
    assert "power" in output and "of the force" in output
    cells = [[cell for cell in line.split("  ") if cell.strip()] for line in output.splitlines()]
    rows = [[cell.strip() for cell in row] for row in cells]
    assert ["spread", "[n]", "deviation in each class"] in rows and [
        "samples",
        "[] int",
        "n_i",
    ] in rows
    assert "only" in cli("show", "placed.py:OwnGroup").output
    missing = cli("show", "placed.py:Other")
    assert missing.exit_code == 2 and "known: Ours, OwnGroup" in missing.stderr


def test_blocked(cli):
    result = cli("show", "fedsa", "--block", "fedsa")
    assert result.exit_code == 2
    assert "blocked" in result.stderr


def test_the_page_of_the_machine(cli, monkeypatch, tmp_path):
    monkeypatch.delenv("PROTOFL_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "my-own-name"))
    output = cli("show", "machine").output
    for word in (
        torch.__version__,
        platform.python_version(),
        "cores",
        f"of protofl {__version__}",
    ):
        assert word in output
    assert "~/.cache/protofl" in output and "my-own-name" not in output


def test_every_extra_is_found_if_its_packages_are_installed(cli, monkeypatch):
    """Names of extras may have hyphens, and flower's package depends on the version of Python."""
    monkeypatch.setattr(machine_page, "_is_there", lambda package: True)
    lines = cli("show", "machine").output.splitlines()
    missing = [line.split() for line in lines if line.lstrip().startswith("not installed")]
    assert missing == [["not", "installed", "none"]]
