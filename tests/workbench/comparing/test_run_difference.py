"""Tests of the difference of two recorded runs, and of ``protofl runs diff``."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_workbench.comparing.run_difference import run_difference


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return runs: a, its repetition, one with another rate, one of another split, a longer one."""
    folder = tmp_path_factory.mktemp("runs")
    given = {"models": "mlp", "dataset": "wine", "clients": 3, "rounds": 2, "dry_run": False}
    given |= {"backend": "local", "progress": False, "data_dir": folder / "data"}
    changes = {"a": {}, "same": {}, "lr": {"lr": 0.2}, "seed": {"seed": 1}, "longer": {"rounds": 3}}
    for name, change in changes.items():
        pf.run("fedproto", out=folder / name, **(given | change))
    return folder


def differ(runs, a, b):
    return run_difference(pf.load_run(runs / a), pf.load_run(runs / b))


@pytest.mark.slow
def test_equal_runs_differ_in_nothing_but_time(runs):
    found = differ(runs, "a", "same")
    assert found.is_empty and found.first_round is None
    assert found.equal_rounds == found.shared_rounds == 2


@pytest.mark.slow
def test_an_option_is_named_as_one_types_it(runs):
    found = differ(runs, "a", "lr")
    assert [(name, new) for name, _, new in found.options] == [("--lr", 0.2)]
    assert not found.data and not found.software
    assert found.first_round == (0, 0) and found.equal_rounds == 0
    assert "train_loss" in [name for name, *_ in found.first]
    assert not found.is_empty


def test_another_split_is_seen(runs):
    found = differ(runs, "a", "seed")
    assert [name for name, *_ in found.data] == ["split"]
    assert ("--seed", 0, 1) in found.options


def test_a_longer_run_begins_equally(runs):
    found = differ(runs, "longer", "a")
    assert found.first_round is None and found.shared_rounds == 2
    assert ("rounds", 3, 2) in found.results and not found.is_empty


def type_in(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command(runs):
    same = type_in("runs", "diff", runs / "a", runs / "same")
    assert same.exit_code == 0 and "All 2 shared rounds are equal to the bit." in same.output
    other = type_in("runs", "diff", runs / "a", runs / "lr")
    assert other.exit_code == 1
    assert "--lr" in other.output and "First difference in round 1" in other.output
    values = json.loads(type_in("runs", "diff", runs / "a", runs / "lr", "--json").output)
    assert values["options"] == [["--lr", values["options"][0][1], 0.2]]
    assert type_in("runs", "diff", runs / "a", runs / "none").exit_code == 2
