"""``protofl bench``: seconds a round by stage and peak memory of a table of cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl_cli import render
from protofl_cli.bench_tables import agreement_rows, case_rows, machine_line, speed_rows, stage_rows
from protofl_cli.interrupts import interrupted
from protofl_cli.options import DataDir, Debug
from protofl_cli.overwriting import Force, checked

if TYPE_CHECKING:
    from protofl.bench.measure import Request

BUSY = 0.25
"""Load per core before the start from which on a note is printed."""


def _option(panel: str, flag: str, metavar: str, help: str, **extra: Any) -> Any:  # noqa: ANN401
    return typer.Option(f"--{flag}", metavar=metavar, help=help, rich_help_panel=panel, **extra)


def _measured(flag: str, metavar: str, help: str, **extra: Any) -> Any:  # noqa: ANN401
    return _option("What is measured", flag, metavar, help, **extra)


def _run(flag: str, metavar: str, help: str, **extra: Any) -> Any:  # noqa: ANN401
    return _option("How it is run", flag, metavar, help, **extra)


def _data(flag: str, metavar: str, help: str) -> Any:  # noqa: ANN401
    return _option("Data", flag, metavar, help)


def _output(flag: str, metavar: str, help: str) -> Any:  # noqa: ANN401
    return _option("Output", flag, metavar, help)


LIST = typer.Option("--list", help="List the cases and end.", rich_help_panel="What is measured")
AGAINST = _measured(
    "against",
    "FILE.py",
    "Another loop to measure in turn and to compare results with, such as benchmarks/naive.py.",
)
REPEATS = _measured("repeats", "N", "Measures of each loop (≥ 1; default: 5)", min=1)
ROUNDS = _measured("rounds", "N", "Rounds of one measure (≥ 1; default: 1)", min=1)
CHECK = _measured(
    "check-rounds",
    "N",
    "Rounds after which both loops are compared in float64; 0 leaves it out (default: 2)",
    min=0,
)
FRESH = typer.Option(
    "--fresh",
    help="Start the loops anew for every measure.",
    rich_help_panel="What is measured",
)
CLIENTS = _measured("clients", "N", "Clients in place of the cases' (≥ 1)", min=1)
SAMPLES = _measured("samples", "N", "Training samples a client, in place of the cases'", min=1)
FOLDER = _data(
    "data",
    "DIR",
    "A folder with mnist….npz and cifar10….npz (default: the data sets of these names, which are "
    "downloaded on first use)",
)
DATASET = _data(
    "dataset",
    "WORD=NAME[:PATH]",
    "Where the data of cases come from: mnist=npz:FILE, mnist=fashion-mnist; repeatable.",
)
BACKEND = _run("backend", "NAME", "Where hosts live (default: auto)")
WORKERS = _run("workers", "N", "Hosts (default: one per core)", min=0)
ENGINE = _run("engine", "NAME", "The training engine (default: eager)")
PRECISION = _run("precision", "NAME", "fp32 or bf16 (default: the case's)")
DEVICE = _run("device", "DEVICE", "Of both loops (default: auto)")
THREADS = _run("server-threads", "N", "Threads of the server's hooks (default: 1)", min=1)
SET = _run("set", "[NAME.]KEY=VALUE", "An option of a plugin, as for protofl run; repeatable.")
JSON = _output("json", "FILE", "Write everything that was measured.")
CHART = _output("chart", "FILE.png", "Draw the seconds a round.")


def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CASE]...",
            help="Cases or patterns ('mnist-*', all); by default four small ones on digits.",
        ),
    ] = None,
    list_: Annotated[bool, LIST] = False,
    against: Annotated[Path | None, AGAINST] = None,
    repeats: Annotated[int, REPEATS] = 5,
    rounds: Annotated[int, ROUNDS] = 1,
    check_rounds: Annotated[int, CHECK] = 2,
    fresh: Annotated[bool, FRESH] = False,
    clients: Annotated[int | None, CLIENTS] = None,
    samples: Annotated[int | None, SAMPLES] = None,
    data: Annotated[Path | None, FOLDER] = None,
    dataset: Annotated[list[str] | None, DATASET] = None,
    data_dir: DataDir = None,
    backend: Annotated[str | None, BACKEND] = None,
    workers: Annotated[int | None, WORKERS] = None,
    engine: Annotated[str | None, ENGINE] = None,
    precision: Annotated[str | None, PRECISION] = None,
    device: Annotated[str | None, DEVICE] = None,
    server_threads: Annotated[int | None, THREADS] = None,
    set_: Annotated[list[str] | None, SET] = None,
    json_: Annotated[Path | None, JSON] = None,
    chart: Annotated[Path | None, CHART] = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Measure seconds a round by stage and peak memory.

    Every case's loops run in processes of their own and are measured in turn; round 0 is left out.
    With --against a second loop is measured, and the table has the ratio of both and whether they
    reach the same weights, knowledge and accuracies.
    """
    from protofl.bench.cases import CASES, choose

    chosen = choose(cases or ())
    if list_:
        columns = ["case", "method", "models", "data", "clients × samples", "part", "target"]
        rows = case_rows(chosen if cases else CASES)
        render.table(columns, rows, right=("clients × samples", "target"))
        return
    for flag, path in (("--json", json_), ("--chart", chart)):
        if path is not None:
            checked(flag, path, force=force)
    _check_against(against)
    given = {
        "backend": backend,
        "workers": workers,
        "engine": engine,
        "precision": precision,
        "device": device,
        "server_threads": server_threads,
    }
    options = {key: value for key, value in given.items() if value is not None}
    options |= _plugin_options(set_ or [], {case.method for case in chosen})
    with render.waiting("loading"):
        from protofl.bench.measure import Request
        from protofl.files.folders import default_data_dir
        from protofl.options.written import assignments

        request = Request(
            cases=chosen,
            repeats=repeats,
            rounds=rounds,
            against=against,
            check=check_rounds,
            fresh=fresh,
            data=data,
            datasets=assignments("--dataset", dataset or [], "WORD=NAME[:PATH]"),
            options=options,
            clients=clients,
            samples=samples,
            data_dir=data_dir or default_data_dir(),
        )
    result = _followed(request, json_)
    _show(result)
    if chart is not None:
        from protofl.bench.chart import draw

        draw(result, chart)
        render.line(f"chart: {chart}", "dim")
    if json_ is not None:
        render.line(f"figures: {json_}", "dim")


