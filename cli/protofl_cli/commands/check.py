"""``protofl check``: hold a plugin against the contract of its kind."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl_cli import render
from protofl_cli.options import DataDir, Debug

if TYPE_CHECKING:
    from protofl.testing import Contract, Finding

LONGEST = 300
"""Characters of a reason in the table; --json has all of it."""


def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PLUGIN",
            help="[KIND/]NAME of an installed plugin, perhaps with its argument "
            "(model-group/torchvision:resnet18); MODULE:CLASS or FILE.py:CLASS of one that need "
            "not be installed; FILE.toml of a recipe or a study.",
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of the plugin in all checks; repeatable. Others are those of its "
            "check_options, or their defaults.",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print an object with plugin, target, distribution, version, passed, failed, "
            "not_reached, skipped and the list checks.",
        ),
    ] = False,
    data_dir: DataDir = None,
    debug: Debug = False,
) -> None:
    """Check a plugin: what every plugin of its kind promises, tried on a toy.

    Prints what was checked, what passed, what failed and why; what could not be tried because
    another check fails is "not reached" and points to it. Exit code 0 when nothing failed, 1
    when something did, 2 when the plugin can't be loaded. The same checks for your own tests are
    in protofl.testing.
    """
    from protofl.system.options.parsing import assignments

    given = assignments("--set", set_ or (), "KEY=VALUE")
    # What the plugin prints must not get among the output.
    with contextlib.redirect_stdout(sys.stderr):
        contract, owner = _load(name, given, data_dir)
        findings = _run(contract)
    words = ("passed", "failed", "not reached", "skipped")
    counts = {w: sum(f.outcome == w for f in findings) for w in words}
    if json:
        from json import dumps

        checks = [finding.to_json() for finding in findings]
        numbers = {word.replace(" ", "_"): count for word, count in counts.items()}
        render.plain([dumps({**owner, **numbers, "checks": checks}, indent=1, ensure_ascii=False)])
    else:
        _print(owner, findings, counts)
    if debug:
        render.passage(finding.trace for finding in findings if finding.trace)
    if counts["failed"]:
        raise typer.Exit(1)


def _load(
    name: str, given: dict[str, Any], data_dir: Path | None
) -> tuple[type[Contract], dict[str, str]]:
    """The contract, and whose plugin it holds."""
    from protofl.system.files.atomic import default_data_dir
    from protofl_cli.check_target import contract_for

    folder = (data_dir or default_data_dir()).expanduser().absolute()
    with render.waiting(f"loading {name}"):
        contract = contract_for(name, given, folder)
    found = contract()
    plugin = found.registry.find(contract.kind, found.label)
    return contract, {
        "plugin": plugin.label,
        "target": name if name.endswith(".toml") else plugin.target,
        "distribution": plugin.distribution,
        "version": plugin.version,
    }


def _run(contract: type[Contract]) -> list[Finding]:
    from protofl.testing import checks_of, run_checks

    bar, count, done = render.Bars(), len(checks_of(contract)), 0

    def report(words: str) -> None:
        nonlocal done
        bar.show("checking", words, done / count)
        done += 1

    try:
        return run_checks(contract, report)
    finally:
        bar.stop()


def _print(owner: dict[str, str], findings: list[Finding], counts: dict[str, int]) -> None:
    installed = owner["distribution"] != "this program"
    origin = f"{owner['distribution']} {owner['version']}" if installed else "not installed"
    render.heading(owner["plugin"], f"{origin} · {owner['target']}")
    render.text()
    # Failures first; what they keep from being tried needs one row.
    shown = [f for f in findings if f.outcome != "not reached"]
    shown.sort(key=lambda f: f.outcome != "failed")
    rows = [(f.words, f.outcome, shorten(f.why, LONGEST, placeholder=" …")) for f in shown]
    if counts["not reached"]:
        more = f"{counts['not reached']} more checks"
        rows.append((more, "not reached", "they need what failed above; --json names them"))
    render.table(("checked", "result", "why"), rows, keep=("result",), wrap=True)
    seconds = sum(finding.seconds for finding in findings)
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    render.line(f"{told} in {seconds:.1f} s", "bold red" if counts["failed"] else "bold green")
