"""``protofl export``: write a client of a run to a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Debug, Which, kept_round, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render


@prints_json
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    out: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="FILE.onnx, FILE.pt2 or FILE.safetensors."),
    ],
    client: Annotated[str, option("--client", "N|NAME", "Number or name of the client.")] = "0",
    which: Which = "last",
    trial: Annotated[int, option("--trial", "N", "Number of the trial.", min=0)] = 0,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    r"""Export a client: preparation of samples, model and inference of the method in one file.

    .onnx and .pt2 files map raw samples, before any standardisation, to class scores. .safetensors
    files have the weights (but for a frozen net), the client's download, and the preparation of raw
    samples in their metadata. ONNX needs: pip install 'protofl\[onnx]'. protofl score reads .onnx,
    and .pt2 with --trust-pickle, because torch.export reads pickled objects from such a file.
    """
    target = checked("FILE", out, force=force)
    with render.waiting("exporting"):
        from protofl_workbench.recorded.recorded_run import load_run

        recorded = load_run(run)
        number = recorded.split(trial).client_of(client)
        recorded.export(number, target, which, trial, kept_round(which))
    size = target.stat().st_size
    from protofl.system.formatting import size_text

    data, shown = recorded.plan.data, f"round {which}" if which.isdecimal() else f"{which} round"
    samples = f"{data.sample}, {str(data.x.dtype).removeprefix('torch.')}"
    preparation = recorded.lacks_preparation or str(recorded.preparation)
    warning = recorded.guess_warning(number, which, trial, kept_round(which))
    if warning:
        render.console(stderr=True).print(warning, style="yellow", soft_wrap=True)
    if as_json:
        about = {"client": number, "trial": trial, "which": which, "samples": samples}
        about |= {"preparation": preparation, "outputs": list(data.output_names)}
        about |= {"warning": warning}
        print_json({"file": target, "bytes": size, **about})
        return
    file = f"{target} ({size_text(size)})"
    if target.suffix == ".safetensors":
        file += ": weights without a program; protofl score reads .onnx and .pt2"
    names = recorded.split(trial).client_names
    name = f"{number} {names[number]}" if names else str(number)
    render.pairs(
        [
            ("client", f"{name} of {recorded.name}, {shown} of trial {trial}"),
            ("samples", samples),
            ("preparation", preparation),
            ("classes" if data.task.has_classes else "outputs", ", ".join(data.output_names)),
            ("file", file),
        ]
    )
    if target.suffix == ".pt2":
        render.line(f"score samples with: protofl score --trust-pickle {target} SAMPLES")
