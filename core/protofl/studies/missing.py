"""Data and weights that a study's cells need and that are not here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from protofl.errors import ProtoflError, UsageError
from protofl.files.folders import default_data_dir
from protofl.options.declared import Config, consents
from protofl.options.table import build
from protofl.plan.inputs import load_data
from protofl.plugin.choice import choose
from protofl.request.request import Request
from protofl.studies.account import data_choice, outline_of
from protofl.studies.cells import Cell
from protofl.studies.given import files_in, generator_class, needs_generator


def check_here(
    cells: Sequence[Cell], note: Callable[[str], None], *, fetch: bool, account: bool = False
) -> dict[str, UsageError]:
    """What cells lack, by `Cell.key`; nothing for cells that have all.

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
    """Whether a cell lacks a file of the user's; an account asks of a generator its sizes alone."""
    if not (account and cell.lacks):
        return bool(cell.lacks)
    own = {k: v for k, v in cell.options.get("set", {}).items() if not k.startswith("generator.")}
    beside = {k: v for k, v in cell.options.items() if k not in ("generator", "set")}
    return not cell.lacks.keys().isdisjoint(files_in([own, beside]))


def _not_given(cells: Sequence[Cell]) -> UsageError:
    """The error about files that are the user's to give, with the words to type."""
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
