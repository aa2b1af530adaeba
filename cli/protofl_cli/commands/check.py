"""``protofl check``: test a plugin against the contract of its kind."""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl.system.files.home import expand_user
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.completion import plugin_names
from protofl_cli.options.options import DataDir, Debug, option
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl.testing import Contract, Finding


@prints_json
def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PLUGIN",
            autocompletion=plugin_names(prefixed=True),
            help="[KIND/]NAME of an installed plugin, with its argument if it has one "
            "(model-group/torchvision:resnet18); MODULE:CLASS or FILE.py:CLASS of a plugin that is "
            "not installed; or FILE.toml of a reproduction.",
        ),
    ],
    set_: Annotated[
        list[str] | None,
        option(
            "--set",
            "KEY=VALUE",
            "Option of the plugin in all checks; repeatable (default: its check_options, "
            "otherwise the defaults)",
        ),
    ] = None,
    as_json: Json = False,
    data_dir: DataDir = None,
    debug: Debug = False,
) -> None:
    """Test a plugin against the contract of its kind, with a toy federation.

    A check that cannot run because another check fails is "not reached". Exit code: 0 if no check
    fails, 1 if a check fails, 2 if the plugin cannot be loaded. Your own tests can use the same
    checks from protofl.testing.
    """
    from protofl.system.options.parsing import assignments

    options = assignments("--set", set_ or (), "KEY=VALUE")
    # Output of the plugin goes to standard error.
    with contextlib.redirect_stdout(sys.stderr):
        contract, owner = _load(name, options, data_dir)
        from protofl.testing import checks_of, run_checks  # torch, which a wrong name does not need

        of, done = len(checks_of(contract)), itertools.count(1)
        with render.waiting("checking") as show:
            findings = run_checks(contract, lambda name: show(f"check {next(done)}/{of}: {name}"))
    outcomes = ("passed", "failed", "not reached", "skipped")
    counts = {w: sum(f.outcome == w for f in findings) for w in outcomes}
    if as_json:
        checks = [finding.to_json() for finding in findings]
        numbers = {word.replace(" ", "_"): count for word, count in counts.items()}
        print_json({**owner, **numbers, "checks": checks})
    else:
        _print(owner, findings, counts)
    if debug:
        render.passage(finding.trace for finding in findings if finding.trace)
    if counts["failed"]:
        raise typer.Exit(1)


def _load(
    name: str, options: dict[str, Any], data_dir: Path | None
) -> tuple[type[Contract], dict[str, str]]:
    """Return the contract, and where its plugin comes from."""
    from protofl.system.files.atomic import default_data_dir
    from protofl_cli.options.check_target import contract_for

    folder = expand_user(data_dir or default_data_dir()).absolute()
    with render.waiting(f"loading {name}"):
        contract = contract_for(name, options, folder)
    instance = contract()
    plugin = instance.registry.find(contract.kind, instance.label)
    return contract, {
        "plugin": plugin.label,
        "target": name if name.endswith(".toml") else plugin.target,
        "distribution": plugin.distribution,
        "version": plugin.version,
    }


def _print(owner: dict[str, str], findings: list[Finding], counts: dict[str, int]) -> None:
    installed = owner["distribution"] != "this program"
    origin = f"{owner['distribution']} {owner['version']}" if installed else "not installed"
    render.heading(owner["plugin"], f"{origin} · {owner['target']}")
    render.text()
    # Failures first; what they keep from being tried needs one row.
    shown = [f for f in findings if f.outcome != "not reached"]
    shown.sort(key=lambda f: f.outcome != "failed")
    rows = [(f.words, f.outcome, f.why) for f in shown]
    if counts["not reached"]:
        more = f"{counts['not reached']} more checks"
        rows.append((more, "not reached", "they need what failed above; --json names them"))
    render.table(("checked", "result", "why"), rows, keep=("result",), wrap=True)
    seconds = sum(finding.seconds for finding in findings)
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    render.line(f"{told} in {seconds:.1f} s", "bold red" if counts["failed"] else "bold green")
