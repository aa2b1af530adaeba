"""Test the example of the page "Protect uploads": its Python and commands, as typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app

PAGE = Path(__file__).parents[3] / "docs/how-to/protect-uploads.md"


@pytest.mark.slow
@pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")
def test_the_example_runs_without_a_download(tmp_path, monkeypatch):
    pytest.importorskip("dp_accounting")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(tmp_path / "cache"))
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("## Try it without a download\n")[2].partition("\n## ")[0]
    python, bash = re.findall(r"^```\w+\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    exec(python, {})
    typed = [shlex.split(line)[1:] for line in bash.splitlines() if line.startswith("protofl")]
    [again] = re.findall(r"`(--config [^`]*)`", section)
    for words in [*typed, ["run", *again.split()]]:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    four, two = (pf.load_run(f"dp/{epsilon}") for epsilon in (4, 2))
    assert four.result.record[-1].extra["dp-prototypes.epsilon_if_deployed"] == pytest.approx(4)
    assert two.result.record[-1].extra["dp-prototypes.epsilon_if_deployed"] == pytest.approx(2)
    assert four.result.record[-1].test_accuracy > 0.5
