"""``protofl card``: the card of a method, as Markdown."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl_cli import render
from protofl_cli.options import Debug, option
from protofl_cli.overwriting import Force, checked

if TYPE_CHECKING:
    from protofl_cli.method_cards import Card


def card(
    name: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="An installed method, or MODULE:CLASS or FILE.py:CLASS of a method that is not "
            "installed.",
        ),
    ],
    out: Annotated[
        Path | None, option("--out", "FILE", "Write the card to this file instead of printing it.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="JSON instead of Markdown: method, distribution, version, target, shares, "
            "has_page, page, options, measured and published.",
        ),
    ] = False,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Print the card of a method: equations, payloads and their bytes, cost, figures, weak points.

    The equations and weak points are those of the method's page. Sizes and costs are measured on
    toy problems, which takes some seconds.
    """
    target = checked("--out", out, force=force) if out else None
    with render.waiting(f"measuring {name}"), contextlib.redirect_stdout(sys.stderr):
        made = _card(name)
        from protofl_cli.method_cards import markdown, to_values
        from protofl_workbench.comparing.figure_table import json_text, write_output

        text = json_text(to_values(made)) if json else markdown(made)
    if target is None:
        render.plain(text.rstrip("\n").splitlines())
        return
    write_output(target, text)
    render.line(f"card: {target}")


def _card(name: str) -> Card:
    """Make the card of a method.

    Raises:
        UsageError: The method is unknown or cannot be loaded, or the plugin is not a method that
            can be run.
    """
    from protofl.errors import UsageError
    from protofl_cli.check_target import contract_for
    from protofl_cli.method_cards import Card
    from protofl_workbench.cards.measurements import measure
    from protofl_workbench.cards.method_pages import page_of
    from protofl_workbench.cards.published_figures import installed_reproductions, published_rows

    contract = contract_for(name)()
    if contract.kind != "method":
        raise UsageError(
            f"{name} is a {contract.kind}, and only methods have cards",
            do=f"see: protofl show {name}",
        )
    if hasattr(contract.cls, "donates"):
        raise UsageError(
            f"{name} only provides hooks for other methods, and is not run alone",
            do=f"see: protofl show {name}",
        )
    plugin = contract.registry.find("method", contract.label)
    about = {
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.target,
    }
    return Card(
        contract.label,
        about,
        contract.cls,
        page_of(contract.label, contract.cls),
        measure(contract.plugin),
        published_rows(contract.label, installed_reproductions()),
    )
