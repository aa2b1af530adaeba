"""``protofl verify``: check a published folder, and do one of its runs again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl_cli import render
from protofl_cli.json_output import Json, print_json, prints_json
from protofl_cli.options import DataDir, Debug, TrustCode, option

if TYPE_CHECKING:
    from protofl_workbench.publishing.verification import Repeated, Verification


@prints_json("protofl_cli.json_models.sharing:Verified")
def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that protofl publish wrote.")
    ],
    run: Annotated[
        str | None,
        option("--run", "NAME", "The run to repeat (default: the one that took least time)"),
    ] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Check digests only.")] = False,
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
    """Check the digests of a published folder, and do one of its runs again.

    With the same torch on the same type of processor the figures must be equal to the last bit.
    Otherwise accuracies may differ by --tolerance, and a line says why. Exit code 1: a file or a
    figure is not as published.
    """
    from protofl.system.options.parsing import assignments

    datasets = assignments("--dataset", dataset or [], "NAME=FORM:PATH")
    files = assignments("--file", file or [], "OPTION=PATH")
    from protofl.runs.progress_lines import default_progress
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
            follow=default_progress(),
            note=render.note,
        )
    except Changed as problem:
        if not as_json:
            raise
        found = asdict(check_digests(folder))
        about = {"confirmed": False, "what": problem.what, "repeated": None}
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
    what = "" if result.confirmed else "the repeated run has other figures"
    digests = asdict(result.digests)
    return {"confirmed": result.confirmed, "what": what, "repeated": about, **digests}


def _print(result: Verification, folder: Path) -> None:
    from protofl.system.formatting import count

    rows = [
        ("folder", f"{folder}: {result.values['title']}"),
        ("files", f"all {count(result.digests.files, 'file')} are as published"),
        ("digest", result.digests.digest),
    ]
    if result.repeated is not None:
        rows += _about(result.repeated)
    render.pairs(rows)
    if result.repeated is None:
        render.line("verified: digests; no run was repeated", "bold green")
    elif result.confirmed:
        how = "to the last bit" if result.repeated.equal_rounds == result.repeated.rounds else (
            f"within {100 * result.repeated.tolerance:g} points of accuracy"
        )  # fmt: skip
        render.line(f"verified: digests, and {result.repeated.name} {how}", "bold green")
    else:
        render.line(f"not confirmed: {result.repeated.name} has other figures here", "bold red")


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
    if repeated.equal_rounds < repeated.rounds:
        rows.append(("largest difference", f"{100 * repeated.largest:.2f} points in a round"))
        rows += [(name, f"published {then}, here {now}") for name, then, now in repeated.first[:5]]
    return rows + [("differs here", reason) for reason in repeated.reasons]
