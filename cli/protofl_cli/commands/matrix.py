"""``protofl matrix``: which hooks and loss terms of methods run in which others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl_cli import render
from protofl_cli.options import Block, Debug
from protofl_cli.overwriting import Force, checked

if TYPE_CHECKING:
    from protofl.testing.mixing import Cell, Mixer

    from protofl_cli.mixing_page import Marks


def matrix(
    method: Annotated[
        str | None,
        typer.Argument(metavar="METHOD", help="One method's row and column; all where left out."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the matrix of all methods as Markdown."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a list of objects, one for a combination.")
    ] = False,
    force: Force = False,
    block: Block = None,
    debug: Debug = False,
) -> None:
    """Try what two methods give each other: --use and --add HOOK=METHOD, --add local_loss=….

    Each goes through the dry step on a tiny federation: it runs, or is refused with what it lacks.
    Exit code 1 where an outcome is unclear: another error than a refusal.
    """
    from protofl.discovery.registry import Registry
    from protofl.errors import UsageError
    from protofl.testing.donors import methods_to_run
    from protofl.testing.mixing import UNCLEAR, mixer

    if out is not None and (method or json):
        raise UsageError(
            "--out writes the page of all methods", do="leave METHOD and --json out, or --out"
        )
    if out is not None:
        checked("--out", out, force=force)
    registry = Registry(block or ())
    names = methods_to_run(registry)
    donated = getattr(registry.load("method", method), "donates", ()) if method else ()
    if donated:
        raise UsageError(
            f"{method} is there for other methods alone",
            do=f"try it with one: protofl run METHOD --use {donated[0]}={method}",
        )
    with mixer(registry) as made:
        cells = _row_and_column(made, method, names) if method else _all(made, names)
    if json:
        from json import dumps

        render.plain([dumps([asdict(cell) for cell in cells], indent=1)])
    elif out is not None:
        _write(out, cells)
    elif method is not None:
        _show(method, cells)
    else:
        _show_counts(cells)
    unclear = [cell for cell in cells if cell.outcome == UNCLEAR]
    for cell in unclear:
        render.error(f"{cell.main}, {cell.place or 'alone'} of {cell.donor}: {cell.message}")
    if unclear:
        raise typer.Exit(1)


def _all(made: Mixer, names: Sequence[str]) -> list[Cell]:
    cells = []
    for number, name in enumerate(names):
        with render.waiting(f"{name} with the hooks and terms of others, {number}/{len(names)}"):
            cells += made.row(name, names)
    return cells


def _row_and_column(made: Mixer, method: str, names: Sequence[str]) -> list[Cell]:
    with render.waiting(f"{method} by itself, and with the hooks and terms of others"):
        cells = [made.alone(method), *made.row(method, names)]
    with render.waiting(f"others with the hooks and terms of {method}"):
        for name in names:
            cells += made.row(name, [method])
    return cells


def _write(out: Path, cells: Sequence[Cell]) -> None:
    from protofl.errors import UsageError

    from protofl_cli.mixing_page import page

    try:
        out.write_text(page(cells), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out} can't be written: {error}") from None
    _show_counts(cells)


def _show_counts(cells: Sequence[Cell]) -> None:
    from protofl_cli.mixing_page import Marks, counts

    rows = [tuple(cell.strip("`*") for cell in row) for row in counts(cells)]
    numbers = ("combinations", "run", "refused", "unclear")
    render.table(("", *numbers), rows, right=numbers)
    reasons = [(reason.replace("`", ""), number) for _, reason, number in Marks(cells).legend()]
    if reasons:
        render.table(("refused, as it", "combinations"), reasons, right=("combinations",))


def _show(method: str, cells: Sequence[Cell]) -> None:
    """One method: what it takes from others, what others take from it, and the reasons."""
    from protofl_cli.mixing_page import Marks

    marks = Marks(cells)
    alone, *mixed = cells
    render.pairs([(f"{method} by itself", alone.message or "runs")])
    render.text()
    _show_side(f"{method} takes", [c for c in mixed if c.main == method], marks)
    _show_side(f"{method} gives", [c for c in mixed if c.main != method], marks)
    rows = [("✓", "it runs"), ("1", "it runs with clients of one architecture")]
    rows += [(mark, f"refused: {why.replace('`', '')}") for mark, why, _ in marks.legend()]
    render.table(("mark", "meaning"), rows)


def _show_side(title: str, cells: Sequence[Cell], marks: Marks) -> None:
    """The hooks as grids; of each loss term where it runs and where not."""
    from protofl.hookspecs.method import ROUND_HOOKS
    from protofl.testing.mixing import ADD, BESIDE

    takes = title.endswith("takes")
    found = {(c.donor if takes else c.main, c.place): marks.of(c) for c in cells}
    others = sorted({other for other, place in found if place != ADD})
    for option, places in (("--use", {hook: hook for hook in ROUND_HOOKS}), ("--add", BESIDE)):
        rows = [(other, *(found[other, place] for place in places)) for other in others]
        heads = ("of" if takes else "to", *(hook.replace("_", " ") for hook in places.values()))
        render.table(heads, rows, title=f"{title}: {option} HOOK=METHOD")
    terms: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        if cell.place == ADD:
            by_mark = terms.setdefault(cell.donor, {})
            by_mark.setdefault(marks.of(cell), []).append("" if takes else cell.main)
    lines = [
        (term, "; ".join(f"{m} {', '.join(mains)}".strip() for m, mains in by_mark.items()))
        for term, by_mark in terms.items()
    ]
    heads = ("loss term", "" if takes else "in")
    render.table(heads, lines, title=f"{title}: --add local_loss=METHOD.TERM")
