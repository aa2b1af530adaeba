"""Shared fixtures for the tests of engines."""

from __future__ import annotations

import pytest
import torch

from protofl_plugins.engines import cuda_graphs, recording


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _early_recordings(monkeypatch):
    """Let all tests of engines see recorded steps, as a long run does."""
    monkeypatch.setattr(recording, "PAYS", 2)
    monkeypatch.setattr(cuda_graphs, "PAYS", 1)
