"""``protofl leak``: what the uploads of a run reveal about the clients' data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofl_cli.public import (
    Debug,
    Json,
    TrustCode,
    line,
    note,
    option,
    print_json,
    prints_json,
    table,
    waiting,
)


@prints_json
def leak(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    round_: Annotated[
        int | None,
        option("--round", "N", "Round (default: the last with uploads and weights)", min=1),
    ] = None,
    trial: Annotated[int, option("--trial", "N", "Number of the trial.", min=0)] = 0,
    clients: Annotated[
        int, option("--clients", "N", "Largest number of attacked clients.", min=1)
    ] = 50,
    budget: Annotated[
        int,
        option("--budget", "N", "Samples of other clients that an attacker has.", min=50),
    ] = 2000,
    shadows: Annotated[
        int, option("--shadows", "N", "Shadow runs for LiRA (0: without it).", min=0)
    ] = 0,
    at_once: Annotated[
        int | None,
        option("--at-once", "N", "Shadow runs at the same time (default: one per core)", min=0),
    ] = None,
    seed: Annotated[int, option("--seed", "N", "Seed of the attackers' draws.", min=0)] = 0,
    out: Annotated[
        Path | None,
        option("--out", "DIR", "Folder of leak.json and the picture (default: RUN/leak)"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print all tables.")] = False,
    as_json: Json = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Measure what the uploads of a run reveal: labels, membership, samples.

    Attacks the recorded uploads of a round. For a run without --record-uploads, two more rounds are
    recorded in RUN/leak. No found leak proves nothing.
    """
    import protofl as pf
    from protofl_privacy import leak as room
    from protofl_privacy import shadow
    from protofl_privacy.report_section import tables

    with waiting("leak: loading") as show:
        opened, said = pf.load_run(run), ""
        target = pf.expand_user(out) if out else opened.folder / room.FOLDER
        if not opened.upload_rounds(trial) and round_ is None:
            if shadows:
                raise pf.UsageError(
                    f"--shadows: {opened.folder} has no recorded uploads",
                    "shadow runs must be trained like the attacked round, from the beginning",
                    "repeat the run: protofl run --config RUN/config.json --record-uploads",
                )
            show("leak: recording two more rounds")
            opened = shadow.continued(opened, target)
            said = "two rounds were recorded for it, whose clients begin with the run's weights"
        drawn = shadow.shadow_runs(
            opened, shadows, target, trial=trial, seed=seed, at_once=at_once,
            progress=lambda text: show(f"leak: {text}"),
        )  # fmt: skip
        found = room.measure(
            opened,
            trial=trial,
            round=None if round_ is None else round_ - 1,
            clients=clients,
            budget=budget,
            shadows=drawn,
            seed=seed,
            progress=lambda stage: show(f"leak: {stage}"),
        )
    found.notes += [said] * bool(said)
    folder = room.write(found, tuple(opened.plan.data.x.shape[1:]), target)
    if as_json:
        print_json({**found.to_values(), "folder": folder})
        return
    line(f"{run}: uploads of round {found.round + 1}, {found.clients} clients", "bold")
    values = found.to_values()
    line("\n".join(values["summary"]))
    for text in found.notes:
        note(text)
    for each in tables(values)[: None if every else 1]:
        table(each["columns"], each["rows"], title=each["caption"], wrap=True)
    line("An attack that finds nothing proves nothing.", "dim")
    line(f"leak: {folder}" + "; --all prints all tables" * (not every))