def _plugin_options(set_: list[str], methods: set[str]) -> dict[str, Any]:
    """What --set holds; a bare key is the option of the cases' method, if they have one."""
    from protofl.errors import UsageError
    from protofl.options.written import assignments

    values = assignments("--set", set_, "[NAME.]KEY=VALUE")
    plain = [key for key in values if "." not in key]
    if plain and len(methods) > 1:
        raise UsageError(
            f"--set {plain[0]}={values[plain[0]]}: these cases have several methods",
            f"they have {', '.join(sorted(methods))}",
            "name cases of one method",
        )
    if not values:
        return {}
    from protofl.options.written import expand_set

    return {"options": expand_set(values, min(methods))}


def _followed(request: Request, json_: Path | None) -> dict[str, Any]:
    """Measure, with a line for every case; what is finished is in the file at once."""
    from protofl.bench.measure import measure

    bar, where, kept = render.Bar(), "", False

    def follow(event: str, values: dict[str, Any]) -> None:
        nonlocal where, kept
        if event == "case":
            where = f"{values['case'].name} ({values['number'] + 1} of {values['count']})"
            if not bar.live:
                bar.line(f"measuring {where}")
        elif event == "step":
            bar.show(where, values["text"])
        elif event == "done" and json_ is not None:
            json_.write_text(json.dumps(values["result"], indent=1, allow_nan=False) + "\n")
            kept = True

    try:
        return measure(request, follow)
    except KeyboardInterrupt as stop:
        bar.stop()
        do = f"finished cases are in {json_}" if kept else ""
        raise typer.Exit(interrupted(stop, do)) from None
    finally:
        bar.stop()


def _show(result: dict[str, Any]) -> None:
    columns, rows = speed_rows(result)
    render.text()
    render.table(columns, rows, right=columns[1:])
    if result["against"]:
        columns, rows = agreement_rows(result)
        title = "The same work? Largest relative differences of weights and knowledge"
        render.table(columns, rows, right=columns[2:], title=title)
    columns, rows = stage_rows(result)
    render.table(columns, rows, right=columns[1:], title="Seconds by stage (medians)")
    render.text(
        "start: from launch until round 0, and building clients; not part of a round. All stages "
        "but server and total are summed over hosts, so that they may exceed the total; cpu is "
        "the time of all cores, idle ones left out.",
        "dim",
    )
    render.text(machine_line(result), "dim")
    load, cores = result["load_before"], result["cores"]
    if load is not None and load > BUSY * cores:
        render.text(
            f"note: the machine was busy before (load {load:.1f} on {cores} cores). Measure again "
            "when it is quiet: what runs with several threads suffers most.",
            "yellow",
        )


def _check_against(path: Path | None) -> None:
    from protofl.errors import UsageError

    if path is not None and not path.is_file():
        raise UsageError(
            f"--against {path}: there is no such file",
            do="the naive loop is benchmarks/naive.py of protofl's repository; see docs/bench.md",
        )
