"""Tests of the kinds of ``protofl plot`` that show a run's observations."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from protofl_cli.app import app


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_dir, few):
    out = tmp_path_factory.mktemp("observed") / "run"
    words = "run fedproto --models htcnn8 --clients 3 --rounds 3 --batch-size 64 --feature-dim 16"
    words += " --backend local --no-dry-run --observe prototypes,features --observe-every 2"
    given = ["--data-dir", str(data_dir), "--dataset", few, "--out", str(out)]
    result = CliRunner().invoke(app, [*words.split(), *given])
    assert result.exit_code == 0, result.output
    assert "observations will use about" in result.stdout
    return out


@pytest.mark.parametrize(
    "words",
    [
        "margins",
        pytest.param("features --width page", marks=pytest.mark.slow),
    ],
)
def test_pictures(cli, run, words):
    kind, *others = words.split()
    result = cli("plot", kind, run, *others, "--out", "found.svg")
    assert result.exit_code == 0, result.output
    assert Path("found.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("margins --figure best", "margins has no option --figure"),
        ("margin", "did you mean 'margins'"),
        ("images", "has observed no images"),
        ("prototypes --label A", "prototypes has no options"),
    ],
)
def test_mistakes(cli, run, words, said):
    kind, *others = words.split()
    result = cli("plot", kind, run, *others)
    assert result.exit_code == 2, result.output
    assert said in result.output
