"""Runs and their report pages."""

from __future__ import annotations

import shutil

import pytest
from runtime_toys import install, train

from protofl import report


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Train three runs on the same data: fedproto with two seeds, and local."""
    folder = tmp_path_factory.mktemp("reported")
    given = {
        "rounds": 3,
        "eval_every": 2,
        "metrics": "macro-f1,recall-by-class,confusion",
        "progress": False,
    }
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        train("fedproto", folder / "proto", trials=2, measure="flops", **given)
        train("fedproto", folder / "proto-7", seed=7, **given)
        train("local", folder / "local", trials=2, **given)
    return folder


@pytest.fixture(scope="session")
def page(runs):
    """Return the page of one run."""
    return report(runs / "proto")


@pytest.fixture(scope="session")
def page_of_all(runs):
    """Return the page of all runs."""
    return report(runs)


@pytest.fixture
def copy(runs, tmp_path):
    """Return a copy of the first run, which tests may change."""
    return shutil.copytree(runs / "proto", tmp_path / "copy")


@pytest.fixture
def undrawn(monkeypatch):
    """Skip the drawing of figures, which takes most of a page's time."""
    nothing = '<svg viewBox="0 0 9 9"></svg>'
    monkeypatch.setattr("protofl_workbench.plots.figure_files.svg", lambda figure, **_: nothing)
