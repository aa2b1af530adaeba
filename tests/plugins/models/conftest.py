"""Shared fixtures for the tests of model groups."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def groups():
    """Return an instance of every model group of protofl for images, by entry point name."""
    found = {
        point.name: point.load()
        for point in importlib.metadata.entry_points(group="protofl.model_groups")
        if point.value.startswith("protofl_plugins.")
    }
    return {name: group() for name, group in found.items() if "image" in group.kinds}
