"""Tests of runs with hosts that end and clients that move: results do not change."""

from __future__ import annotations

import threading

import pytest
import torch
from runtime_toys import make_plan, open_federation, without_times
from slowness import quick
from torch import nn

import protofl as pf
from protofl.federation.jobs.jobs import Train
from protofl.federation.round.federation import Federation

pytestmark = pytest.mark.always


class Counting:
    """Counts rounds in each client's state, and adds a module."""

    @pf.hookimpl
    def setup_client(self, client):
        client.add_module("gate", nn.Linear(2, 2))

    @pf.hookimpl
    def before_training(self, client):
        client.state["rounds"] = client.state.get("rounds", 0) + 1

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(rounds=torch.tensor(float(client.state["rounds"])))


class Handle:
    """A host in this process that ends at its job number ``life``."""

    one_at_a_time = threading.Lock()  # hosts use torch's global generator

    def __init__(self, plan, number, log, life):
        self.host, self.number, self.log, self.life = pf.backends.Host(plan), number, log, life

    def do(self, job):
        with self.one_at_a_time:
            self.log.append(job.op)
            self.life -= 1
            if self.life or len(self.log) % 2:  # some end after the job, some before it
                reply = self.host.handle(job)
            if not self.life:
                raise pf.backends.HostFailure(f"host {self.number} ended during {job.op}")
            if isinstance(job, Train) and job.round < 2:
                # With these times, clients that start on host 0 seem slow.
                reply.seconds = {"train": 9.0 if self.number == 0 else 0.1}
            return reply

    def close(self):
        pass


CASES = {
    "state": (Counting, {}),
    "disk": (Counting, {"client_store": "disk"}),
    "few": ("fedproto", {"participation": 0.5, "rounds": 5}),
    "after the server": ("ds-fl", {"public": 10}),
    "after the server, disk": ("ds-fl", {"public": 10, "client_store": "disk"}),
}


@pytest.mark.parametrize(
    ("case", "every"),
    quick([(case, every) for case in CASES for every in (0, 2)], ("few", 2)),
)
def test_hosts_that_end_change_nothing(tmp_path, case, every):
    method, options = CASES[case]
    plan = make_plan(method, **{"rounds": 4, "clients": 6} | options)
    whole = open_federation(plan)
    rows = [whole.round(number)[0] for number in range(plan.settings.rounds)]
    weights = saved(whole, tmp_path / "whole")
    for life in (0, 13):
        log, folder, notes = [], tmp_path / str(life), []
        pool = pf.backends.Dispatcher(
            lambda number, log=log, life=life: Handle(plan, number, log, life), 2
        )
        (folder / "parked").mkdir(parents=True)
        told = lambda event, notes=notes: notes.extend([event] * isinstance(event, pf.events.Note))  # noqa: E731
        federation = Federation(plan, pool, told, parked=folder / "parked")
        federation.start_trial(0)
        found = []
        for number in range(plan.settings.rounds):
            row, clients = federation.round(number)
            found.append(row)
            if every and number % every == 1:
                paths = {c: str(folder / f"{c}-{number}.safetensors") for c in clients}
                federation.save_clients(clients, paths)
        assert without_times(found) == without_times(rows)
        assert saved(federation, folder / "end") == weights
        # With few participants, the slow host may have none. If a phase follows the server's step,
        # its real seconds count too. test_dispatcher.py tests each kind of move separately.
        assert "load" in log or case.startswith(("few", "after the server"))
        assert len(notes) >= 2 if life else not notes
        pool.close()


def saved(federation, folder):
    """Return the files of all clients."""
    folder.mkdir()
    clients = range(federation.plan.info.num_clients)
    paths = {c: folder / f"{c}.safetensors" for c in clients}
    federation.save_clients(clients, {c: str(path) for c, path in paths.items()})
    return {c: path.read_bytes() for c, path in paths.items()}
