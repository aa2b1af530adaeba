"""Fixtures of the documentation's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "docs/_build"))


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """Return a shared cache folder, so that digits are decoded once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def _one_thread_in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROTOFL_BLOCK", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
