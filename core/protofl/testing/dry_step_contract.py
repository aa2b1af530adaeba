"""Methods that pass the dry step; of the others nothing else is tried."""

from __future__ import annotations

from typing import Any

import numpy as np

from protofl.errors import ProtoflError
from protofl.federation.plan import Plan
from protofl.runs.dry_step.dry_run import dry_step
from protofl.testing import toy
from protofl.testing.contract import NotReached
from protofl.testing.donors import Donated


class Sound(Donated):
    """A method under check, which is tried by the dry step before it runs."""

    def plan(self) -> Plan:
        """A toy run of the method."""
        raise NotImplementedError

    def public(self) -> str:
        """Public data for a method that needs some, as ``--public`` takes them."""
        path = self.folder / "public.npz"
        shape = (12, toy.SIDE, toy.SIDE)
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.savez(path, x_train=x, y_train=np.arange(12) % 4)
        return f"npz:{path}"

    def expect_reached(self) -> None:
        """Leave a check out where the method doesn't pass the dry step.

        Raises:
            NotReached: It does not; the check of the dry step says why.
        """
        if self._dry_error() is not None:
            words = (type(self).test_the_dry_step.__doc__ or "").rstrip(".")
            raise NotReached(f"it fails: {words}")

    def _dry_error(self) -> ProtoflError | None:
        """The result of the dry step, which runs once for a method."""
        contract: Any = type(self)
        if "_dry" not in vars(contract):
            contract._dry, contract._dry_notes = None, list[str]()
            try:
                dry_step(self.plan(), contract._dry_notes.append)
            except ProtoflError as error:
                contract._dry = error
        found: ProtoflError | None = contract._dry
        return found

    def plain(self) -> tuple[toy.Toy, Any]:
        """Three rounds as they are, and their fingerprint: run once, for checks that only read."""
        self.expect_reached()
        contract: Any = type(self)
        if "_plain" not in vars(contract):
            found = toy.Toy(self.plan())
            found.rounds(3)
            contract._plain = found, toy.fingerprint(found)
        kept: tuple[toy.Toy, Any] = contract._plain
        return kept

    # --- the dry step ---------------------------------------------------------------------------

    def test_the_dry_step(self) -> None:
        """The method passes the dry step, with which every run begins."""
        error = self._dry_error()
        if error is not None:
            raise error
        self.remarks += vars(type(self))["_dry_notes"]
