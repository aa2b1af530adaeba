"""Tests of ``protofl replay`` on a run with ``--record-uploads``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_dir, few):
    from typer.testing import CliRunner

    from protofl_cli.app import app

    out = tmp_path_factory.mktemp("replay") / "run"
    words = "run fedtgp --models cnn4 --clients 2 --rounds 2 --batch-size 64 --feature-dim 16"
    words += " --backend local --no-dry-run --record-uploads --set S=3"
    given = ["--data-dir", str(data_dir), "--dataset", few, "--out", str(out)]
    result = CliRunner().invoke(app, [*words.split(), *given])
    assert result.exit_code == 0, result.output
    return out


def test_one_change_round_by_round(cli, run):
    result = cli("replay", run, "--set", "tau=0.001", "--out", "found.json")
    assert result.exit_code == 0, result.output
    assert "equal to the run, bit by bit (figures of 2 rounds" in result.stdout
    assert "as it was → tau=0.001" in result.stdout
    assert "clients of such" in result.stdout
    found = json.loads(Path("found.json").read_text())
    assert [each["changed"] for each in found["replays"]] == ["as it was", "tau=0.001"]
    assert [r["same"] for r in found["replays"][1]["rounds"]] == [False, False]
    again = cli("replay", run, "--out", "found.json")
    assert again.exit_code == 2
    assert "found.json exists already" in again.output
    assert cli("replay", run, "--out", "found.json", "--force").exit_code == 0


def test_a_grid(cli, run):
    result = cli("replay", run, "--grid", "tau=0.001, 100", "--grid", "S=1,3", "--rounds", 1)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    shown = [line for line in lines if line.startswith("tau=")]
    assert [line.split("  ")[0] for line in shown[:4]] == [
        f"tau={t}, S={s}" for t in ("0.001", "100") for s in (1, 3)
    ]
    assert "tau=100, S=3: nothing changes on the server." in result.stdout
    assert " → " not in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "tau=1", "--grid", "tau=1,2"], "tau is given in --set and in --grid"),
        (["--grid", "tau"], "not of the form"),
        (["--grid", "tau=,"], "no value"),
        (["--trial", "1"], "of trial 1"),
        (["--out", "there/found.json"], "its folder does not exist"),
    ],
)
def test_mistakes(cli, run, words, said):
    result = cli("replay", run, *words)
    assert result.exit_code == 2, result.output
    assert said in result.output
