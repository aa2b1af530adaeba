"""Tests of ``protofl run RECIPE``, ``--save-recipe`` and recipes as plugins."""

from __future__ import annotations

import json

import pytest


@pytest.mark.slow
def test_a_published_recipe_runs(cli, digits, tmp_path):
    result = cli(
        "run", "fedsa-tgp", *digits, "--subset", 90, "--set", "tau=50", "--set", "fedsa.lambda_2=1"
    )
    assert result.exit_code == 0, result.output
    assert "fedsa-tgp · cnn4 · digits\n" in result.output
    assert "fedsa-tgp of protofl" in result.output
    assert "fedsa.ce + fedsa.align + fedsa.mcl + fedsa.calibration" in result.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("fedsa-tgp-cnn4-digits-s0-")
    config = json.loads((folder / "config.json").read_text())
    assert config["recipe"]["distribution"] == "protofl"
    assert config["options"]["fedtgp"]["tau"] == 50


def test_a_recipe_may_bring_everything(cli, tiny, strangers, tmp_path):
    strangers("cook", {"recipe": {"stew": "kitchen_recipes"}})
    package = tmp_path / "site-cook/kitchen_recipes"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "stew.toml").write_text("method = 'local'\nmodels = 'cnn4'\nlr = 0.25\n")
    options = tiny[2:]  # all but --models
    result = cli("run", "stew", *options, "--out", "r")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "r/config.json").read_text())["lr"] == 0.25
    assert "cook 1.5" in cli("show", "stew").output


@pytest.mark.slow
def test_save_and_run_again(cli, tiny, tmp_path):
    mix = "--use inference=local --drop local_loss.align --set lambda=2 --save-recipe mine.toml"
    result = cli("run", "fedproto", *tiny, *mix.split(), "--out", "a")
    assert result.exit_code == 0, result.output
    assert "the recipe of this run is in mine.toml" in result.output
    text = (tmp_path / "mine.toml").read_text()
    assert 'inference = "local"' in text and '"fedproto.lambda" = 2.0' in text
    again = cli("run", "--config", "mine.toml", *tiny, "--out", "b")
    assert again.exit_code == 0, again.output
    one, two = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert one.pop("set_by") and two.pop("set_by")["use"] == "file mine.toml"
    assert one == two
    refused = cli("run", "local", *tiny, "--save-recipe", "mine.toml")
    assert refused.exit_code == 2 and "exists already" in refused.stderr


def test_list_and_show(cli):
    assert cli("list-plugins", "--names", "--kind", "recipe").output.split() == ["fedsa-tgp"]
    output = cli("show", "fedsa-tgp").output
    for words in ("recipe/fedsa-tgp", 'local_loss = "fedsa"', "protofl run fedsa-tgp --models"):
        assert words in output


@pytest.mark.parametrize("typed", ["fedsa-tpg", "fedsatgp"])
def test_a_near_miss(cli, typed):
    result = cli("run", typed, "--models", "cnn4")
    assert result.exit_code == 2 and "'fedsa-tgp'" in result.stderr


def test_no_models(cli):
    result = cli("run", "fedsa-tgp")
    assert result.exit_code == 2 and "no model group is given" in result.stderr
