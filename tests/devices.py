"""Hide CUDA devices from all tests except those marked ``gpu``, which ``pytest -m gpu`` runs.

A test compares with tensors on the CPU, while ``--device auto`` would take a GPU. A process can't
hide its devices and show them again, so the tests marked ``gpu`` have a run of their own.
"""

from __future__ import annotations

import os
import re

import pytest


def pytest_configure(config):
    if not shown(config):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before CUDA starts; subprocesses inherit it


def pytest_collection_modifyitems(config, items):
    for item in items:
        if not item.get_closest_marker("gpu"):
            if shown(config):
                item.add_marker(pytest.mark.skip(reason="runs without -m gpu, on the CPU"))
        elif not shown(config):
            item.add_marker(pytest.mark.skip(reason="runs with -m gpu"))
        elif not found_cuda():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def shown(config):
    """Return True if the expression of ``-m`` asks for tests marked ``gpu``."""
    return re.search(r"(?<!\bnot )\bgpu\b", config.getoption("markexpr") or "") is not None


def found_cuda():
    import torch  # after the limit of threads in conftest.py

    return torch.cuda.is_available()
