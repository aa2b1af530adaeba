"""Shared fixtures for the tests of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protofl_cli.app import app

PROTOFL = [sys.executable, "-c", "from protofl_cli.start import main; main()"]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """Return a data set cache for the session, so that digits is decoded once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("PROTOFL_BLOCK", "FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cli():
    """Return a function that runs a command: ``cli("show", "fedsa")``."""

    def type_in(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    return type_in


SMALL = "--models cnn4 --clients 3 --rounds 2 --batch-size 64 --feature-dim 16 --backend local"


@pytest.fixture
def tiny(data_dir, few):
    """Return the options of a run that takes a fraction of a second."""
    return [*SMALL.split(), "--no-dry-run", "--data-dir", str(data_dir), "--dataset", few]


@pytest.fixture
def digits(data_dir):
    """Return the options of a run on the embedded data set."""
    quick = ("--local-epochs", "1", "--no-dry-run")
    return [*SMALL.split(), *quick, "--data-dir", str(data_dir)]


@pytest.fixture
def subprocess_of():
    """Return a function that starts a command in its own process, which ^C can interrupt.

    Children of a shell that runs the tests in the background ignore ^C by default.
    """

    def start(*words, env=None, **options):
        return subprocess.Popen(
            [*PROTOFL, *map(str, words)],
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
            **options,
        )

    return start


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    """Return an installer: ``strangers("other", {"method": {"x": "module:X"}}, source)``."""

    def install(name, plugins, source=""):
        folder = Path(tmp_path, f"site-{name}")
        about = folder / f"{name}-1.5.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        groups = [
            f"[protofl.{kind}s]\n" + "".join(f"{n} = {target}\n" for n, target in entries.items())
            for kind, entries in plugins.items()
        ]
        (about / "entry_points.txt").write_text("\n".join(groups))
        (folder / f"{name}_module.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, f"{name}_module", raising=False)

    return install
