"""Running: what the command ``protofl run`` and `protofl.run` do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from protofl.data.batches import LEAST
from protofl.data.split import partition_record
from protofl.errors import UsageError
from protofl.hosts.jobs import Pool
from protofl.plan.options import expand_set, merge_nested, settings_from
from protofl.plan.plan import Plan
from protofl.plan.recipes import check_recipe_path, of_method, with_file, with_recipe, write_recipe
from protofl.plan.settings import FREE, RECORD_ONLY
from protofl.profile.timeline import Timeline, spans_of
from protofl.runs import events
from protofl.runs.dry_step import dry_step
from protofl.runs.events import Progress
from protofl.runs.federation import Federation, round_to
from protofl.runs.record import RunFolder, check_free, read_config, write_json
from protofl.runs.result import Result, summarise


def run(
    method: str | type | None = None,
    *,
    models: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    config: str | Path | None = None,
    set: dict[str, Any] | None = None,
    progress: Progress | None = None,
    save_recipe: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - the options of a run
) -> Result:
    """Train a federation of heterogeneous clients.

    Args:
        method: A method's or a recipe's name, or a method class that is not installed (it runs in
            this process).
        models: A model group.
        out: The run folder; by default ``runs/METHOD-MODELS-DATA-sSEED-TIME``.
        resume: Continue the run in ``out``.
        config: A TOML or JSON file with options; arguments win over it.
        set: Options of plugins as ``--set`` takes them: ``{"lambda": 1, "dataset.side": 32}``.
        progress: Called with every event of the run (`protofl.events`).
        save_recipe: A new file, .toml or .json, for the options given: a recipe of this run.
        **options: All other options of ``protofl run`` by their long names
            (`protofl.plan.settings`).

    Raises:
        UsageError: Something asked for can't be done; nothing has been started.
        RunFailure: The run failed; finished rounds are in the folder.

    Examples:
        >>> result = pf.run("fedsa", models="htfe8", rounds=5)  # doctest: +SKIP
        >>> result.summary["best_test_accuracy"]  # doctest: +SKIP
    """
    progress = progress or events.ignore
    extra: dict[tuple[str, str], type] = {}
    if isinstance(method, type):
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", method.__name__).lower()
        extra["method", name] = method
        method = name
    set_: dict[str, Any] = {}
    given = settings_from({"method": method, "models": models, **options}, set_, file=True)
    set_ |= set or {}
    if save_recipe is not None:
        check_recipe_path(Path(save_recipe))
    if resume:
        if save_recipe is not None:
            raise UsageError("--resume continues the run as it was; leave --save-recipe out")
        if out is None:
            raise UsageError("--resume needs --out: the folder of the interrupted run")
        given = _resumed(Path(out), given, set_, config)
    else:
        if config is not None:
            given, out, _ = with_file(Path(config), given, Path(out) if out is not None else None)
        given = given if extra else with_recipe(given)
        if set_:
            given["options"] = merge_nested(given.get("options", {}), _own_options(given, set_))
        if out is not None:
            check_free(Path(out).expanduser().absolute())
    strict = torch.are_deterministic_algorithms_enabled()
    try:
        return _run(given, extra, out, resume, progress, save_recipe)
    finally:
        # --deterministic may have switched it. Setting it again as it is would import torch's
        # compiler, which takes more than a second.
        if torch.are_deterministic_algorithms_enabled() != strict:
            torch.use_deterministic_algorithms(strict)


def _run(
    given: dict[str, Any],
    extra: dict[tuple[str, str], type],
    out: str | Path | None,
    resume: bool,
    progress: Progress,
    save_recipe: str | Path | None,
) -> Result:
    start = time.perf_counter_ns()
    report = lambda line: progress(events.Note(line))  # noqa: E731
    plan = Plan.make(given, extra, report)
    plan.split(0)  # data that can't be split this way are found before there is a folder
    if resume:
        folder = RunFolder.reopen(Path(out or ""))
        _same_data(folder, plan)
    else:
        folder = RunFolder(Path(out) if out is not None else default_folder(plan))
    progress(events.Planned(plan, folder))
    if resume and folder.finished:
        return _conclude(folder, plan, {}, progress)
    timeline = Timeline(plan) if plan.settings.profile else None
    if timeline is not None:
        timeline.spans.add("plan", "start", start, time.perf_counter_ns())

    def tried() -> None:
        """Behind the dry step: what was given is known to work."""
        if save_recipe is not None:
            found = plan.settings.options  # as numbers, where the command line has words
            typed = {
                name: {key: found.get(name, {}).get(key, value) for key, value in values.items()}
                for name, values in given.get("options", {}).items()
            }
            write_recipe(Path(save_recipe), given | {"options": typed})
            progress(events.Note(f"the recipe of this run is in {save_recipe}"))

    try:
        return _train(plan, folder, progress, timeline, tried, resume=resume)
    finally:
        if timeline is not None and timeline.folder is not None:
            timeline.write(timeline.folder / "profile")


def _own_options(given: dict[str, Any], set_: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What --set holds, by plugin; a recipe's name stands for its method."""
    method = str(given.get("method", ""))
    return of_method(expand_set(set_, method), given.get("recipe", {}).get("name", ""), method)


def default_folder(plan: Plan) -> Path:
    """``runs/METHOD-MODELS-DATA-sSEED-TIME``."""
    s = plan.settings
    data = s.dataset.partition(":")
    parts = [
        s.recipe.get("name", s.method),
        s.models,
        data[0] + ("-" + Path(data[2]).stem if data[2] else ""),
    ]
    parts += [f"s{s.seed}", datetime.now().strftime("%Y%m%d-%H%M%S")]
    path = Path("runs") / re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts))
    number, chosen = 1, path
    while chosen.exists():
        number += 1
        chosen = path.with_name(f"{path.name}-{number}")
    return chosen


