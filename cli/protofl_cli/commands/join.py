"""``protofl join``: add a client that comes after a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Debug, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render

SHARES = {
    "accuracy": "before fine-tuning", "fine_tuned_accuracy": "after fine-tuning",
    "majority": "majority guess",
}  # fmt: skip
"""{share of the result: name on the screen}."""


@prints_json
def join(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Its rows, as a file that protofl evaluate reads.")
    ],
    model: Annotated[
        str | None, option("--model", "NAME", "Its architecture (default: that of a next client)")
    ] = None,
    fine_tune: Annotated[
        int | None, option("--fine-tune", "N", "Epochs (default: 10 × --local-epochs)", min=1)
    ] = None,
    out: Annotated[
        Path | None, option("--export", "FILE", "Export the fine-tuned client: FILE.onnx, ….")
    ] = None,
    trial: Annotated[int, option("--trial", "N", "Number of the trial.", min=0)] = 0,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Add a client to a finished run: it gets the server's state, is fine-tuned and scored.

    It is trained and scored as an unseen client of a run (--unseen). The run folder stays as it is.
    """
    target = None if out is None else checked("--export", out, force=force)
    with render.waiting("fine-tuning"):
        from protofl_workbench.recorded.recorded_run import load_run

        late = load_run(run).join(data, model, fine_tune, target, trial)
    if as_json:
        print_json({**late, "file": target})
        return
    shown = {key: f"{100 * value:.1f} %" if key in SHARES else value for key, value in late.items()}
    shown |= {"file": target} if target else {}
    render.pairs([(SHARES.get(key, key.replace("_", " ")), str(v)) for key, v in shown.items()])
