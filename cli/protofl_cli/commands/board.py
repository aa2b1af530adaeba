"""``protofl board``: a static leaderboard of published folders and records of a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Debug, option
from protofl_cli.screens import render


@prints_json
def board(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folders that protofl publish wrote, records of a benchmark, or folders that have "
            "some below them.",
        ),
    ],
    out: Annotated[Path, option("--out", "DIR", "The new folder of pages.")],
    title: Annotated[str, option("--title", "TEXT", "Title of the first page.")] = "Leaderboard",
    force: Annotated[
        bool, typer.Option("--force", help="Replace --out if it is a leaderboard.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a static leaderboard: HTML pages, SVG badges and board.json, for any static host.

    Only equal settings are compared: the same data, split and options, but for the method, its own
    options and the seed. Each setting has a sortable table with ranks and significance groups, and
    each method has a page. The digests of published folders are checked first.
    """
    with render.waiting("writing the leaderboard"):
        from protofl_workbench.publishing.board import board as write

        made = write(folders, out, title=title, force=force)
    if as_json:
        print_json(made.values)
        return
    rows = []
    for setting in made.values["settings"]:
        ranked = [row for row in setting["rows"] if row["rank"]]
        best = [row["method"] for row in ranked if row["best_group"]]
        first = ranked[0]["method"] if ranked else "–"
        rows.append((setting["name"], str(len(ranked)), first, str(len(best) or "–")))
    columns = ("setting", "ranked", "first", "best group")
    render.table(columns, rows, right=("ranked", "best group"), wrap=True)
    for note in made.notes:
        render.text(f"note: {note}", "dim")
    render.line(
        f"leaderboard: {out}/index.html ({made.pages} pages, {made.badges} badges; open it in a "
        "browser)"
    )
