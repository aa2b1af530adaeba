"""What the tests of the model groups share."""

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
    """An instance of every model group for images that protofl ships, by its entry point's name."""
    found = {
        point.name: point.load()
        for point in importlib.metadata.entry_points(group="protofl.model_groups")
        if point.value.startswith("protofl_plugins.")
    }
    return {name: group() for name, group in found.items() if "image" in group.kinds}
