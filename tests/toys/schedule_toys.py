"""Toys for tests of schedules: devices of several speeds, and federations with a schedule."""

from __future__ import annotations

import numpy as np
from runtime_toys import GIVEN, PARTS

import protofl as pf
from protofl.backends import Plan
from protofl.federation.jobs.jobs import Train
from protofl.federation.round.federation import Federation

METHODS = {"fedproto": {}, "fedtgp": {}, "fedavg": {"models": "toy1"}, "lg-fedavg": {}}
ASYNC = {"devices": "own", "clients": 6, "rounds": 7, "timing": "buffered"}


class Own:
    """A device model: every third client is ten times slower, every third three times."""

    @pf.hookimpl
    def device(self, client):
        speed = 1e6 / (1, 3, 10)[client % 3]
        return {"flops": speed, "download": 1e6, "upload": 4e5, "latency": 0.01}


class Alike(Own):
    """A device model: all clients have the same device."""

    @pf.hookimpl
    def device(self):
        return {"flops": 1e6, "download": 1e6, "upload": 4e5, "latency": 0.01}


class Going(Own):
    """A device model: clients come and go."""

    @pf.hookimpl
    def presence(self, num_clients, seconds, seed):
        shift = np.arange(num_clients) / num_clients
        slot = np.floor(seconds / 3 + shift)
        until = (slot + 1 - shift) * 3
        return slot % 2 == 0, np.maximum(until, np.nextafter(seconds, np.inf))


def place_of(devices):
    return f"{__file__}:{devices.__name__}"


def federation_of(method="fedavg", devices=Own, settings=None, **options):
    given = GIVEN | ASYNC | METHODS.get(method, {}) | {"options": {"timing": settings or {}}}
    extra = PARTS | {("device-model", "own"): devices}
    if isinstance(method, type):
        extra["method", "main"] = method
        method = "main"
    plan = Plan.make(given | {"method": method} | options, extra)
    pool = Counting(plan)
    federation = Federation(plan, pool)
    federation.start_trial(0)
    return federation, pool


class Counting(pf.backends.Host):
    """A host that keeps the number of trainings of each call."""

    def __init__(self, plan):
        super().__init__(plan)
        self.together = []

    def run(self, jobs):
        if jobs and isinstance(jobs[0], Train):
            self.together.append(len(jobs))
        return super().run(jobs)
