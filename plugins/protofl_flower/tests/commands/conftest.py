"""Fixtures for the tests of ``protofl deploy`` and ``protofl node``."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from protofl_cli.app import app


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Return a function that runs a command in a folder of its own: ``cli("node", "--help")``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])
