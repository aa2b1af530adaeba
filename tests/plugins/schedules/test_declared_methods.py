"""Tests of every method that declares how it runs without rounds."""

from __future__ import annotations

import pytest
from slowness import quick

import protofl as pf
from protofl.federation.round.schedules import check_schedule
from protofl.hooks.discovery.registry import Registry
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import MethodContract
from protofl.testing import toy as toyfed

REGISTRY = Registry()
DECLARED = {
    plugin.name: getattr(REGISTRY.load("method", plugin.name), "asynchronous", None)
    for plugin in REGISTRY.plugins("method")
}
ABLE = [name for name, declared in DECLARED.items() if declared in (True, "versions")]


@pytest.fixture
def contract(request):
    contract = type("Installed", (MethodContract,), {"plugin": request.param})()
    contract.setup_method()
    yield contract
    contract.teardown_method()


SILENT = "afl centralised ds-fl fedcgs fedmd fedpft fedpkd gh-ofl local".split()
"""Methods that need no word: a phase after the server's step, or no server."""

FOR_ALL = "coordinate-median geometric-median trimmed-mean multi-krum cosine-filter".split()
"""Defences, which compare all participants of a round."""


def test_every_method_says_whether_it_runs_without_rounds():
    assert {name for name, d in DECLARED.items() if d is None} == {*SILENT, *FOR_ALL}
    assert {True, "versions"} < {*DECLARED.values()}
    assert len(ABLE) > 30
    reasons = [d for d in DECLARED.values() if isinstance(d, str) and d != "versions"]
    assert all(" " in reason for reason in reasons)


@pytest.mark.slow
@pytest.mark.parametrize("contract", quick(ABLE, "fedproto", "fedavg"), indirect=True)
def test_a_method_does_what_it_declares(contract):
    """It passes the dry run, trains on stale uploads, and equals rounds with a whole buffer."""
    given = {"devices": "tiers", "rounds": 6}
    plan = contract.plan(timing="continuous", **given)
    check_schedule(plan)
    dry_run(plan)
    stale = contract.fed(timing="continuous", **given)
    lines = stale.rounds(6)
    assert max(line["schedule"]["staleness"]["max"] for line in lines) > 0
    assert all(line["train_loss"] is not None for line in lines)
    whole = {"timing": "buffered", "parts": {"timing": {"buffer": 4}}}
    runs = [contract.fed(**given), contract.fed(**given, **whole)]
    prints = []
    for run in runs:
        run.rounds(3)
        for line in run.lines:
            line.pop("schedule", None), line["virtual"].pop("seconds")
        clients = [toyfed.own_state(run.client(number)) for number in range(4)]
        prints.append((run.lines, toyfed.server_state(run.server), clients))
    assert toyfed.same(*prints)


@pytest.mark.parametrize(
    "contract",
    quick([name for name, d in DECLARED.items() if d not in (True, "versions")], "fedkd"),
    indirect=True,
)
def test_any_other_method_is_refused(contract):
    if contract.main in ("local",) or not any(
        hook in contract.plan().composition.members[contract.main].hooks
        for hook in ("server_aggregate", "server_train")
    ):
        pytest.skip("its server does nothing")
    plan = contract.plan(timing="continuous", devices="tiers")
    with pytest.raises(pf.UsageError, match="--schedule continuous"):
        check_schedule(plan)
