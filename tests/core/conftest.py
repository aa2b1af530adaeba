"""A run for the tests of this folder, trained once. Tests that change the run copy it."""

from __future__ import annotations

import pytest
from runtime_toys import install, train


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Train fedproto for two trials of three rounds, evaluated every second round."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        found = train(
            "fedproto",
            tmp_path_factory.mktemp("made") / "run",
            rounds=3,
            trials=2,
            eval_every=2,
            metrics="macro-f1",
            progress=False,
        )
    return found
