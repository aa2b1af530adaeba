"""Data and weights that a study's cells need and that are not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from protofl.discovery.registry import Registry
from protofl.errors import ProtoflError, UsageError
from protofl.files.folders import default_data_dir
from protofl.plan.inputs import load_data
from protofl.plan.settings import build
from protofl.plugin.choice import choose
from protofl.request.request import Request
from protofl.studies.account import data_choice, outline_of
from protofl.studies.cells import Cell


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
    for cell in cells:
        if cell.key in found:
            continue
        request = cell.request()
        settings = build({k: v for k, v in request.options.items() if v is not None})
        parts = {"dataset": settings.dataset}
        if _needs_generator(request, settings.method):
            parts["generator"] = settings.generator
        for kind, text in parts.items():
            own = settings.options.get(kind)
            name = f"{kind} {text} {own}"
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
    registry = Registry(options.get("block") or (), request.extra, options.get("classes"))
    try:
        if kind == "generator":
            text = str(options.get("generator"))
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
        do = f"give it, with --dataset {name}=npz:FILE for one, or leave such cells out with "
        what = error.what if str(name).partition(":")[0] in error.what else f"{name}: {error.what}"
        return UsageError(what, error.near, f"{do if kind == 'dataset' else ''}--skip-missing")
    return None


def _needs_generator(request: Request, method: str) -> bool:
    names = {method, *request.options.get("use", {}).values()}
    registry = Registry(request.options.get("block") or (), request.extra)
    loaded: list[Any] = [registry.load("method", str(name)) for name in names]
    return any(getattr(plugin, "needs_generator", False) for plugin in loaded)
