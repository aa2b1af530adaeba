"""Contract of collections of reproductions."""

from __future__ import annotations

from functools import cached_property

from protofl.errors import ProtoflError, UsageError
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.resolution import resolve
from protofl.hooks.discovery.registry import installed
from protofl.system.options.table import CHOOSING
from protofl.testing.contract import Contract, expect, skip
from protofl_workbench.reproductions.cells import Cell, Change, cells_of
from protofl_workbench.reproductions.finding import FILE, Collection
from protofl_workbench.reproductions.reproduction import Reproduction

SMOKE = "smoke"
SIZES = {"clients", "participation", "rounds", "trials", "lr", "local_epochs", "feature_dim"}
"""Options that do not change the plan of a run; runs that differ only here are planned once."""

LOCAL_TRAINING = (
    "optimizer", "momentum", "weight_decay", "clip", "batch_size", "local_epochs", "drop_last",
    "shuffle",
)  # fmt: skip
"""Options in which all methods of a benchmark are equal."""


class ReproductionContract(Contract):
    """Checks of a collection of reproductions: its files and their cells."""

    kind = "reproduction"

    @property
    def collection(self) -> type[Collection]:
        """The collection."""
        result: type[Collection] = self.cls
        return result

    @cached_property
    def reproductions(self) -> list[Reproduction]:
        """The reproductions whose files can be read."""
        result = []
        for name in self.collection.names():
            try:
                result.append(self.collection.reproduction(name.partition("/")[2]))
            except ProtoflError:
                continue  # another check reports this error
        return result

    def cells(self, reproduction: Reproduction, scale: str) -> dict[str, Cell]:
        """Return one cell of a reproduction for each run or account."""
        return {c.key: c for c in cells_of(reproduction, Change(scale=scale)) if c.options}

    def test_its_files_are_reproductions(self) -> None:
        """Every file is a reproduction, or is extended by one."""
        expect(bool(self.collection.names()), "the collection has no file NAME.toml with a title")
        for name in self.collection.names():
            self.collection.reproduction(name.partition("/")[2])

    def test_options_are_possible(self) -> None:
        """The options of every cell are known, at every scale."""
        for reproduction in self.reproductions:
            for scale in reproduction.scales:
                for cell in self.cells(reproduction, scale).values():
                    try:
                        cell.request()
                    except UsageError as error:
                        error.what = (
                            f"{reproduction.name}, {cell.name}, scale {scale}: {error.what}"
                        )
                        raise

    def test_its_plugins_are_installed(self) -> None:
        """The methods, groups, partitioners and data sets of its cells are installed."""
        for reproduction in self.reproductions:
            named = set[tuple[str, str]]()
            for cell in self.cells(reproduction, "paper").values():
                named.add(("method", str(cell.options.get("method"))))
                for option, kind in CHOOSING.items():
                    if option in cell.options:
                        named.add((kind, str(cell.options[option]).partition(":")[0]))
            lacks = sorted(named - {(p.kind, p.name) for k, _ in named for p in installed(k)})
            names = ", ".join(f"the {kind} {name!r}" for kind, name in lacks)
            expect(not lacks, f"{reproduction.name}: not installed: {names}")

    def test_the_smoke_scale(self) -> None:
        """A package's reproductions have a scale smoke of at most 20 rounds that can be planned."""
        if not self.reproductions:
            skip("not reached: no file can be read")
        if self.collection.name == FILE and not any(SMOKE in s.scales for s in self.reproductions):
            skip(f"a reproduction that is published also has [scales.{SMOKE}] with few rounds")
        planned = set[str]()
        for reproduction in self.reproductions:
            fits = set[str]()
            expect(
                SMOKE in reproduction.scales,
                f"{reproduction.name} has no scale {SMOKE}: write [scales.{SMOKE}] with few rounds",
            )
            for cell in self.cells(reproduction, SMOKE).values():
                rounds = cell.options.get("rounds", 100)
                expect(rounds <= 20, f"{reproduction.name}: scale {SMOKE} has {rounds} rounds")
                alike = {k: v for k, v in cell.options.items() if k not in SIZES}
                if str(alike) in planned or cell.column in fits:
                    continue
                planned.add(str(alike))
                if reproduction.tuning is None:
                    self.plan(reproduction, cell)
                elif self.fits(reproduction, cell):
                    fits.add(cell.column)
            lacks = [c for c in reproduction.columns if reproduction.tuning and c not in fits]
            expect(not lacks, f"{reproduction.name}: no method fits {', '.join(lacks)}")

    def test_methods_of_a_benchmark_train_alike(self) -> None:
        """A benchmark names the options of local training that a method would set by itself."""
        for reproduction in self.reproductions:
            otherwise = {}
            for cell in self.cells(reproduction, "paper").values() if reproduction.tuning else ():
                try:
                    request = cell.request()
                    set_by = resolve(request.settings, request.registry).set_by
                except UsageError:  # it does not fit the setting
                    continue
                if own := [o for o in LOCAL_TRAINING if set_by.get(o, "").startswith("method ")]:
                    otherwise[cell.row] = ", ".join(own)
            told = "; ".join(f"{row}: {own}" for row, own in otherwise.items())
            expect(
                not otherwise,
                f"{reproduction.name}: methods would train with values of their own ({told}): "
                "write those of all methods into [options]",
            )

    def fits(self, reproduction: Reproduction, cell: Cell) -> bool:
        """Return True if the method of a benchmark's cell fits its setting."""
        try:
            self.plan(reproduction, cell)
        except UsageError:
            return False
        return True

    def plan(self, reproduction: Reproduction, cell: Cell) -> None:
        """Plan the run of a cell."""
        try:
            request = cell.request()
            registry = request.registry
            plan = Plan.make(request.settings, report=lambda line: None, registry=registry)
            plan.split(0)
        except UsageError as error:
            error.what = f"{reproduction.name}, {cell.name}, scale {SMOKE}: {error.what}"
            raise
