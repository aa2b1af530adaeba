"""``protofl score``: class scores of samples by an exported client."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from protofl_cli.json.json_output import Json, check_format, print_json, prints_json
from protofl_cli.options.options import Debug, option
from protofl_cli.screens import render

if TYPE_CHECKING:
    from torch import Tensor

    from protofl_workbench.recorded.exported import Exported


@prints_json
def score(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A file of protofl export: .onnx or .pt2.")
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Images, texts (.txt), tables with named columns (.csv, .parquet), .npy with an "
            "array of samples, or .npz with x or x_test.",
        ),
    ],
    format_: Annotated[
        Literal["table", "csv"],
        option("--format", "FORMAT", "table, or csv with the scores of all classes."),
    ] = "table",
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Read a .pt2 file, which can contain code.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Score raw samples with an exported client: the class of each, by the method's inference.

    Raw rows of tables go in: the file contains their columns and statistics.

    Scores are those of the method, such as logits, or negative distances to prototypes. Of
    multi-label data, the labels with positive logits are printed; of a regression, the number; of a
    language model, the perplexity of each text.
    """
    check_format(format_, as_json=as_json)
    with render.waiting("scoring"):
        from protofl_workbench.recorded.exported import read_exported

        client = read_exported(bundle, trust_pickle=trust_pickle)
        samples = [(str(file), client.samples_in(file)) for file in files]
        lines = [line for file, x in samples for line in _lines(file, client, client.scores(x))]
    for line in filter(None, (client.lacks, client.warning)):
        render.console(stderr=True).print(line, style="yellow", soft_wrap=True)
    if as_json:
        print_json({"samples": lines})
        return
    if format_ == "table":
        columns = ["file", "sample", _ANSWER[client.sample.task.name]]
        rows = [[*map(str, [*line.values()][:3])] for line in lines]
        if client.sample.task.has_classes:
            columns.append("score")
            rows = [[*row, _best(line)] for row, line in zip(rows, lines, strict=True)]
        render.table(columns, rows, right=("sample", "score", "number", "perplexity"), wrap=True)
        return
    from protofl_workbench.comparing.figure_table import csv_text

    flat = [
        {key: line[key] for key in line if key != "scores"}
        | {f"score {name}": value for name, value in line["scores"].items()}
        for line in lines
    ]
    render.plain(csv_text(flat).splitlines() if flat else [])


_ANSWER = {
    "classification": "class",
    "multilabel": "labels",
    "regression": "number",
    "language-model": "perplexity",
}


def _lines(file: str, client: Exported, scores: Tensor) -> Iterator[dict[str, Any]]:
    """Yield a line for each sample; a class that cannot be predicted has the score None."""
    task = client.sample.task
    answers = task.answers(scores, client.classes)
    for sample, (answer, row) in enumerate(zip(answers, scores.tolist(), strict=True)):
        named = {
            name: value if math.isfinite(value) else None
            for name, value in zip(client.classes, row, strict=True)
        }
        yield {"file": file, "sample": sample, _ANSWER[task.name]: answer, "scores": named}


def _best(line: dict[str, Any]) -> str:
    value = line["scores"][line["class"]]
    return "" if value is None else f"{value:.4g}"
