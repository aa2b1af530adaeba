"""``protofl replay``: repeat the server's part of a run with other options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl.system.formatting import count
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Debug, TrustCode, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_workbench.replaying.replay import Replay, Replayed

LONG = 12
"""Largest number of rounds in a table; the file of --out has all."""

FORM = "[NAME.]KEY=VALUE"


@prints_json
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    set_: Annotated[
        list[str] | None,
        option("--set", FORM, "Changed option of the method, or of plugin NAME; repeatable."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        option(
            "--grid",
            "[NAME.]KEY=VALUE,VALUE…",
            "Option with several values; all combinations are replayed; repeatable.",
        ),
    ] = None,
    use: Annotated[
        list[str] | None,
        option(
            "--use",
            "HOOK=METHOD",
            "Take a hook of the server from another method or defence; repeatable.",
        ),
    ] = None,
    trial: Annotated[int, option("--trial", "N", "Number of the trial.", min=0)] = 0,
    rounds: Annotated[
        int | None,
        option("--rounds", "N", "Largest number of rounds (default: all recorded rounds)", min=1),
    ] = None,
    out: Annotated[
        Path | None, option("--out", "FILE", "Write the figures of all rounds as JSON.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Repeat the server's part of a run with other options, on its uploads (--record-uploads).

    No client is trained. Round 1 is that of a run with these options. Later rounds use the same
    uploads, although clients of such a run would have sent others.
    """
    from protofl.errors import UsageError
    from protofl.system.files.atomic import write_json
    from protofl.system.options.parsing import assignments

    target = checked("--out", out, force=force) if out else None
    values = {
        key: [value for value in map(str.strip, text.split(",")) if value]
        for key, text in assignments("--grid", grid or (), f"{FORM},VALUE").items()
    }
    if empty := [key for key, each in values.items() if not each]:
        raise UsageError(f"--grid {empty[0]} has no value", do=f"write --grid {FORM},VALUE")
    if twice := sorted(values.keys() & assignments("--set", set_ or (), FORM).keys()):
        raise UsageError(f"{twice[0]} is given in --set and in --grid", do="give it once")
    changed = assignments("--set", set_ or (), FORM)
    used = assignments("--use", use or (), "HOOK=METHOD")
    bar = render.Bars()
    bar.show("replaying", "loading")
    try:
        from protofl_workbench.replaying import replay as room

        outcome = room.replay(
            run,
            set=changed,
            grid=values,
            use=used,
            trial=trial,
            rounds=rounds,
            progress=lambda finished, of: bar.show(
                "replaying", f"round {finished} of {of}", finished / of
            ),
        )
    finally:
        bar.stop()
    if as_json:
        print_json(outcome.to_values())
    else:
        _show(outcome)
    if target:
        write_json(target, outcome.to_values())
        render.line(f"replay: {target}")


def _show(replay: Replay) -> None:
    every, many = [replay.own, *replay.others], len(replay.own.rounds)
    said = count(many, "round") + f" of trial {replay.trial}" * bool(replay.trial)
    render.heading(str(replay.run), f"replay of the server, {said}")
    render.pairs([("own options", replay.differs or _compared(replay))])
    for note in replay.notes:
        render.line(f"  note: {note}", "yellow")
    names = list(dict.fromkeys(name for each in every for r in each.rounds for name in r.figures))
    heads = [name.replace("_", " ") for name in names]
    rows = [[each.label, _first(each), *_cells(each, -1, names)] for each in every]
    title = f"after round {many}"
    render.table(["", "differs from", *heads], rows, title=title, right=heads, wrap=True)
    changing = [other for other in replay.others if other.first_other is not None]
    if len(replay.others) == len(changing) == 1:
        _by_round(replay.own, replay.others[0], names)
    for other in replay.others:
        if other.first_other is None:
            render.text(f"{other.label}: nothing changes on the server.")
    for other in replay.others:
        if not other.first_sent:
            render.text(
                f"{other.label}: the server sends other downloads before round 1, so no round here "
                "is that of a run with these options."
            )
    if any(other.first_sent for other in changing):
        render.text(
            "Round 1 is that of a run with these options, if they concern only the server. From "
            "round 2 on, the clients of such a run would have sent other uploads.",
            "dim",
        )


def _compared(replay: Replay) -> str:
    """Describe which records of the run are equal to the replay."""
    figures, weights = replay.compared
    parts = [f"figures of {count(figures, 'round')}"] * bool(figures)
    parts += [f"global state of {weights}"] * bool(weights)
    if not parts:
        return "the run has no record to compare with"
    return f"equal to the run, bit by bit ({', '.join(parts)})"


def _by_round(unchanged: Replayed, other: Replayed, names: list[str]) -> None:
    """Print a table of both by rounds; of many rounds, some are left out."""
    many = len(unchanged.rounds)
    step = max(1, -(-many // LONG))
    shown = sorted({0, *range(step - 1, many, step), many - 1})
    rows = []
    for n in shown:
        pairs = zip(_cells(unchanged, n, names), _cells(other, n, names), strict=True)
        rows.append([str(n + 1), *(a if a == b else f"{a} → {b}" for a, b in pairs)])
    heads = [name.replace("_", " ") for name in names]
    title = f"{unchanged.label} → {other.label}"
    render.table(["round", *heads], rows, title=title, right=["round", *heads])


def _first(each: Replayed) -> str:
    """Return the first round after which the global state differs."""
    return "–" if each.first_other is None else f"round {each.first_other + 1}"


def _cells(each: Replayed, place: int, names: list[str]) -> list[str]:
    """Return the figures of a round."""
    figures = each.rounds[place].figures
    return [_number(figures.get(name)) for name in names]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
