"""``protofl verify``: check a published folder, and do one of its runs again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import DataDir, Debug, TrustCode, option
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_workbench.publishing.verification import Repeated, Verification


@prints_json
def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that protofl publish wrote.")
    ],
    run: Annotated[
        str | None,
        option("--run", "NAME", "The run to repeat (default: one is drawn at random)"),
    ] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Repeat no run.")] = False,
    rounds: Annotated[
        int | None,
        option("--rounds", "N", "Repeat only the first N rounds of the first trial.", min=1),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        option(
            "--dataset",
            "NAME=FORM:PATH",
            "Place of data that are files: npz:set.npz=npz:/data/set.npz; repeatable.",
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        option(
            "--file",
            "OPTION=PATH",
            "Place of another file of the run: init=weights.safetensors; repeatable.",
        ),
    ] = None,
    digest: Annotated[
        str,
        option(
            "--digest",
            "SHA256",
            "Digest of the publication, or its first digits, as a paper prints it.",
            show_default=False,
        ),
    ] = "",
    tolerance: Annotated[
        float,
        option(
            "--tolerance",
            "SHARE",
            "Allowed difference of the accuracy of a round on another type of machine or with "
            "another version.",
            min=0.0,
            max=1.0,
        ),
    ] = 0.02,
    device: Annotated[
        str | None,
        option("--device", "DEVICE", "Device of the repeated run (default: as published)"),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Check a published folder, and do one of its runs again.

    Files must have their digests, and summaries and page must follow from the rows. With
    the same torch on the same type of processor the repeated rows must be equal to the last bit.
    Otherwise accuracies may differ by --tolerance, and the last line says why. It also says what
    was not checked. Exit code 1: a file or a figure is not as published.
    """
    from protofl.system.options.parsing import assignments

    datasets = assignments("--dataset", dataset or [], "NAME=FORM:PATH")
    files = assignments("--file", file or [], "OPTION=PATH")
    from protofl.runs.lifecycle.progress_lines import Lines
    from protofl_workbench.publishing.layout import Changed, check_digests
    from protofl_workbench.publishing.verification import verify as check

    try:
        result = check(
            folder,
            run=run,
            start=not no_run,
            rounds=rounds,
            datasets=datasets,
            files=files,
            digest=digest,
            tolerance=tolerance,
            data_dir=data_dir,
            device=device,
            follow=Lines(),
            note=render.note,
        )
    except Changed as problem:
        if not as_json:
            raise
        found = asdict(check_digests(folder))
        about = {"confirmed": False, "what": problem.what, "repeated": None}
        about |= {"not_repeated": [], "not_checked": []}
        print_json({"folder": str(folder), **about, **found})
        raise typer.Exit(1) from None
    if as_json:
        print_json({"folder": str(folder), **_values(result)})
    else:
        _print(result, folder)
    if not result.confirmed:
        raise typer.Exit(1)


def _values(result: Verification) -> dict[str, Any]:
    repeated = result.repeated
    about = asdict(repeated) | {"confirmed": repeated.confirmed} if repeated else None
    left = {"not_repeated": result.not_repeated, "not_checked": result.not_checked}
    said = {"confirmed": result.confirmed, "what": result.outcome, "repeated": about}
    return said | left | asdict(result.digests)


def _print(result: Verification, folder: Path) -> None:
    from protofl.system.formatting import count

    rows = [
        ("folder", f"{folder}: {result.values['title']}"),
        ("files", f"all {count(result.digests.files, 'file')} have their digests"),
        ("digest", result.digests.digest),
    ]
    if result.repeated is not None:
        rows += _about(result.repeated)
    render.pairs(rows)
    equal = result.repeated is not None and result.repeated.equal
    colour = ("green" if equal else "yellow") if result.confirmed else "red"
    render.line(result.outcome, f"bold {colour}")


def _about(repeated: Repeated) -> list[tuple[str, str]]:
    from protofl.system.formatting import count

    rounds = count(repeated.rounds, "round")
    rows = [
        ("repeated run", f"{repeated.name}, {rounds} in {repeated.seconds:,.1f} s"),
        ("equal to the bit", f"{repeated.equal_rounds} of {rounds}"),
    ]
    if repeated.accuracy is not None and repeated.accuracy_here is not None:
        both = f"published {100 * repeated.accuracy:.2f}%, here {100 * repeated.accuracy_here:.2f}%"
        rows.append(("last accuracy", both))
    if repeated.equal_rounds < repeated.rounds and repeated.largest is not None:
        rows.append(("largest difference", f"{100 * repeated.largest:.2f} points in a round"))
    differing = (*repeated.facts, *repeated.first)[:5]
    rows += [(name, f"published {then}, here {now}") for name, then, now in differing]
    return rows + [("differs here", reason) for reason in repeated.reasons]
