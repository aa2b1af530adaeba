"""``protofl replay``: the server's half of a run again, with other options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl.system.formatting import count
from protofl_cli import render
from protofl_cli.options import Debug, TrustCode
from protofl_cli.overwriting import Force, checked

if TYPE_CHECKING:
    from protofl_workbench.replaying.replay import Replay, Replayed

LONG = 12
"""Rounds of a table, at most; a file has all."""

FORM = "[NAME.]KEY=VALUE"


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar=FORM,
            help="An option of the method, or of NAME, that is changed; repeatable.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="[NAME.]KEY=VALUE,VALUE…",
            help="An option, and the values that are tried one after the other; repeatable.",
        ),
    ] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(
            "--use",
            metavar="HOOK=METHOD",
            help="Take a hook of the server from another method or defence; repeatable.",
        ),
    ] = None,
    trial: Annotated[int, typer.Option("--trial", metavar="N", min=0, help="The trial.")] = 0,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", metavar="N", min=1, help="Rounds, at most (default: all that were kept)"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write all figures of all rounds, as JSON."),
    ] = None,
    force: Force = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Run the server's half of a run again on the uploads that it has kept (--record-uploads).

    No client is trained. The first round is what a run with these options would have had; later
    ones say what the server would have made of these uploads, which are those of clients that met
    the run's own knowledge.
    """
    from protofl.errors import UsageError
    from protofl.system.files.atomic import write_json
    from protofl.system.options.parsing import assignments

    target = checked("--out", out, force=force) if out else None
    values = {
        key: [part for part in map(str.strip, text.split(",")) if part]
        for key, text in assignments("--grid", grid or (), f"{FORM},VALUE").items()
    }
    if empty := [key for key, found in values.items() if not found]:
        raise UsageError(f"--grid {empty[0]} has no value", do=f"write --grid {FORM},VALUE")
    if twice := sorted(values.keys() & assignments("--set", set_ or (), FORM).keys()):
        raise UsageError(f"{twice[0]} stands in --set and in --grid", do="give it once")
    changed = assignments("--set", set_ or (), FORM)
    used = assignments("--use", use or (), "HOOK=METHOD")
    bar = render.Bars()
    bar.show("replaying", "loading")
    try:
        from protofl_workbench.replaying import replay as room

        found = room.replay(
            run,
            set=changed,
            grid=values,
            use=used,
            trial=trial,
            rounds=rounds,
            progress=lambda done, of: bar.show("replaying", f"round {done} of {of}", done / of),
        )
    finally:
        bar.stop()
    _show(found)
    if target:
        write_json(target, found.to_values())
        render.line(f"replay: {target}")


def _show(found: Replay) -> None:
    every, many = [found.own, *found.others], len(found.own.rounds)
    said = count(many, "round") + f" of trial {found.trial}" * bool(found.trial)
    render.heading(str(found.run), f"the server's half again, {said}, no client trained")
    render.pairs([("own options", found.differs or _compared(found))])
    for note in found.notes:
        render.line(f"  note: {note}", "yellow")
    names = list(dict.fromkeys(name for each in every for r in each.rounds for name in r.figures))
    heads = [name.replace("_", " ") for name in names]
    rows = [[each.label, _first(each), *_cells(each, -1, names)] for each in every]
    title = f"behind round {many}"
    render.table(["", "other from", *heads], rows, title=title, right=heads, wrap=True)
    changing = [other for other in found.others if other.first_other is not None]
    if len(found.others) == len(changing) == 1:
        _by_round(found.own, found.others[0], names)
    for other in found.others:
        if other.first_other is None:
            render.text(f"{other.label}: nothing changes in the server's half.")
    for other in found.others:
        if not other.first_sent:
            render.text(
                f"{other.label}: its server sends other things before the first round already, so "
                "no round here is what a run would have had."
            )
    if any(other.first_sent for other in changing):
        render.text(
            "Where a change concerns the server alone, round 1 is what a run with it would have "
            "had. From round 2 on this is what the server makes of these uploads; clients of such "
            "a run would have met other knowledge and sent other uploads.",
            "dim",
        )


def _compared(found: Replay) -> str:
    """What says that a replay is what the run was."""
    figures, weights = found.compared
    parts = [f"figures of {count(figures, 'round')}"] * bool(figures)
    parts += [f"the knowledge kept of {weights}"] * bool(weights)
    if not parts:
        return "the run has kept nothing with which they could be compared"
    return f"to the last bit as in the run ({', '.join(parts)})"


def _by_round(own: Replayed, other: Replayed, names: list[str]) -> None:
    """A table of both, of the first rounds, the last ones and some between."""
    many = len(own.rounds)
    step = max(1, -(-many // LONG))
    shown = sorted({0, *range(step - 1, many, step), many - 1})
    rows = []
    for n in shown:
        pairs = zip(_cells(own, n, names), _cells(other, n, names), strict=True)
        rows.append([str(n + 1), *(a if a == b else f"{a} → {b}" for a, b in pairs)])
    heads = [name.replace("_", " ") for name in names]
    title = f"{own.label} → {other.label}"
    render.table(["round", *heads], rows, title=title, right=["round", *heads])


def _first(each: Replayed) -> str:
    """From which round on the server knows something else."""
    return "–" if each.first_other is None else f"round {each.first_other + 1}"


def _cells(each: Replayed, place: int, names: list[str]) -> list[str]:
    """The figures of a round."""
    figures = each.rounds[place].figures
    return [_number(figures.get(name)) for name in names]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
