"""Inventory of a reproduction: runs, and missing data, weights and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from protofl.errors import ProtoflError, UsageError
from protofl.federation.events import Event, Note, ignore
from protofl.federation.plan.run_data import load_data
from protofl.hooks.plugin.members import choose
from protofl.records.reading import Reading
from protofl.records.row import Row
from protofl.runs.request.request import Request
from protofl.runs.resume.requested_run import RequestedRun
from protofl.runs.resume.reuse import find
from protofl.system.files.atomic import default_data_dir
from protofl.system.files.home import expand_user
from protofl.system.options.plugin_options import Config, consents
from protofl_workbench.recorded.recorded_run import Run, run_of
from protofl_workbench.reproductions.account import data_choice, outline_of
from protofl_workbench.reproductions.cell_options import files_in, generator_class, needs_generator
from protofl_workbench.reproductions.cells import Cell, Change, cells_of
from protofl_workbench.reproductions.reproduction import Reproduction
from protofl_workbench.reproductions.reproduction_figures import READERS


@dataclass
class ReproductionProgress:
    """The progress of the cells of a reproduction.

    Attributes:
        reproduction: The reproduction.
        change: Selection and changes of the user.
        cells: The selected cells.
        missing: {`Cell.key`: missing data, weights or files}.
        rows: {`Cell.key`: lines of the record, or of the account}.
        folders: {`Cell.key`: run folder}.
        failed: {`Cell.key`: error of the run}.
        parts: {`Cell.key`: state of an unfinished run, or why a run is not reused}.
        splits: {`Cell.key`: samples of each client and class [M, C], and the classes}.
    """

    reproduction: Reproduction
    change: Change
    cells: list[Cell]
    missing: dict[str, UsageError] = field(default_factory=dict)
    rows: dict[str, Sequence[Row]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    failed: dict[str, ProtoflError] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    splits: dict[str, tuple[np.ndarray, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, reproduction: Reproduction, change: Change) -> ReproductionProgress:
        """Return the empty progress of a reproduction."""
        return cls(reproduction, change, cells_of(reproduction, change))

    def to_run(self) -> list[Cell]:
        """Return one cell for each run."""
        return self._distinct(trains=True)

    def to_account(self) -> list[Cell]:
        """Return one cell for each account."""
        return self._distinct(trains=False)

    def _distinct(self, *, trains: bool) -> list[Cell]:
        cells_by_key: dict[str, Cell] = {}
        for cell in self.cells:
            if cell.options and needs_run(self.reproduction, cell) == trains:
                cells_by_key.setdefault(cell.key, cell)
        return [cell for key, cell in cells_by_key.items() if key not in self.missing]


def check_is_no_benchmark(reproduction: Reproduction) -> None:
    """Check that the cells of a reproduction are runs by themselves.

    Raises:
        UsageError: It is a benchmark, whose methods are tuned first.
    """
    if reproduction.tuning is not None:
        raise UsageError(
            f"{reproduction.name} is a benchmark: its methods are tuned before they run",
            do=f"run it on the command line: protofl reproduce {reproduction.name}",
        )


def needs_run(reproduction: Reproduction, cell: Cell) -> bool:
    """Return True if a cell needs a run, False for an account."""
    if reproduction.draw == "partition":
        return False
    return READERS[cell.figure.read].trains or reproduction.kind != "account"


def finished_run(cell: Cell, runs: Path) -> Run | None:
    """Return the run of a cell if it has the required rounds."""
    found = find(cell.request(), runs)
    return None if found is None else run_of(found)


def unfinished_run(request: Request, runs: Path) -> Reading | None:
    """Return the longest unfinished run that can be resumed for a request."""
    requested = RequestedRun.of(request, ignore)
    return next(filter(requested.can_extend, requested.candidates(expand_user(runs))), None)


def reuse_notes(request: Request, runs: Path) -> str:
    """Return why recorded runs with these options are not reused; empty if there are none."""
    said: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note) and event.text.startswith(str(folder)):
            said.append(event.text)

    folder = expand_user(runs)
    RequestedRun.of(request, listen).candidates(folder)
    return "; ".join(said)


def missing_inputs(
    cells: Sequence[Cell], note: Callable[[str], None], *, fetch: bool, account: bool = False
) -> dict[str, UsageError]:
    """Return the missing data, weights and files of cells, by `Cell.key`.

    Args:
        cells: Cells with runs, or cells with accounts.
        note: Takes a line before a download or another long step.
        fetch: True to download data; otherwise data that would be downloaded count as missing.
        account: True for accounts, which need only the sizes of the classes.

    Raises:
        UsageError: Another option of a cell is wrong.
    """
    lacking = [cell for cell in cells if _needs_files(cell, account=account)]
    result = dict.fromkeys([c.key for c in lacking], _files_error(lacking)) if lacking else {}
    known: dict[str, UsageError | None] = {}
    # Generators first, because missing data may be downloaded.
    for kind in ("dataset",) if account else ("generator", "dataset"):
        for cell in cells:
            request = cell.request()
            if cell.key in result or (kind == "generator" and not needs_generator(request)):
                continue
            options = request.options
            name = f"{kind} {options.get(kind)} {options.get('options', {}).get(kind)}"
            if name not in known:
                known[name] = (
                    _generator_error(request)
                    if kind == "generator"
                    else _data_error(request, note, fetch=fetch, account=account)
                )
            if (error := known[name]) is not None:
                result[cell.key] = error
    return result


SKIP = "leave such cells out with --skip-missing"


def _generator_error(request: Request) -> UsageError | None:
    """Return the error about a generator that is not here, if any."""
    options = request.options
    text = str(options.get("generator", "tiny-style"))
    try:
        generator_options = options.get("options", {}).get("generator")
        choose(request.registry, "generator", text, generator_options).call(
            "outline", data_dir=_folder(request)
        )
    except ProtoflError as error:
        do = f"{error.do}; or {SKIP}" if error.do else SKIP
        return UsageError(f"generator {text}: {error.what}", error.near, do)
    return None


def _data_error(
    request: Request, note: Callable[[str], None], *, fetch: bool, account: bool
) -> UsageError | None:
    """Return the error about data that are not here, if any."""
    try:
        choice, folder = data_choice(request.options, request.registry), _folder(request)
        outline = outline_of(choice, folder)
        if outline is None:
            choice.call("cache_key", data_dir=folder)  # fails if a file is missing
        elif fetch and not (account and not outline.get("even")):
            load_data(choice, folder, note)
        elif not account or outline.get("even"):
            raise UsageError(f"the data set {choice.text} is not here yet")
    except ProtoflError as error:
        name = request.options.get("dataset")
        what = error.what if str(name).partition(":")[0] in error.what else f"{name}: {error.what}"
        return UsageError(what, error.near, f"give it with --dataset {name}=npz:FILE, or {SKIP}")
    return None


def _folder(request: Request) -> Path:
    return Path(request.options.get("data_dir") or default_data_dir())


def _needs_files(cell: Cell, *, account: bool) -> bool:
    """Return True if a cell lacks a file; an account does not need the generator's files."""
    if not (account and cell.lacks):
        return bool(cell.lacks)
    plugin_options = {
        k: v for k, v in cell.options.get("set", {}).items() if not k.startswith("generator.")
    }
    others = {k: v for k, v in cell.options.items() if k not in ("generator", "set")}
    return not cell.lacks.keys().isdisjoint(files_in([plugin_options, others]))


def _files_error(cells: Sequence[Cell]) -> UsageError:
    """Return the error about files that are not given, with the options to add."""
    files = {name: about for cell in cells for name, about in cell.lacks.items()}
    arguments = [f"--file {name}=PATH" for name in files]
    for request in (cell.request() for cell in cells):
        if not needs_generator(request):
            continue
        declared = getattr(generator_class(request), "Config", Config)
        for key, name in consents(declared).items():
            if key not in request.said.get("generator", {}):
                default = declared.model_fields[name].default
                text = json.dumps(not default) if isinstance(default, bool) else "PATH"
                arguments.append(f"--set generator.{key}={text}")
    return UsageError(
        f"{'a file is' if len(files) == 1 else f'{len(files)} files are'} needed and not given: "
        f"{', '.join(files)}",
        "; ".join(f"{name} is {about}" for name, about in files.items()),
        f"add {' '.join(dict.fromkeys(arguments))}; or {SKIP}",
    )
