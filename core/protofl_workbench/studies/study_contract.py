"""Contract of collections of studies."""

from __future__ import annotations

from functools import cached_property

from protofl.errors import ProtoflError, UsageError
from protofl.federation.plan import Plan
from protofl.runs.recipes import missing
from protofl.system.options.table import CHOOSING
from protofl.testing.contract import Contract, expect, skip
from protofl_workbench.studies.cells import Cell, Change, cells_of
from protofl_workbench.studies.finding import FILE, Collection
from protofl_workbench.studies.study import Study

SMOKE = "smoke"
SIZES = {"clients", "participation", "rounds", "trials", "lr", "local_epochs", "feature_dim"}
"""Options that do not change the plan of a run; runs that differ only here are planned once."""


class StudyContract(Contract):
    """Checks of a collection of studies: its files and their cells."""

    kind = "study"

    @property
    def collection(self) -> type[Collection]:
        """The collection."""
        found: type[Collection] = self.cls
        return found

    @cached_property
    def studies(self) -> list[Study]:
        """The studies whose files can be read."""
        found = []
        for name in self.collection.names():
            try:
                found.append(self.collection.study(name.partition("/")[2]))
            except ProtoflError:
                continue  # another check reports this error
        return found

    def cells(self, study: Study, scale: str) -> dict[str, Cell]:
        """Return one cell of a study for each run or account."""
        return {c.key: c for c in cells_of(study, Change(scale=scale)) if c.options}

    def test_its_files_are_studies(self) -> None:
        """Every file is a study, or is extended by one."""
        expect(bool(self.collection.names()), "the collection has no file NAME.toml with a title")
        for name in self.collection.names():
            self.collection.study(name.partition("/")[2])

    def test_options_are_possible(self) -> None:
        """The options of every cell are known, at every scale."""
        for study in self.studies:
            for scale in study.scales:
                for cell in self.cells(study, scale).values():
                    try:
                        cell.request()
                    except UsageError as error:
                        error.what = f"{study.name}, {cell.name}, scale {scale}: {error.what}"
                        raise

    def test_its_plugins_are_installed(self) -> None:
        """The methods, groups, partitioners and data sets of its cells are installed."""
        for study in self.studies:
            named = set[tuple[str, str]]()
            for cell in self.cells(study, "paper").values():
                named.add(("method", str(cell.options.get("method"))))
                for option, kind in CHOOSING.items():
                    if option in cell.options:
                        named.add((kind, str(cell.options[option]).partition(":")[0]))
            lacks = missing(named)
            names = ", ".join(f"the {kind} {name!r}" for kind, name in lacks)
            expect(not lacks, f"{study.name}: not installed: {names}")

    def test_the_smoke_scale(self) -> None:
        """Studies of a package have a scale smoke of at most 20 rounds; its runs can be planned."""
        if not self.studies:
            skip("not reached: no file can be read")
        if self.collection.name == FILE and not any(SMOKE in s.scales for s in self.studies):
            skip(f"a study that is published also has [scales.{SMOKE}] with few rounds")
        planned = set[str]()
        for study in self.studies:
            expect(
                SMOKE in study.scales,
                f"{study.name} has no scale {SMOKE}: write [scales.{SMOKE}] with few rounds",
            )
            for cell in self.cells(study, SMOKE).values():
                rounds = cell.options.get("rounds", 100)
                expect(rounds <= 20, f"{study.name}: scale {SMOKE} has {rounds} rounds")
                alike = {k: v for k, v in cell.options.items() if k not in SIZES}
                if str(alike) not in planned:
                    planned.add(str(alike))
                    self.plan(study, cell)

    def plan(self, study: Study, cell: Cell) -> None:
        """Plan the run of a cell."""
        try:
            request = cell.request()
            registry = request.registry
            plan = Plan.make(request.settings, report=lambda line: None, registry=registry)
            plan.split(0)
        except UsageError as error:
            error.what = f"{study.name}, {cell.name}, scale {SMOKE}: {error.what}"
            raise
