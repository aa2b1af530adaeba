"""Tests of the record of who set each value that differs from the general defaults."""

from __future__ import annotations

import json

import pytest
from runtime_toys import GIVEN, Tiny, train

import protofl as pf
from protofl.runs.request.request import sources_in

pytestmark = pytest.mark.usefixtures("toys")


class Asking:
    """A method with defaults for two options."""

    @pf.hookimpl
    def run_defaults(self):
        return {"momentum": 0.5, "local_epochs": 3}


def sources(folder):
    return json.loads((folder / "config.json").read_text())["set_by"]


@pytest.fixture
def first(tmp_path, monkeypatch):
    defaults = {"clip": 20.0, "momentum": 0.9, "lr": 0.3, "clients": 6}
    monkeypatch.setattr(Tiny, "defaults", defaults, raising=False)
    (tmp_path / "mine.toml").write_text("rounds = 1\nbatch-size = 4\n")
    own = {k: GIVEN[k] for k in GIVEN if k not in ("clients", "rounds", "batch_size")}
    given = own | {"progress": False, "config": tmp_path / "mine.toml"}
    return pf.run(Asking, **given, out=tmp_path / "first").folder


def test_a_run_says_who_set_its_values(first):
    found = sources(first)
    wanted = {
        "batch_size": "file mine.toml",
        "clip": "data set tiny",
        "clients": "data set tiny",
        "feature_dim": "models toy",
        "local_epochs": "method asking",
        "lr": "user",
        "momentum": "method asking",
        "rounds": "file mine.toml",
    }
    assert {key: found.get(key) for key in wanted} == wanted
    assert not {"backend", "workers", "method", "seed"} & found.keys()


def test_a_repeated_and_a_resumed_run_say_the_same(first, tmp_path):
    config = first / "config.json"
    values = json.loads(config.read_text())
    again = pf.run(Asking, config=config, out=tmp_path / "again", backend="local", progress=False)
    assert sources(again.folder) == values["set_by"]
    seen = []
    pf.run(Asking, out=first, resume=True, rounds=2, progress=seen.append, backend="local")
    [plan] = [event.plan for event in seen if isinstance(event, pf.events.Planned)]
    assert plan.set_by["clip"] == "data set tiny"
    assert sources(first)["momentum"] == "method asking"


@pytest.mark.slow
def test_a_record_without_sources_is_read(tmp_path):
    assert sources_in({}) == sources_in({"set_by": [1]}) == {}
    folder = train("local", tmp_path / "run", rounds=1, progress=False).folder
    config = json.loads((folder / "config.json").read_text())
    assert not {"eval_every"} & config["set_by"].keys()
