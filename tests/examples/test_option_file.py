"""Tests of `examples/fedsa-tgp.toml`: the file runs and does what it describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import protofl as pf
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.runs.request.request import read_request
from protofl.testing import toy as toyfed

FILE = Path(__file__).parents[2] / "examples/fedsa-tgp.toml"


def plan_of(folder, **options):
    values = read_request(options, config=FILE).options
    return toyfed.make_plan(values.pop("method"), folder, **values)


def test_it_passes_the_dry_run(tmp_path):
    dry_run(plan_of(tmp_path))


def test_the_command_line_wins(few, tmp_path):
    given = {"clients": 2, "rounds": 1, "dry_run": False, "backend": "local", "set": {"tau": 50}}
    out = tmp_path / "run"
    pf.run(config=FILE, models="cnn4", dataset=few, out=out, progress=False, **given)
    config = json.loads((out / "config.json").read_text())
    assert config["use"] == {"local_loss": "fedsa"}
    assert config["set_by"]["use"] == "file fedsa-tgp.toml"
    assert config["options"]["fedtgp"]["tau"] == 50


@pytest.mark.slow
def test_features_move_towards_prototypes_that_fedtgp_trains(tmp_path):
    found = toyfed.Toy(plan_of(tmp_path, set={"S": 5}, lr=0.2))
    server = found.server
    start = server.global_state["prototypes"].clone()
    first, *_, last = found.rounds(8)
    assert {*first["loss_terms"]} == {f"fedsa.{t}" for t in ("ce", "align", "mcl", "calibration")}
    assert "vectors" in server.modules["fedtgp"] and not server.state.get("fedsa")
    assert not start.equal(server.global_state["prototypes"])
    # The whole loss may grow: FedTGP's prototypes move apart while clients are pulled to them.
    assert last["loss_terms"]["fedsa.ce"] < 0.5 * first["loss_terms"]["fedsa.ce"]
    assert last["test_accuracy"] > 0.9
