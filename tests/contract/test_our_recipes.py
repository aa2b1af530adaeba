"""Tests of the recipes of protofl: they pass the dry run and do what they describe."""

from __future__ import annotations

import pytest

from protofl.hooks.discovery.registry import Registry
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.runs.recipes import with_recipe
from protofl.testing import toy as toyfed

RECIPES = [p.name for p in Registry().plugins("recipe") if p.distribution == "protofl"]


def plan_of(name, folder, **options):
    values = with_recipe({"method": name, **options})
    return toyfed.make_plan(values.pop("method"), folder, **values)


def test_they_pass_the_dry_run(tmp_path):
    assert "fedsa-tgp" in RECIPES
    for name in RECIPES:
        dry_run(plan_of(name, tmp_path))


@pytest.mark.slow
def test_fedsa_tgp_pulls_towards_prototypes_that_fedtgp_trains(tmp_path):
    found = toyfed.Toy(plan_of("fedsa-tgp", tmp_path, options={"fedtgp": {"S": 5}}, lr=0.2))
    server = found.server
    start = server.global_state["prototypes"].clone()
    first, *_, last = found.rounds(8)
    assert {*first["loss_terms"]} == {f"fedsa.{t}" for t in ("ce", "align", "mcl", "calibration")}
    assert "vectors" in server.modules["fedtgp"] and not server.state.get("fedsa")
    assert not start.equal(server.global_state["prototypes"])
    # The whole loss may grow: FedTGP's prototypes move apart while clients are pulled to them.
    assert last["loss_terms"]["fedsa.ce"] < 0.5 * first["loss_terms"]["fedsa.ce"]
    assert last["test_accuracy"] > 0.9
