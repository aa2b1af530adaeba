"""Methods that are there for others alone, and how a contract runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from protofl.errors import UsageError
from protofl.hooks.discovery.kinds import hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.hookspecs.method import ROUND_HOOKS
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skip
from protofl.testing.toy_methods import Prototypes


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
        return dict.fromkeys(self.donates, self.label)

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
            expect("--use" in str(error), f"running it alone is refused by: {error}")
        else:
            expect(False, "it runs alone")
