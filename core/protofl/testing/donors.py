"""Contracts of methods: methods that only others use, and the dry run before all other checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from protofl.errors import ProtoflError, UsageError
from protofl.federation.plan.plan import Plan
from protofl.hooks.discovery.kinds import hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.hookspecs.method import ROUND_HOOKS
from protofl.hooks.plugin.members import donation
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy
from protofl.testing.contract import Contract, NotReached, expect, skip
from protofl.testing.toy_plugins import Prototypes


def methods_to_run(registry: Registry, distribution: str = "") -> list[str]:
    """Installed methods that can be loaded and run: all but what is there for others alone.

    Args:
        registry: Where they are found.
        distribution: Only of this one; of all where empty.
    """
    plugins = [p for p in registry.plugins("method") if distribution in ("", p.distribution)]
    fine = [p.name for p in plugins if registry.status(p)[0] == "ok"]
    return [name for name in fine if not hasattr(registry.load("method", name), "donates")]


class Donated(Contract):
    """A method under check; a donor's hooks are taken by a toy that sends prototypes."""

    @cached_property
    def donates(self) -> Sequence[str]:
        """The hooks that it provides for other methods, where that is all it does."""
        return tuple(getattr(self.cls, "donates", ()))

    @cached_property
    def main(self) -> str:
        """The method that is run: this one, or the toy that takes its hooks."""
        return "taker" if self.donates else self.label

    @property
    def sender(self) -> type:
        """The class of it."""
        return Prototypes if self.donates else self.cls

    @property
    def parts(self) -> dict[tuple[str, str], type]:
        """The plugin as a class given in the program, and the toy."""
        return self.extra | ({("method", self.main): Prototypes} if self.donates else {})

    @property
    def taken(self) -> Mapping[str, str]:
        """``--use`` of the runs."""
        return dict.fromkeys((h for h in self.donates if h != "local_loss"), self.label)

    @property
    def added(self) -> list[str]:
        """``--add`` of the runs: the loss terms of a plugin that donates ``local_loss``."""
        terms = getattr(self.cls, "terms", {}) if "local_loss" in self.donates else {}
        return [f"{self.label}.{term}" for term in terms]

    def test_a_donor_is_run_by_others_alone(self) -> None:
        """A plugin that only donates has the hooks that it names, and is not run alone."""
        if not self.donates:
            skip("it is a method of its own")
        for hook in self.donates:
            expect(hook in ROUND_HOOKS, f"donates names {hook!r}, which is none of the six hooks")
            expect(hook in hooks_of("method", self.cls), f"it donates {hook} and does not have it")
        try:
            toy.make_plan(self.label, self.folder, extra=self.extra, block=self.block)
        except UsageError as error:
            way = donation(self.cls, self.label, self.donates[0])
            expect(way in str(error), f"running it alone is refused by: {error}")
        else:
            expect(False, "it runs alone")


class Sound(Donated):
    """A method under check, which is tried by the dry run before it runs."""

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
        """Leave a check out where the method doesn't pass the dry run.

        Raises:
            NotReached: It does not; the check of the dry run says why.
        """
        if self._dry_error() is not None:
            description = (type(self).test_the_dry_run.__doc__ or "").rstrip(".")
            raise NotReached(f"it fails: {description}")

    def _dry_error(self) -> ProtoflError | None:
        """The result of the dry run, which runs once for a method."""
        contract: Any = type(self)
        if "_dry" not in vars(contract):
            contract._dry, contract._dry_notes = None, list[str]()
            try:
                dry_run(self.plan(), contract._dry_notes.append)
            except ProtoflError as error:
                contract._dry = error
        result: ProtoflError | None = contract._dry
        return result

    def plain(self) -> tuple[toy.Toy, Any]:
        """Three rounds as they are, and their fingerprint: run once, for checks that only read."""
        self.expect_reached()
        contract: Any = type(self)
        if "_plain" not in vars(contract):
            federation = toy.Toy(self.plan())
            federation.rounds(3)
            contract._plain = federation, toy.fingerprint(federation)
        kept: tuple[toy.Toy, Any] = contract._plain
        return kept

    # --- the dry run ---------------------------------------------------------------------------

    def test_the_dry_run(self) -> None:
        """The method passes the dry run, with which every run begins."""
        error = self._dry_error()
        if error is not None:
            raise error
        self.remarks += vars(type(self))["_dry_notes"]
