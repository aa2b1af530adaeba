"""``protofl reproduce``: our figures next to the published ones of tables and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from protofl_cli.interrupts import interrupted, put_off
from protofl_cli.json.json_output import Json, check_format, print_json, prints_json
from protofl_cli.options.options import DataDir, Debug, TrustCode, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.options.reproduction_options import (
    COLUMNS,
    DATASET,
    FILE,
    ONLY,
    SCALE,
    SET,
    TRIALS,
    VARIANT,
    change_of,
    which,
)
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_cli.screens.batch_screen import BatchScreen
    from protofl_workbench.reproductions.benchmark.benchmark_execution import BenchmarkProgress
    from protofl_workbench.reproductions.cells import Change
    from protofl_workbench.reproductions.reproduction import Reproduction
    from protofl_workbench.reproductions.reproduction_result import ReproductionResult


Done = TypeVar("Done")

_how = partial(option, rich_help_panel="Runs")
LIST = typer.Option("--list", help="List the reproductions and exit.")
PLAN = typer.Option(
    "--plan", help="Print the runs, their steps and estimated hours; start nothing."
)
ROUNDS = which("--rounds", "N", "Rounds of every run (≥ 1; default: of the reproduction)", min=1)
RUNS = _how("--runs", "DIR", "Folder of runs; finished runs are not repeated.")
NO_RUN = typer.Option("--no-run", help="Read existing runs; start nothing.", rich_help_panel="Runs")
SKIP = typer.Option(
    "--skip-missing",
    help="Leave cells empty if their data or weights are missing.",
    rich_help_panel="Runs",
)
AGAIN = typer.Option(
    "--again",
    help="Repeat runs that diverged before, although nothing has changed since.",
    rich_help_panel="Runs",
)
AT_ONCE = _how(
    "--at-once",
    "N",
    "Parallel runs; 0 to run one by one in this process (≥ 0; default: one per core, or 1 on a "
    "GPU)",
    min=0,
)
DEVICE = _how(
    "--device",
    "DEVICE",
    "Device: auto, cpu, cuda, cuda:N, several GPUs as cuda:0,cuda:1, cuda:all, or mps "
    "(default: auto)",
)
ADD = which(
    "--add",
    "METHOD",
    "Add an installed method to a benchmark, also one of another package; without --only it runs "
    "alone, beside local; repeatable.",
)
TRACK = _how(
    "--track",
    "NAME[,NAME…]",
    "Experiment trackers as for protofl run; the runs are one group",
)
ENGINE = _how("--engine", "NAME", "Training engine (default: auto, eager on a CPU)")
OUT = option(
    "--out",
    "FILE",
    "Write the result: .md, .csv, .json, .png, .pdf or .svg",
    rich_help_panel="Output",
)
FORMAT = option(
    "--format",
    "NAME",
    "table, md, csv or json (default: the ending of --out)",
    rich_help_panel="Output",
)


@prints_json
def reproduce(
    reproduction: Annotated[
        str | None,
        typer.Argument(
            metavar="[REPRODUCTION]", help="PAPER/NAME from protofl reproduce --list, or FILE.toml."
        ),
    ] = None,
    list_: Annotated[bool, LIST] = False,
    plan: Annotated[bool, PLAN] = False,
    scale: Annotated[str, SCALE] = "paper",
    variant: Annotated[str | None, VARIANT] = None,
    only: Annotated[str | None, ONLY] = None,
    columns: Annotated[str | None, COLUMNS] = None,
    add: Annotated[list[str] | None, ADD] = None,
    rounds: Annotated[int | None, ROUNDS] = None,
    trials: Annotated[int | None, TRIALS] = None,
    dataset: Annotated[list[str] | None, DATASET] = None,
    file: Annotated[list[str] | None, FILE] = None,
    set_: Annotated[list[str] | None, SET] = None,
    runs: Annotated[Path, RUNS] = Path("reproductions"),
    no_run: Annotated[bool, NO_RUN] = False,
    skip_missing: Annotated[bool, SKIP] = False,
    again: Annotated[bool, AGAIN] = False,
    at_once: Annotated[int | None, AT_ONCE] = None,
    device: Annotated[str | None, DEVICE] = None,
    engine: Annotated[str | None, ENGINE] = None,
    track: Annotated[str | None, TRACK] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, OUT] = None,
    format_: Annotated[str | None, FORMAT] = None,
    force: Force = False,
    as_json: Json = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Reproduce a table or figure from a paper, and compare our figures with the published ones.

    Finished runs are not repeated, and interrupted runs are resumed. Every run is checked before
    any training. Exit code 2: an error was found before training; 1: a run failed, the others are
    finished; 130: interrupted (finished rounds are saved).
    """
    check_format(format_, as_json=as_json)
    if list_:
        _list(reproduction, as_json=as_json)
        return
    from protofl.errors import UsageError

    if reproduction is None:
        raise UsageError(
            "no reproduction is given",
            "expected PAPER/NAME or FILE.toml",
            "see: protofl reproduce --list",
        )
    from protofl_workbench.reproductions.cells import cells_of
    from protofl_workbench.reproductions.finding import find_reproduction
    from protofl_workbench.reproductions.reproduction_texts import PICTURES, format_of

    form = format_of(out, format_)
    if out is not None:
        checked("--out", out, force=force)
    loaded = find_reproduction(reproduction)
    if form in PICTURES and loaded.kind == "account":
        raise UsageError(
            f"--out {out}: {loaded.name} is an account without a picture",
            "expected .md, .csv or .json",
            "choose another ending",
        )
    change = change_of(
        {"device": device, "engine": engine, "data_dir": data_dir, "track": track},
        scale=scale,
        variant=variant,
        only=only,
        columns=columns,
        rounds=rounds,
        trials=trials,
        dataset=dataset,
        file=file,
        set_=set_,
    )
    if loaded.kind == "benchmark":
        _benchmark(
            loaded, change, runs, add or [], out, form, plan=plan, start=not no_run,
            skip_missing=skip_missing, again=again, at_once=at_once, as_json=as_json,
        )  # fmt: skip
        return
    if add:
        raise UsageError(
            f"--add {add[0]}: {loaded.name} is not a benchmark",
            do="see: protofl reproduce --list benchmark",
        )
    cells_of(loaded, change)  # finds wrong options before torch is loaded
    if plan:
        _plan(loaded, change, runs, as_json=as_json)
        return

    def run(screen: BatchScreen) -> ReproductionResult:
        with put_off():
            from protofl_workbench.reproductions.reproduction_execution import run_reproduction
        return run_reproduction(
            loaded, change, runs, start=not no_run, skip_missing=skip_missing, again=again,
            at_once=at_once, follow=screen, note=screen.loading,
        )  # fmt: skip

    result = _done(run)
    _show(result, form, out, as_json=as_json)
    if any(entry.state in ("failed", "broken off") for entry in result.entries.values()):
        raise typer.Exit(1)


