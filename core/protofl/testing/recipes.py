"""Contract of recipes."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cached_property
from typing import Any

import numpy as np

from protofl.errors import Refused
from protofl.federation.plan import Plan
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.runs.recipes import missing, named_in
from protofl.system.options.table import CHOOSING, OPTIONS
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skip
from protofl.testing.method_federations import MIXED, WITH_NORM, expect_finite

REPLACED = ("models", "dataset", "subset", "partition", "clients", "generator", "feature_dim")
"""Options in whose place the checks have their own."""


class RecipeContract(Contract):
    """The checks of a recipe: of its file, and of its composition on a toy."""

    kind = "recipe"

    @cached_property
    def values(self) -> dict[str, Any]:
        """The options of the recipe, by the names of a run's options."""
        values: dict[str, Any] = self.cls.values
        return values

    def plan(self) -> Plan:
        """A toy run of it, on toy models and data in place of its own."""
        self._expect_all()
        run_options = {k: v for k, v in self.values.items() if k not in REPLACED}
        plugin_options = {
            k: v for k, v in run_options.pop("options", {}).items() if k not in CHOOSING
        }
        method = run_options.pop("method")
        for name in {name for kind, name in named_in(self.values) if kind == "method"}:
            quick = getattr(self.registry.load("method", name), "check_options", {})
            plugin_options[name] = {**quick, **plugin_options.get(name, {})}
        run_options["options"] = {name: values for name, values in plugin_options.items() if values}
        if getattr(self.registry.load("method", method), "needs_public", False):
            run_options["public"] = self._public()
        refused: Refused | None = None
        for models in (MIXED, WITH_NORM):
            try:
                return toy.make_plan(method, self.folder, models=models, **run_options)
            except Refused as error:
                refused = error
        assert refused is not None
        raise refused

    def _expect_all(self) -> None:
        if missing(named_in(self.values)):
            skip("not reached: a plugin that it names is not installed")

    def _public(self) -> str:
        x = np.random.default_rng(0).standard_normal((12, toy.SIDE, toy.SIDE)).astype(np.float32)
        np.savez(self.folder / "public.npz", x_train=x, y_train=np.arange(12) % 4)
        return f"npz:{self.folder / 'public.npz'}"

    def test_what_it_names_is_installed(self) -> None:
        """The plugins that it names are installed."""
        absent = missing(named_in(self.values))
        lacks = ", the ".join(f"{kind} {name!r}" for kind, name in absent)
        install = " ".join(self.cls.needs[name] for _, name in absent if name in self.cls.needs)
        remedy = f": pip install {install}" if install else ""
        expect(not absent, f"nobody here has the {lacks}{remedy}")

    def test_its_distribution_requires_theirs(self) -> None:
        """The recipe's distribution requires those of its plugins, or its needs name them."""
        self._expect_all()
        distribution = self.registry.find("recipe", self.label).distribution
        try:
            required = {_bare(text) for text in importlib.metadata.requires(distribution) or []}
        except importlib.metadata.PackageNotFoundError:
            required = set()
        known = required | {_bare(text) for text in self.cls.needs.values()} | {_bare(distribution)}
        for kind, name in sorted(named_in(self.values)):
            theirs = self.registry.find(kind, name).distribution
            expect(
                _bare(theirs) in known | {"protofl", "this-program"},
                f"the {kind} {name!r} is of {theirs}: write {theirs!r} into the dependencies, or "
                f'into the recipe\'s [needs]: {name} = "{theirs}"',
            )

    def test_it_is_no_run(self) -> None:
        """The recipe has no options of one run or one machine."""
        extra = sorted(name for name in self.values if not OPTIONS[name].recipe)
        expect(not extra, f"it sets {', '.join(extra)}: leave that to who runs it")

    def test_the_dry_run(self) -> None:
        """The recipe's options are valid, and it passes the dry run."""
        dry_run(self.plan(), self.remarks.append)

    def test_two_rounds(self) -> None:
        """Two rounds of it have finite losses and figures."""
        expect_finite(toy.Toy(self.plan()).rounds(2))


def _bare(requirement: str) -> str:
    """A requirement's distribution, as names are compared."""
    name = re.split(r"[\s<>=!~;\[(]", requirement.strip())[0]
    return re.sub(r"[-_.]+", "-", name).lower()
