"""Test that the commands for those who come from PFLlib run."""

from __future__ import annotations

import numpy as np
import pytest
from doc_pages import DOCS
from typer.testing import CliRunner

from protofl_cli.app import app

PAGE = (DOCS / "how-to/from-other-libraries.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- commands -->")[2].lstrip().partition("\n\n")[0]
METHODS = [row.rpartition(" | ")[2].replace("`", "").strip("| ") for row in TABLE.splitlines()[2:]]


def test_the_commands_are_found():
    assert len(METHODS) == 15 and METHODS[0] == "local"


@pytest.mark.slow
@pytest.mark.parametrize("typed", METHODS)
def test_a_command_runs(typed, tmp_path, data_dir):
    rng = np.random.default_rng(0)
    for part, n in (("train", 25), ("test", 10)):
        (tmp_path / "pfllib" / part).mkdir(parents=True)
        for client in range(2):
            x = rng.normal(size=(n, 1, 28, 28)).astype("float32")
            np.savez(tmp_path / f"pfllib/{part}/{client}.npz", x=x, y=np.arange(n) % 10)
    words = ["run", *typed.split(), "--dataset", f"pfllib:{tmp_path / 'pfllib'}", "--rounds", "1"]
    words += [] if "--models" in words else ["--models", "cnn4"]
    words += ["--drop-last", "--same-init", "--lr", "0.005", "--no-shuffle", "--no-dry-run"]
    words += ["--backend", "local", "--data-dir", str(data_dir), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