def _benchmark(
    loaded: Reproduction,
    change: Change,
    runs: Path,
    added: list[str],
    out: Path | None,
    form: str,
    *,
    plan: bool,
    as_json: bool,
    **how: Any,  # noqa: ANN401 - as `run_benchmark` takes them
) -> None:
    """Run a benchmark, print its tables, and write its records and its page."""
    from protofl.errors import UsageError
    from protofl_cli.screens.benchmark_tables import benchmark_values, show_benchmark

    if form not in ("", "md") or (form and out is None):
        raise UsageError(
            f"{loaded.name} is a benchmark, which is written as a page",
            do="write --out FILE.md; records are put into the folder FILE beside it",
        )
    if plan:
        raise UsageError(
            f"--plan: {loaded.name} is a benchmark, whose runs depend on its search",
            do="leave --plan out; --scale smoke checks in minutes that everything runs",
        )

    def run(screen: BatchScreen) -> BenchmarkProgress:
        with put_off():
            from protofl_workbench.reproductions.benchmark.benchmark_execution import run_benchmark

        def planned(count: int) -> None:
            screen.total = count

        return run_benchmark(
            loaded, change, runs, added=added, follow=screen, note=screen.loading, planned=planned,
            **how,
        )  # fmt: skip

    progress = _done(run)
    if out is not None:
        from protofl_workbench.reproductions.benchmark.benchmark_page import write_page

        write_page(progress, out)
        render.line(f"benchmark: {out}", "dim")
    if as_json:
        print_json(benchmark_values(progress))
    else:
        show_benchmark(progress)
    if progress.failed or any("failed" in record for record in progress.records.values()):
        raise typer.Exit(1)


