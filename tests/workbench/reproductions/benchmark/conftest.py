"""A small benchmark: two settings, and runs of a second."""

from __future__ import annotations

import pytest
from small_benchmark import SMALL

from protofl_workbench.reproductions.cells import Change
from protofl_workbench.reproductions.finding import reproduction_of_file


@pytest.fixture
def benchmark_file(tmp_path):
    """Return the file of the benchmark."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def small(benchmark_file):
    """Return the benchmark."""
    return reproduction_of_file(benchmark_file)


@pytest.fixture
def chosen(few):
    """Return a function that makes a change with these rows and columns."""

    def chosen(*rows, columns=("equal",)):
        return Change(only=rows, columns=columns, datasets={"few": few})

    return chosen