def _resumed(
    out: Path, given: dict[str, Any], set_: dict[str, Any], config: str | Path | None
) -> dict[str, Any]:
    recorded = read_config(out)
    values = {k: v for k, v in recorded.items() if k not in RECORD_ONLY}
    if config is not None or set_:
        raise UsageError("--resume continues the run as it was; leave --config and --set out")
    for key, value in given.items():
        if key in FREE or key not in values or (key, value) == ("device", "auto"):
            continue
        if key == "method" and value == values.get("recipe", {}).get("name"):
            continue
        if str(values[key]) != _as_recorded(key, str(value)):
            raise UsageError(
                f"--{key.replace('_', '-')} {value} differs from the run's {values[key]}",
                do="leave it out, or start a new run in another folder",
            )
    return values | {k: v for k, v in given.items() if k in FREE}


def _as_recorded(key: str, value: str) -> str:
    """A value as config.json records it."""
    if key == "data_dir":
        return str(Path(value).expanduser().absolute())
    if key == "public" and value == "none":
        return "0"
    name, colon, path = value.partition(":")
    if key == "dataset" and colon:
        return f"{name}:{Path(path).expanduser().resolve()}"
    return value


def _same_data(folder: RunFolder, plan: Plan) -> None:
    recorded = read_config(folder.path)
    if recorded["data"]["digest"] != plan.data.digest:
        raise UsageError(
            f"the data of {plan.settings.dataset} are not those with which the run began",
            do="restore the data, or start a new run",
        )


def _train(
    plan: Plan,
    folder: RunFolder,
    progress: Progress,
    timeline: Timeline | None,
    tried: Callable[[], None],
    *,
    resume: bool,
) -> Result:
    spans = spans_of(timeline)
    settings = plan.settings
    backend = plan.choices["backend"]
    pool: Pool = backend.call("open_pool", plan=plan, workers=settings.workers)
    accuracies: dict[int, dict[int, float]] = {}
    with folder.parking() as parked, closing(pool):
        if settings.dry_step and folder.commit is None:
            progress(events.DryStepStarted())
            with spans.span("dry step", "start"):
                dry_step(plan)
        tried()
        with spans.span("costs", "start"):
            plan.costs()  # the hosts are still starting
        if not resume:
            folder = RunFolder.create(folder.path, plan)
            progress(events.FolderMade(folder))
        if timeline is not None:
            timeline.folder = folder.path
        _write_partition(plan, folder)
        few = int((plan.split(0).offsets.diff()[::2] < LEAST).sum())
        if few:
            line = f"{few} clients have fewer than {LEAST} training samples: BatchNorm in eval mode"
            progress(events.Note(line))
        federation = Federation(plan, pool, progress, timeline=timeline, parked=parked)
        for trial, first in _remaining(folder, plan):
            with spans.span("waiting for hosts, and set-up", "start"):
                if folder.commit and folder.commit.trial == trial:
                    federation.resume(folder)
                else:
                    federation.start_trial(trial)
            _trial(plan, federation, folder, first, progress, timeline)
            accuracies[trial] = federation.client_accuracy
    return _conclude(folder, plan, accuracies, progress, timeline)


def _remaining(folder: RunFolder, plan: Plan) -> Iterator[tuple[int, int]]:
    """Trials that are not finished, with the round at which each begins."""
    trial, first = 0, 0
    if folder.commit:
        trial, first = folder.commit.trial, folder.commit.round + 1
        if first == plan.settings.rounds:
            trial, first = trial + 1, 0
    while trial < plan.settings.trials:
        yield trial, first
        trial, first = trial + 1, 0


def _trial(
    plan: Plan,
    federation: Federation,
    folder: RunFolder,
    first: int,
    progress: Progress,
    timeline: Timeline | None,
) -> None:
    settings = plan.settings
    trained: set[int] = set()
    for number in range(first, settings.rounds):
        last = number + 1 == settings.rounds
        with timeline.round(federation.trial, number, last=last) if timeline else nullcontext():
            progress(events.RoundStarted(federation.trial, number))
            row, clients = federation.round(number)
            trained |= {*clients}
            every = settings.checkpoint_every
            if every and ((number + 1) % every == 0 or last):
                paths = folder.client_paths(sorted(trained), federation.trial, number)
                seconds = federation.save_clients(sorted(trained), paths)
                for stage in ("checkpoint", "total"):
                    row["seconds"][stage] = round_to(row["seconds"][stage] + seconds)
                row["time"] = _now()
                with spans_of(timeline).span("commit", "server"):
                    folder.commit_round(row, federation.server, federation.holders, paths)
                trained = set()
            else:
                row["time"] = _now()
                folder.add(row)
            progress(events.RoundDone(row))


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _write_partition(plan: Plan, folder: RunFolder) -> None:
    records = []
    for trial in range(1 if plan.settings.hold_split else plan.settings.trials):
        split = plan.split(trial)
        record = partition_record(split, plan.data.y, plan.info.num_classes, plan.data.classes)
        records.append({"trial": trial, **record})
    write_json(folder.path / "partition.json", {**records[0], "trials": records[1:]})


def _conclude(
    folder: RunFolder,
    plan: Plan,
    accuracies: dict[int, dict[int, float]],
    progress: Progress,
    timeline: Timeline | None = None,
) -> Result:
    summary = summarise(folder.rows, plan)
    write_json(folder.path / "summary.json", summary)
    found = None if timeline is None else timeline.summary()
    result = Result(folder.rows, summary, accuracies, folder.path, found)
    progress(events.Finished(result, plan))
    return result