def _show(result: ReproductionResult, form: str | None, out: Path | None, *, as_json: bool) -> None:
    """Print a result, and write it to a file."""
    from protofl_cli.screens.reproduction_tables import show_result
    from protofl_workbench.comparing.figure_table import write_output
    from protofl_workbench.reproductions.reproduction_texts import (
        PICTURES,
        as_text,
        json_values,
    )

    if as_json:
        print_json(json_values(result))
        if out is None:
            return
    if form in PICTURES and out is not None:
        from protofl_workbench.reproductions.reproduction_pictures import draw

        show_result(result)
        for path in draw(result, out):
            render.line(f"picture: {path}", "dim")
    elif form and out is None:
        render.plain([as_text(result, form).rstrip("\n")])
    else:
        show_result(result)
        if out is not None:
            write_output(out, as_text(result, form or "md"))
            render.line(f"reproduction: {out}", "dim")


def _list(reproduction: str | None, *, as_json: bool) -> None:
    """Print the installed reproductions, or those with a word in their names."""
    from protofl.errors import ProtoflError
    from protofl_workbench.reproductions.finding import collections
    from protofl_workbench.reproductions.reproduction import Reproduction

    rows, values = [], list[dict[str, Any]]()
    for name, collection in collections().items():
        for label in collection.names():
            if reproduction is not None and reproduction not in label:
                continue
            try:
                loaded = collection.reproduction(label.removeprefix(f"{name}/"))
            except ProtoflError as error:
                rows.append((label, f"broken: {error.what}", "", ""))
                empty = {"place": "", "title": "", "rows": 0, "columns": 0, "scales": []}
                values.append({"reproduction": label, **empty, "problem": error.what})
                continue
            assert isinstance(loaded, Reproduction)
            size = f"{len(loaded.rows)} × {len(loaded.columns)}"
            about = f"{loaded.place}: {loaded.title}" if loaded.place else loaded.title
            rows.append((label, about, size, ", ".join(loaded.scales)))
            names = {"place": loaded.place, "title": loaded.title, "scales": [*loaded.scales]}
            sizes = {"rows": len(loaded.rows), "columns": len(loaded.columns)}
            values.append({"reproduction": label, **names, **sizes, "problem": ""})
    if as_json:
        print_json(values)
        return
    if not rows:
        render.text(
            "No reproduction is installed."
            if reproduction is None
            else f"No reproduction has {reproduction!r}."
        )
        return
    usual = Counter(scales for *_, scales in rows).most_common(1)[0][0]
    shown = [
        (label, f"{about} ({scales})" if scales not in ("", usual) else about, size)
        for label, about, size, scales in rows
    ]
    render.table(("reproduction", "title", "cells"), shown, right=("cells",), keep=("cells",))
    summary = f"{len(rows)} stud{'y' if len(rows) == 1 else 'ies'}; cells: rows × columns"
    others = ", where no others are named" if any(r[-1] not in ("", usual) for r in rows) else ""
    render.line(f"{summary}; scales: {usual}{others}", "dim")


def _plan(reproduction: Reproduction, change: Change, runs: Path, *, as_json: bool) -> None:
    from protofl_cli.screens.reproduction_tables import plan_values, show_plan

    try:
        with render.waiting("loading torch and plugins") as show:
            with put_off():
                from protofl_workbench.reproductions.reproduction_plan import plan_reproduction
            planned = plan_reproduction(
                reproduction,
                change,
                runs,
                lambda text, share: show(f"measuring steps of {text} ({share:.0%} done)"),
            )
    except KeyboardInterrupt as stop:
        raise typer.Exit(interrupted(stop, "nothing was started")) from None
    if as_json:
        print_json(plan_values(planned))
    else:
        show_plan(planned)


def _done(run: Callable[[BatchScreen], Done]) -> Done:
    """Do runs, with a live line for each."""
    from protofl_cli.screens.batch_screen import BatchScreen, show_failures

    try:
        with BatchScreen() as screen:
            screen.loading("loading")
            result = run(screen)
            screen.end()
            show_failures(screen.failed)
        return result
    except KeyboardInterrupt as stop:
        do_this = "finished rounds are saved; resume with the same command"
        raise typer.Exit(interrupted(stop, do_this)) from None
