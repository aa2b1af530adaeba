"""``protofl publish``: finished runs as one folder to share."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Debug, TrustCode, option
from protofl_cli.screens import render


@prints_json
def publish(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, folders of runs, or the folder of a sweep."
        ),
    ],
    out: Annotated[Path, option("--out", "DIR", "The new folder.")],
    title: Annotated[
        str,
        option(
            "--title", "TEXT", "Title (default: made from methods and data)", show_default=False
        ),
    ] = "",
    description: Annotated[
        str, option("--description", "TEXT", "A few sentences.", show_default=False)
    ] = "",
    author: Annotated[
        list[str] | None,
        option("--author", "NAME", "Name of an author; repeatable."),
    ] = None,
    license: Annotated[
        str,
        option(
            "--license",
            "NAME",
            "Name of the license, such as CC-BY-4.0 (default: none)",
            show_default=False,
        ),
    ] = "",
    include: Annotated[
        str,
        option(
            "--include",
            "PART,PART,…",
            "weights, predictions, preparation, client-names: left out without this option.",
            show_default=False,
        ),
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace --out if it is a published folder.")
    ] = False,
    as_json: Json = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Write finished runs into one folder that a paper can point to.

    The folder has records, configurations, sources of own plugins, an HTML page, the papers to cite
    (BibTeX), and the SHA-256 of every file. Paths, names of users, data and weights are left out.
    Check the folder anywhere with protofl verify DIR.
    """
    notes: list[str] = []
    with render.waiting("publishing"):
        from protofl_workbench.publishing.publication import publish as write

        made = write(
            runs,
            out,
            title=title,
            description=description,
            authors=author or (),
            license=license,
            include=_words(include),
            force=force,
            note=notes.append,
        )
    left_out = made.values["left_out"]
    if as_json:
        values = asdict(made) | {"folder": str(out), "notes": notes, "left_out": left_out}
        del values["values"]
        print_json(values)
        return
    from protofl.system.formatting import count, size_text

    render.pairs(
        [
            ("published", f"{out} ({count(made.files, 'file')}, {size_text(made.size)})"),
            ("runs", ", ".join(made.runs)),
            ("digest", made.digest),
            ("left out", ", ".join(one.partition(":")[0] for one in left_out)),
            ("check it", f"protofl verify {out} --digest {made.digest[:16]}"),
        ]
    )
    for line in notes:
        render.text(f"note: {line}", "dim")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
