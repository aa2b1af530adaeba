"""Mixing as a matrix: which hook and loss term of a method runs in, or beside, which other's.

Every combination is planned on a tiny federation and goes through the dry step, as any run does.
It runs, or is refused with the name of what it lacks; all else is a fault of a method or of
protofl, and is called unclear.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from protofl.discovery.kinds import hooks_of
from protofl.discovery.registry import Registry
from protofl.dry_step.step import dry_step
from protofl.errors import ProtoflError, Refused
from protofl.hookspecs.method import MERGED_HOOKS, ROUND_HOOKS
from protofl.plan.plan import Plan
from protofl.plugin.baseline import Baseline
from protofl.testing import toy

RUNS, REFUSED, UNCLEAR = "runs", "refused", "unclear"

ADD = "add"
"""The place of a loss term that is added."""

BESIDE = {f"{ADD} {hook}": hook for hook in MERGED_HOOKS}
"""{the place of a hook that is added beside the main method's: the hook}."""

PLACES = (*ROUND_HOOKS, *BESIDE, ADD)
"""The six hooks, those that are merged, and loss terms."""

_GIVEN = {
    "models": "toy",
    "dataset": "toy",
    "device": "cpu",
    "backend": "local",
    "batch_size": 5,
    "lr": 0.05,
    "rounds": 3,
}


@dataclass(frozen=True, order=True)
class Cell:
    """One combination of two methods, and what became of it.

    Attributes:
        main: The method that is run.
        place: The hook that is taken from the donor, ``add HOOK`` where it is added, or ``add``.
        donor: The method that gives, for ``add`` as METHOD.TERM.
        outcome: ``runs``, ``refused`` or ``unclear``.
        alike: Whether it was tried with clients of one architecture, as a method asks for that.
        lacks: What it lacks where it is refused: ``key``, ``shape``, ``name``, ``module``,
            ``phase``, ``requirement``.
        name: The name of that.
        message: The error in full.
    """

    main: str
    place: str
    donor: str
    outcome: str
    alike: bool = False
    lacks: str = ""
    name: str = ""
    message: str = ""

    @property
    def reason(self) -> str:
        """Why it is refused, in a few words."""
        if self.lacks == "name":
            return f"both send the key `{self.name}`"
        return f"lacks the {self.lacks} `{self.name}`" if self.lacks else ""


class Mixer:
    """Tries combinations of methods on a tiny federation; made by `mixer`."""

    def __init__(self, registry: Registry, folder: Path) -> None:
        self.registry = registry
        groups = (toy.group(toy.CNN, toy.NORM), toy.group(toy.NORM))
        data = {("dataset", "toy"): toy.dataset(toy.make_images(toy.MIXED))}
        self._registries = [
            Registry(registry.block, registry.extra | data | {("model-group", "toy"): group})
            for group in groups
        ]
        public = folder / "public.npz"
        x = np.random.default_rng(0).standard_normal((12, toy.SIDE, toy.SIDE))
        np.savez(public, x_train=x.astype(np.float32), y_train=np.arange(12) % 4)
        self._given = _GIVEN | {"data_dir": folder, "public": f"npz:{public}"}

    def terms(self, method: str) -> list[str]:
        """The loss terms that a method declares."""
        plugin: Any = self.registry.load("method", method)
        own = "local_loss" in hooks_of("method", plugin)
        return list(getattr(plugin, "terms", {}) if own else Baseline.terms)

    def alone(self, method: str) -> Cell:
        """A method by itself."""
        return self._try(Cell(method, "", method, UNCLEAR), {})

    def use(self, main: str, hook: str, donor: str) -> Cell:
        """``--use HOOK=DONOR``."""
        return self._try(Cell(main, hook, donor, UNCLEAR), {"use": {hook: donor}})

    def beside(self, main: str, place: str, donor: str) -> Cell:
        """``--add HOOK=DONOR``."""
        added = {"add": [f"{BESIDE[place]}={donor}"]}
        return self._try(Cell(main, place, donor, UNCLEAR), added)

    def add(self, main: str, term: str) -> Cell:
        """``--add local_loss=DONOR.TERM``."""
        return self._try(Cell(main, ADD, term, UNCLEAR), {"add": [term]})

    def row(self, main: str, donors: Sequence[str], places: Sequence[str] = PLACES) -> list[Cell]:
        """One method with the hooks and terms of others."""
        others = [donor for donor in donors if donor != main]
        cells = []
        for place in places:
            if place == ADD:
                terms = [f"{donor}.{term}" for donor in others for term in self.terms(donor)]
                cells += [self.add(main, term) for term in terms]
            else:
                one = self.beside if place in BESIDE else self.use
                cells += [one(main, place, donor) for donor in others]
        return cells

    def _try(self, cell: Cell, options: Mapping[str, Any]) -> Cell:
        found = partial(Cell, cell.main, cell.place, cell.donor)
        for alike, registry in enumerate(self._registries):
            try:
                given = {**self._given, **options, "method": cell.main}
                dry_step(Plan.make(given, report=lambda line: None, registry=registry))
            except Refused as error:
                if error.lacks == "requirement" and not alike:
                    continue  # one that clients of one architecture may meet
                reason = {"lacks": error.lacks, "name": error.name, "message": str(error)}
                return found(REFUSED, bool(alike), **reason)
            except ProtoflError as error:
                return found(UNCLEAR, bool(alike), message=str(error))
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                return found(UNCLEAR, bool(alike), message=message)
            return found(RUNS, bool(alike))
        raise AssertionError("the last group's outcome is returned")


@contextmanager
def mixer(registry: Registry | None = None) -> Iterator[Mixer]:
    """A `Mixer` with a folder for its data, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="protofl-mixing-") as folder:
        yield Mixer(registry or Registry(), Path(folder))
