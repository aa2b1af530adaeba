"""Toy federations of a method under check."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from protofl.errors import Refused
from protofl.federation.plan.plan import Plan
from protofl.testing import toy
from protofl.testing.contract import expect
from protofl.testing.donors import Sound

MIXED = toy.group(toy.CNN, toy.NORM)
WITH_NORM = toy.group(toy.NORM)
EXITS = toy.group(*toy.EXITS)
WIDTHS = toy.group(toy.WIDE, toy.NARROW, toy.CNN)
Line = Mapping[str, Any]


class MethodFederations(Sound):
    """A method under check, with toy federations of four clients.

    Attributes:
        models: Model groups to try in order, until the method refuses none; by default two
            architectures, one of them with BatchNorm, then one for all. One net in two depths with
            exits (DepthFL) is the last to try in every check.
        run: Further options of the runs, where the method needs some.
    """

    kind = "method"
    models: ClassVar[Sequence[type]] = (MIXED, WITH_NORM)
    run: ClassVar[Mapping[str, Any]] = {}

    # --- toy federations ------------------------------------------------------------------------

    def plan(
        self,
        models: Sequence[type] = (),
        set: Mapping[str, Any] | None = None,
        parts: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - the options of a run
    ) -> Plan:
        """A toy run of the method, on the first model group that it takes.

        Args:
            models: Model groups to try.
            set: Options of the method, over those of the contract.
            parts: Options of other plugins, by kind.
            **options: Options of the run.
        """
        run_options = {
            "use": self.taken,
            "add": self.added,
            **self.run,
            **options,
            "block": self.block,
        }
        if getattr(self.cls, "needs_public", False):
            run_options.setdefault("public", self.public())
        run_options["options"] = {self.label: {**self.chosen, **(set or {})}, **(parts or {})}
        run_options["options"] = {
            name: values for name, values in run_options["options"].items() if values
        }
        refused: Refused | None = None
        for group in (*(models or self.models), EXITS):
            try:
                return toy.make_plan(
                    self.main, self.folder, models=group, extra=self.parts, **run_options
                )
            except Refused as error:
                if error.lacks != "requirement":
                    raise
                refused = refused or error
        assert refused is not None
        raise refused

    def fed(self, *, trial: int = 0, backwards: bool = False, **options: Any) -> toy.Toy:  # noqa: ANN401
        """A toy federation of the method; ``options`` as `plan` takes them.

        Raises:
            NotReached: The method doesn't pass the dry run, so that no run of it begins.
        """
        self.expect_reached()
        return toy.Toy(self.plan(**options), trial=trial, backwards=backwards)


def expect_finite(lines: Iterable[Line]) -> None:
    """Losses, terms and further scalars are finite, and accuracies fractions."""
    for line in lines:
        values = {"train_loss": line["train_loss"], **line["loss_terms"], **line["extra"]}
        for name, value in values.items():
            expect(math.isfinite(value), f"{name} is {value} in round {line['round']}")
        accuracy = line["test_accuracy"]
        expect(accuracy is None or 0 <= accuracy <= 1, f"test_accuracy is {accuracy}")


def difference(first: Any, other: Any) -> str:  # noqa: ANN401 - fingerprints
    """Return the parts in which two fingerprints differ."""
    parts = ("the record", "the server", "a client")
    differing = [word for word, a, b in zip(parts, first, other, strict=True) if not toy.same(a, b)]
    return " and ".join(differing)
