"""``protofl evaluate``: accuracy of a run's clients on new labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from protofl_cli.json.json_output import Json, check_format, print_json, prints_json
from protofl_cli.options.options import Debug, Which, kept_round, option
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_workbench.recorded.recorded_run import Run


@prints_json
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="An .npz file with x and y, a table with the column of the labels (.csv, "
            ".parquet), a folder of images by class, or a data set as of --dataset.",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        option("--client", "N|NAME", "Number or name of a client; repeatable (default: all)"),
    ] = None,
    cross: Annotated[
        bool,
        typer.Option("--cross", help="Evaluate each model on each client's test samples."),
    ] = False,
    which: Which = "last",
    trial: Annotated[int, option("--trial", "N", "Number of the trial.", min=0)] = 0,
    format_: Annotated[
        Literal["table", "csv"], option("--format", "FORMAT", "table or csv.")
    ] = "table",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Evaluate the clients of a run on new labelled data: accuracy by client and overall.

    Raw samples go in; the preparation of the run's data set is applied to them. If the data have
    the column of --partition column:NAME, or an array client with numbers, each client is evaluated
    on its own samples, otherwise on all.
    """
    check_format(format_, as_json=as_json)
    with render.waiting("evaluating"):
        from protofl.data.task_names import GUESSES
        from protofl.errors import UsageError
        from protofl_workbench.recorded.recorded_run import load_run

        if (data is None) != cross:
            raise UsageError("evaluate takes DATA or --cross", do="give one of them")
        recorded = load_run(run)
        clients = [recorded.split(trial).client_of(name) for name in client or ()] or None
        if data is None:
            _show_cross(recorded, clients, which, trial, format_, as_json=as_json)
            return
        evaluation = recorded.evaluate(data, clients, which, trial, kept_round(which))
    notes = [*filter(None, [recorded.lacks_preparation]), *evaluation.notes]
    for note in notes:
        render.console(stderr=True).print(f"note: {note}", soft_wrap=True)
    if as_json:
        values = {"clients": evaluation.clients, "overall": evaluation.overall, "notes": notes}
        print_json({"data": evaluation.part, **values})
        return
    rows = [*evaluation.clients, {"client": "all", **evaluation.overall}]
    columns = [*evaluation.clients[0]]
    if format_ == "csv":
        from protofl_workbench.comparing.figure_table import csv_text

        render.plain(
            csv_text([{key: row.get(key) for key in columns} for row in rows]).splitlines()
        )
        return
    is_regression = recorded.plan.data.task.name == "regression"
    columns = [column for column in columns if column != "points"]
    shown = f"round {which}" if which.isdecimal() else f"{which} round"
    render.heading(f"{recorded.name}, {shown}", evaluation.part)
    cells = [[_cell(key, row.get(key)) for key in columns] for row in rows]
    if names := recorded.split(trial).client_names:
        for row, line in zip(evaluation.clients, cells, strict=False):
            line[0] += f" {names[row['client']]}"
    score = recorded.plan.data.task.score_name + POOLED * is_regression
    heads = [score if column == "accuracy" else column for column in columns]
    render.table(heads, cells, right=heads[1:])
    about, guess = evaluation.overall, GUESSES[recorded.plan.data.task.name]
    mean, std = (f"{100 * about[key]:.1f} %" for key in ("client_accuracy", "client_std"))
    several = f"{mean} ± {std} (mean and standard deviation)"
    lines = [
        *[("over clients", several)] * (len(evaluation.clients) > 1),
        ("majority guess", f"{100 * about['majority']:.1f} % ({guess})"),
    ]
    if is_regression:
        lines.append((score, "by the variance of all clients' numbers; r2 is by each client's own"))
    render.pairs(lines)


def _show_cross(
    run: Run, clients: list[int] | None, which: str, trial: int, format_: str, *, as_json: bool
) -> None:
    """Print the accuracy of each client's model on the test samples of each client."""
    from protofl_workbench.comparing.figure_table import csv_text

    accuracies = run.cross(clients, which, trial, kept_round(which)).tolist()
    known = run.split(trial).client_names or [*map(str, range(run.config["clients"]))]
    names = [known[n] for n in dict.fromkeys(clients or range(len(known)))]
    rows = [*zip(names, accuracies, strict=True)]
    if as_json:
        print_json({"clients": names, "accuracies": accuracies})
    elif format_ == "csv":
        models = [{"model": name, **dict(zip(names, row, strict=True))} for name, row in rows]
        render.plain(csv_text(models).splitlines())
    else:
        cells = [[name, *(_cell("accuracy", value) for value in row)] for name, row in rows]
        title = "a row for each model, a column for each client's test samples"
        render.table(["model", *names], cells, title=title, right=names)


POOLED = ", pooled"


def _cell(key: str, value: Any) -> str:  # noqa: ANN401 - a figure
    if key == "accuracy":
        return f"{100 * value:.1f} %"
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
