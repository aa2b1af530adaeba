"""``protofl card``: the card of a method, as Markdown."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl.system.files.home import expand_user
from protofl.system.files.tables import json_values
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.completion import plugin_names
from protofl_cli.options.options import Debug, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_cli.pages.method_cards import MethodCard


@prints_json
def card(
    name: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            autocompletion=plugin_names("method"),
            help="An installed method, or MODULE:CLASS or FILE.py:CLASS of a method that is not "
            "installed.",
        ),
    ],
    runs: Annotated[
        Path,
        option(
            "--runs",
            "DIR",
            "Folder of runs with further records of the benchmark, as of protofl reproduce.",
        ),
    ] = Path("runs"),
    out: Annotated[
        Path | None, option("--out", "FILE", "Write the card to this file instead of printing it.")
    ] = None,
    as_json: Json = False,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Print the card of a method: equations, payloads and their bytes, cost, figures, weak points.

    The equations and weak points are those of the method's page. Sizes and costs are measured on
    toy problems, which takes some seconds.
    """
    target = checked("--out", out, force=force) if out else None
    with render.waiting(f"measuring {name}"), contextlib.redirect_stdout(sys.stderr):
        made = _card(name, expand_user(runs))
        from protofl_cli.pages.method_cards import markdown, to_values
        from protofl_workbench.comparing.figure_table import json_text, write_output

    if target is not None:
        text = json_text(json_values(to_values(made))) if as_json else markdown(made)
        write_output(target, text)
        render.line(f"card: {target}")
    elif as_json:
        print_json(to_values(made))
    else:
        render.plain(markdown(made).rstrip("\n").splitlines())


def _card(name: str, runs: Path) -> MethodCard:
    """Make the card of a method.

    Raises:
        UsageError: The method is unknown or cannot be loaded, or the plugin is not a method that
            can be run.
    """
    from protofl.errors import UsageError
    from protofl_cli.options.check_target import contract_for
    from protofl_cli.pages.method_cards import make_card
    from protofl_workbench.cards.benchmark_figures import BENCHMARK, record_folders, settings_of
    from protofl_workbench.cards.measurements import measure
    from protofl_workbench.cards.published_figures import installed_reproductions

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
    reproductions = installed_reproductions()
    settings = [
        setting
        for benchmark in reproductions
        if benchmark.name == BENCHMARK
        for setting in settings_of(benchmark, record_folders(benchmark, runs))
    ]
    measured = measure(contract.plugin)
    return make_card(contract.label, contract.cls, about, measured, settings, reproductions)
