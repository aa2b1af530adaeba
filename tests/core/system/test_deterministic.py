"""Tests of ``--deterministic``: a switch for the process, on during a run and off after it."""

from __future__ import annotations

import pytest
import torch
from runtime_toys import install, make_plan, open_federation, train

import protofl as pf

is_on = torch.are_deterministic_algorithms_enabled


class Watching:
    """Uploads 1 if torch uses only deterministic algorithms."""

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(on=torch.tensor(float(is_on())))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        return {"clients": torch.stack([u["on"] for u in uploads.values()]).mean()}

    @pf.hookimpl
    def end_round(self, server):
        return {"clients": server.global_state["clients"], "server": float(is_on())}


@pytest.mark.parametrize("wanted", [True, False])
def test_on_while_a_run_computes(tmp_path, monkeypatch, wanted):
    install(monkeypatch)
    result = train(Watching, tmp_path / "run", rounds=1, deterministic=wanted)
    assert result.record[0]["extra"] == {"clients": wanted, "server": wanted}
    assert not is_on()


def test_off_behind_a_run_that_fails(tmp_path, monkeypatch):
    class Failing(Watching):
        @pf.hookimpl
        def end_round(self, server):
            raise ZeroDivisionError

    install(monkeypatch)
    with pytest.raises(pf.RunFailure):
        train(Failing, tmp_path / "run", rounds=1, deterministic=True, dry_run=False)
    assert not is_on()


def test_a_plan_switches_nothing_and_a_host_does_by_itself():
    """A host in another process is outside of the run, so it sets the switch itself."""
    plan = make_plan(Watching, deterministic=True)
    assert not is_on()
    line, _ = open_federation(plan).round(0)
    assert line["extra"]["clients"] == 1 and not is_on()
