"""Contracts of plugins that decide who takes part and when, in runs of four clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from protofl.hooks.views.snapshots import pack_server, unpack_server
from protofl.records.row import Row
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skipped

STEPS = 5
"""Rounds of a run, or steps of the server."""


class RoundsContract(Contract):
    """The checks of a plugin that decides who takes part and when.

    Attributes:
        method: The method that is run.
        option: The option of a run that takes the plugin.
        run: Further options of the runs.
        parts: Options of other plugins, by the run's option for them.
    """

    method: ClassVar[str] = "fedproto"
    option: ClassVar[str]
    run: ClassVar[Mapping[str, Any]] = {}
    parts: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def toy(self, *, backwards: bool = False) -> toy.Toy:
        """A federation with the plugin.

        Args:
            backwards: True if clients train in reverse order.
        """
        parts = {**self.parts, self.option: dict(self.chosen)}
        with skipped("refused"):
            plan = toy.make_plan(
                self.method,
                self.folder,
                extra=self.extra,
                block=self.block,
                rounds=STEPS,
                options={name: values for name, values in parts.items() if values},
                **{self.option: self.text, **self.run},
            )
            plan.choices["schedule"].call("check_run", plan=plan)
            return toy.Toy(plan, backwards=backwards)

    def test_rounds(self) -> None:
        """Rounds have uploads, a line that can be stored, and a time that never goes back."""
        lines = self.toy().rounds(STEPS)
        json.dumps(lines)
        times = [line["virtual"]["elapsed"] for line in lines if "virtual" in line]
        expect(times == sorted(times), f"virtual time goes back: {times}")
        expect(any(line["participants"] for line in lines), "no round has an upload")
        expect(lines[-1]["evaluated"] > 0, "the last round has no evaluation")

    def test_results_do_not_depend_on_the_order_of_training(self) -> None:
        """A second run gives the same numbers, and clients may train in another order."""
        one, two = (self.toy(backwards=backwards) for backwards in (False, True))
        for run in (one, two):
            run.rounds(STEPS)
        expect(toy.same(toy.fingerprint(one), toy.fingerprint(two)), "the numbers differ")

    def test_it_continues_from_its_state(self) -> None:
        """A run that is restored continues as if it had not been interrupted."""
        whole, half = self.toy(), self.toy()
        lines = whole.rounds(STEPS)
        done = [Row(line) for line in half.rounds(2)]
        federation, packed = half.federation, pack_server(half.server)
        coordinator = federation._coordinator  # its folder has the clients' states
        tensors = {name: tensor.clone() for name, tensor in packed[0].items()}
        federation._who.start(0, done)
        federation._open_schedule()
        unpack_server(federation.server, (tensors, packed[1]))
        federation._schedule.restore(federation.server.schedule)
        rest = half.rounds(STEPS - 2)[2:]
        expect(toy.same(lines[2:], rest), "the rounds after it differ")
        del coordinator

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The plugin keeps nothing on self."""
        run = self.toy()
        run.rounds(2)
        kept = vars(run.plan.choices[self.kind].instance)
        expect(not kept, f"self holds {', '.join(kept)} after two rounds")


class ClientSamplerContract(RoundsContract):
    """The checks of a client sampler; two of four clients are asked."""

    kind = "client-sampler"
    option = "sampling"
    run: ClassVar[Mapping[str, Any]] = {"participation": 0.5}


class DeviceModelContract(RoundsContract):
    """The checks of a device model."""

    kind = "device-model"
    option = "devices"


class ScheduleContract(RoundsContract):
    """The checks of a schedule, with devices of two kinds."""

    kind = "schedule"
    option = "timing"
    run: ClassVar[Mapping[str, Any]] = {"devices": "tiers"}
    parts: ClassVar[Mapping[str, Mapping[str, Any]]] = {"devices": {"phones": 1, "laptops": 1}}
