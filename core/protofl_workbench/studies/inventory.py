"""The inventory of a study: runs that are finished or begun, data and weights that are missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from protofl.errors import ProtoflError, UsageError
from protofl.federation.events import Event, Note, ignore
from protofl.federation.inputs import load_data
from protofl.hooks.plugin.members import choose
from protofl.records.row import Row
from protofl.runs.recorded_run import Run
from protofl.runs.request import Request
from protofl.runs.requested_run import RequestedRun
from protofl.runs.reuse import find
from protofl.system.files.atomic import default_data_dir
from protofl.system.options.plugin_options import Config, consents
from protofl.system.options.table import build
from protofl_workbench.studies.account import data_choice, outline_of
from protofl_workbench.studies.cell_options import files_in, generator_class, needs_generator
from protofl_workbench.studies.cells import Cell, Change, cells_of
from protofl_workbench.studies.study import Study
from protofl_workbench.studies.study_figures import READERS


@dataclass
class StudyProgress:
    """The progress of the cells of a study.

    Attributes:
        study: The study.
        change: What the user changed.
        cells: The cells that are wanted.
        missing: {`Cell.key`: what it lacks}.
        rows: {`Cell.key`: lines of its run or its account}.
        folders: {`Cell.key`: its run's folder}.
        failed: {`Cell.key`: why its run failed}.
        parts: {`Cell.key`: how far a run is that is not whole, or why one is not reused}.
        splits: {`Cell.key`: samples of each client and class, and the classes}.
    """

    study: Study
    change: Change
    cells: list[Cell]
    missing: dict[str, UsageError] = field(default_factory=dict)
    rows: dict[str, Sequence[Row]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    failed: dict[str, ProtoflError] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    splits: dict[str, tuple[np.ndarray, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, study: Study, change: Change) -> StudyProgress:
        """Return the empty progress of a study."""
        return cls(study, change, cells_of(study, change))

    def to_run(self) -> list[Cell]:
        """Return one cell for each run."""
        return self._first(trains=True)

    def to_account(self) -> list[Cell]:
        """Return one cell for each account."""
        return self._first(trains=False)

    def _first(self, *, trains: bool) -> list[Cell]:
        chosen = [c for c in self.cells if c.options and needs_run(self.study, c) == trains]
        found = {cell.key: cell for cell in reversed(chosen) if cell.key not in self.missing}
        return [*reversed(found.values())]


def needs_run(study: Study, cell: Cell) -> bool:
    """Return True if a cell needs a run, False for an account."""
    if study.draw == "partition":
        return False
    return READERS[cell.figure.read].trains or study.kind != "account"


def finished_run(cell: Cell, runs: Path) -> Run | None:
    """Return the run of a cell if it has the required rounds.

    With ``--rounds`` those of a run count too that was begun for the study's number and has come so
    far: of methods that depend on the number (``fedkd``) it is another run than one begun for less.
    """
    request = cell.request()
    found = find(request, runs)
    if found is not None or not cell.begun or not cell.rounds or cell.rounds >= cell.begun:
        return found
    wanted = RequestedRun.of(
        replace(request, options={**request.options, "rounds": cell.begun}), ignore
    )
    seed, trials = wanted.plan.settings.seed, range(wanted.plan.settings.trials)
    for run in wanted.candidates(runs.expanduser()):
        far = all(len(run.rows_of(trial)) >= cell.rounds for trial in trials)
        if run.config["seed"] == seed and far:
            try:
                return run.part(trials, cell.rounds)
            except UsageError:
                continue
    return None


def unfinished_run(request: Request, runs: Path) -> Run | None:
    """Return the longest unfinished run that can be resumed for a request."""
    wanted = RequestedRun.of(request, ignore)
    return next(filter(wanted.can_extend, wanted.candidates(runs.expanduser())), None)


def reuse_notes(request: Request, runs: Path) -> str:
    """Why runs that were begun with these options are not the one that is asked for; "" for none.

    They were made by other code, say, or of other data.
    """
    said: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note) and event.text.startswith(str(folder)):
            said.append(event.text)

    folder = runs.expanduser()
    RequestedRun.of(request, listen).candidates(folder)
    return "; ".join(said)


def missing_inputs(
    cells: Sequence[Cell], note: Callable[[str], None], *, fetch: bool, account: bool = False
) -> dict[str, UsageError]:
    """Return the missing data or weights of cells, by `Cell.key`.

    Args:
        cells: Cells that are made by runs, or by accounts.
        note: Takes a line when something takes long.
        fetch: Whether data that can be had are downloaded; otherwise they count as missing.
        account: Whether the sizes of the classes are enough.

    Raises:
        UsageError: Something else is wrong with the options of a cell.
    """
    found: dict[str, UsageError] = {}
    known: dict[str, UsageError | None] = {}
    wanting = [cell for cell in cells if _needs_files(cell, account=account)]
    if wanting:
        found |= dict.fromkeys([cell.key for cell in wanting], _not_given(wanting))
    # Generators first: for data that are not here something may be downloaded.
    for kind in ("dataset",) if account else ("generator", "dataset"):
        for cell in cells:
            if cell.key in found:
                continue
            request = cell.request()
            settings = build({k: v for k, v in request.options.items() if v is not None})
            if kind == "generator" and not needs_generator(request):
                continue
            name = f"{kind} {getattr(settings, kind)} {settings.options.get(kind)}"
            if name not in known:
                known[name] = _lacks(kind, request, note, fetch=fetch, account=account)
            if (error := known[name]) is not None:
                found[cell.key] = error
    return found


def _lacks(
    kind: str, request: Request, note: Callable[[str], None], *, fetch: bool, account: bool
) -> UsageError | None:
    """Why a run has no data, or no generator; None where it has."""
    options = request.options
    folder = Path(options.get("data_dir") or default_data_dir())
    registry = request.registry
    try:
        if kind == "generator":
            text = build({k: v for k, v in options.items() if v is not None}).generator
            choice = choose(registry, kind, text, options.get("options", {}).get(kind))
            choice.call("outline", data_dir=folder)
            return None
        choice = data_choice(options, registry)
        outline = outline_of(choice, folder)
        if outline is None:
            choice.call("cache_key", data_dir=folder)  # a file that is missing is told
        elif account and not outline.even:
            return None
        elif fetch:
            load_data(choice, folder, note)
        else:
            return UsageError(
                f"the data set {choice.text} is not here yet, and would be downloaded"
            )
    except ProtoflError as error:
        name = options.get(kind)
        if kind == "generator":
            left = "or leave such cells out with --skip-missing"
            what = f"generator {text}: {error.what}"
            return UsageError(what, error.near, f"{error.do}; {left}" if error.do else left)
        do = f"give it, with --dataset {name}=npz:FILE for one, or leave such cells out with "
        what = error.what if str(name).partition(":")[0] in error.what else f"{name}: {error.what}"
        return UsageError(what, error.near, f"{do}--skip-missing")
    return None


def _needs_files(cell: Cell, *, account: bool) -> bool:
    """Return True if a cell lacks a file; an account needs only the sizes of a generator."""
    if not (account and cell.lacks):
        return bool(cell.lacks)
    own = {k: v for k, v in cell.options.get("set", {}).items() if not k.startswith("generator.")}
    beside = {k: v for k, v in cell.options.items() if k not in ("generator", "set")}
    return not cell.lacks.keys().isdisjoint(files_in([own, beside]))


def _not_given(cells: Sequence[Cell]) -> UsageError:
    """Return the error about missing files, with the options to add."""
    files = {name: about for cell in cells for name, about in cell.lacks.items()}
    words = [f"--file {name}=PATH" for name in files]
    for cell in cells:
        request = cell.request()
        if needs_generator(request):
            kind, said = getattr(generator_class(request), "Config", Config), request.said
            usual = {key: kind.model_fields[name].default for key, name in consents(kind).items()}
            for key, value in usual.items():
                if key not in said.get("generator", {}):
                    text = json.dumps(not value) if isinstance(value, bool) else "PATH"
                    words.append(f"--set generator.{key}={text}")
    one = len(files) == 1
    return UsageError(
        f"{'a file is' if one else f'{len(files)} files are'} needed and not given: "
        f"{', '.join(files)}",
        "; ".join(f"{name} is {about}" for name, about in files.items()),
        f"add {' '.join(dict.fromkeys(words))}; or leave such cells out with --skip-missing",
    )
