"""Fixtures for tests of Python programs: small data and quick runs."""

from __future__ import annotations

import numpy as np
import pytest

import protofl as pf


@pytest.fixture
def table():
    """Return a hundred rows of four numbers, in two classes that a model can separate."""
    y = np.arange(100) % 2
    x = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    x[:, 0] += 3 * y
    return x, y


@pytest.fixture
def quick(tmp_path):
    """Return the options of a quick run on `table`."""
    return {
        "models": "mlp",
        "clients": 2,
        "rounds": 2,
        "partition": "iid",
        "feature_dim": 8,
        "data_dir": tmp_path / "data",
        "backend": "local",
        "progress": False,
        "seed": 3,
    }


@pytest.fixture
def run(tmp_path, table, quick):
    """Return ``run(method, name, …)``, which runs in the folder of that name."""

    def start(method, name="run", **options):
        return pf.run(method, out=tmp_path / name, **{"dataset": table, **quick, **options})

    return start


def without_times(rows):
    return [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in rows]


@pytest.fixture
def same():
    """Return a function that checks that two runs are equal to the last bit."""

    def compare(one, two):
        assert without_times(one.record) == without_times(two.record)
        assert one.summary == two.summary
        left, right = (
            {p.name: p.read_bytes() for p in (r.folder / "checkpoint").glob("*.safetensors")}
            for r in (one, two)
        )
        assert left and left == right

    return compare
