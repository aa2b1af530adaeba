"""Contract of schedules."""

from __future__ import annotations

from typing import Any, ClassVar

from protofl.hooks.views.snapshots import pack_server, unpack_server
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skip


class ScheduleContract(Contract):
    """The checks of a schedule, in runs of four clients with devices of three kinds.

    Attributes:
        method: The method that is run.
        steps: Steps of the server.
    """

    kind = "schedule"
    method: ClassVar[str] = "fedproto"
    steps: ClassVar[int] = 5

    def toy(self, *, backwards: bool = False) -> toy.Toy:
        """A federation with the schedule.

        Args:
            backwards: True if clients train in reverse order.
        """
        if "open_schedule" not in self.choice().hooks:
            skip("it has rounds")
        options: dict[str, Any] = {
            "timing": self.text,
            "devices": "tiers",
            "rounds": self.steps,
            "block": self.block,
            "options": {"timing": dict(self.chosen), "devices": {"phones": 1, "laptops": 1}},
        }
        options["options"] = {name: values for name, values in options["options"].items() if values}
        plan = toy.make_plan(self.method, self.folder, extra=self.extra, **options)
        plan.choices["schedule"].call("check_run", plan=plan)
        return toy.Toy(plan, backwards=backwards)

    def test_steps_of_the_server(self) -> None:
        """Every step has uploads, a line that can be stored, and a time that never goes back."""
        lines = self.toy().rounds(self.steps)
        times = [line["virtual"]["elapsed"] for line in lines]
        expect(times == sorted(times), f"virtual time goes back: {times}")
        expect(any(line["participants"] for line in lines), "no step has an upload")
        for line in lines:
            expect(isinstance(line["schedule"], dict), f"line returns {line['schedule']!r}")
        expect(lines[-1]["evaluated"] > 0, "the last step has no evaluation")

    def test_results_do_not_depend_on_the_order_of_training(self) -> None:
        """Clients that train in another order give the same numbers."""
        one, two = (self.toy(backwards=backwards) for backwards in (False, True))
        for run in (one, two):
            run.rounds(self.steps)
        expect(toy.same(toy.fingerprint(one), toy.fingerprint(two)), "the numbers differ")

    def test_it_continues_from_its_state(self) -> None:
        """A schedule that is restored continues as if it had not been interrupted."""
        whole, half = self.toy(), self.toy()
        lines = whole.rounds(self.steps)
        half.rounds(2)
        federation, packed = half.federation, pack_server(half.server)
        coordinator = federation._coordinator  # its folder has the clients' states
        tensors = {name: tensor.clone() for name, tensor in packed[0].items()}
        federation._open_schedule()
        unpack_server(federation.server, (tensors, packed[1]))
        federation._schedule.restore(federation.server.schedule)
        rest = half.rounds(self.steps - 2)[2:]
        expect(toy.same(lines[2:], rest), "the steps after it differ")
        del coordinator

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The schedule keeps nothing on self; the object that it opens does."""
        run = self.toy()
        run.rounds(2)
        kept = vars(run.plan.choices["schedule"].instance)
        expect(not kept, f"self holds {', '.join(kept)} after two steps")
