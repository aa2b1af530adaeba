"""Options and folder of a run that is resumed, also with more rounds or trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.hooks.discovery.registry import installed
from protofl.records.layout import CONFIG, MANIFEST, SESSION
from protofl.records.row import round_after
from protofl.records.run_folder import RunFolder
from protofl.runs.request.request import Request, sources_in
from protofl.runs.results.changes import (
    check_same_data,
    check_same_files,
    check_unchanged,
    describe_changes,
)
from protofl.system.consent import check_recorded, is_data_folder
from protofl.system.files.atomic import default_data_dir
from protofl.system.files.checksums import read_json
from protofl.system.files.home import expand_user
from protofl.system.files.lock import folder_lock
from protofl.system.options.parsing import (
    merge_nested,
    merge_options,
    options_in,
    read_names,
)
from protofl.system.options.table import (
    EXTENDED,
    OPTIONS,
    RESUMABLE,
    UNRECORDED,
    default_values,
    flag_of,
    validated,
)


def continued(
    request: Request, note: Callable[[str], None], until: ExitStack
) -> tuple[RunFolder, Request]:
    """Return the folder of a run that is resumed, and a request with all of its options.

    Args:
        request: What is asked for: the folder, and options that may differ.
        note: Takes lines for the user.
        until: Holds the lock of the folder.

    Raises:
        UsageError: The folder has no run, is in use, or an option differs from the run's.
    """
    assert request.out is not None
    place = expand_user(request.out)
    if not any((place / name).exists() for name in (CONFIG, MANIFEST)):
        raise UsageError(
            f"--resume: {place} is not a run folder (it has no {CONFIG})",
            do="give the folder of an interrupted run with --out",
        )
    until.enter_context(folder_lock(place.absolute(), "--resume --out"))
    folder = RunFolder.reopen(request.out)
    recorded = folder.config()
    check_recorded(recorded, str(folder.path / "config.json"))
    requested = (
        _recorded_backend(folder.path, request.options, note) | folder.engine | request.options
    )
    options = resumed_options(recorded, requested, note)
    changes: dict[str, Any] = {"options": options, "set_by": sources_in(recorded)}
    return folder, replace(request, **changes, home=folder.path, recorded=True)


def _recorded_backend(
    folder: Path, requested: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, str]:
    """Return the backend with which an interrupted run began, as an option.

    The option is empty if the user chooses again, if the run does not say, or if the backend is not
    installed, which a note says.

    Args:
        folder: The run folder.
        requested: The options of the request.
        note: Takes lines for the user.
    """
    if {"backend", "workers"} & {key for key, value in requested.items() if value is not None}:
        return {}
    try:
        name = str(read_json(folder / SESSION).get("backend", ""))
    except (OSError, UsageError):
        return {}
    if name in {plugin.name for plugin in installed("backend")}:
        return {"backend": name}
    note(f"the run began with --backend {name}, which is not installed; another one is chosen")
    return {}


def resumed_options(
    recorded: dict[str, Any], requested: dict[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """Return the options of a resumed run: the recorded ones, and given ones that may differ.

    Args:
        recorded: The content of ``config.json``.
        requested: The options of the request.
        note: Takes lines for the user.

    Raises:
        UsageError: An option is given that differs from the run's.
    """
    values, usual = options_in(recorded), default_values()
    values.setdefault("engine", "eager")
    values.setdefault("precision", "fp32")
    if not is_data_folder(data_dir := values.get("data_dir", "")):
        values.pop("data_dir", None)  # a record may not say where to write
        if data_dir and requested.get("data_dir") is None:
            note(
                f"the run used the data folder {data_dir}; it uses {default_data_dir()} now "
                f"(--data-dir {data_dir} uses the first one again)"
            )
    if (engine := requested.get("engine")) == "eager" != values.get("engine", engine):
        note(
            f"engine {values['engine']} until here, and eager from here on: last digits may differ"
        )
        plugin_options = {k: v for k, v in values["options"].items() if k != "engine"}
        values |= {"engine": engine, "options": plugin_options}
    may_differ = RESUMABLE - (UNRECORDED & values.keys()) | {"options", *EXTENDED}
    for key, value in requested.items():
        if key in may_differ or key not in values:
            continue
        if value == "auto" and usual.get(key) == "auto":
            continue
        if str(values[key]) not in (str(value), _as_recorded(key, value)):
            raise UsageError(
                f"{flag_of(key)} {value} differs from the run's {values[key]}",
                do="leave it out, or start a new run in another folder",
            )
    options, was = requested.get("options", {}), set(values.get("metrics", ()))
    now = set(read_names(requested.get("metrics", [*was])))
    told = set(read_names(requested.get("track", [])))
    check_unchanged(values["options"], options, RESUMABLE | was | now | told)
    values["options"] = {k: v for k, v in values["options"].items() if k not in was - now}
    free = {
        k: v
        for k, v in requested.items()
        if k in RESUMABLE and (k in may_differ or k not in values)
    }
    free |= {key: requested[key] for key in EXTENDED if requested.get(key) is not None}
    return merge_options(values, free) | {"options": merge_nested(values["options"], options)}


def _as_recorded(key: str, value: Any) -> str:  # noqa: ANN401 - options are of many types
    """Return a value as config.json has it."""
    name, colon, path = str(value).partition(":")
    if OPTIONS[key].chooses and colon:
        return f"{name}:{expand_user(path).resolve()}"
    if key == "public" and value == "none":
        return "0"
    parsed = validated(key, value)
    return str(expand_user(parsed).absolute() if isinstance(parsed, Path) else parsed)


_ANEW = "begin another run: --config RUN/config.json with the number wanted"


def take_up(folder: RunFolder, plan: Plan, note: Callable[[str], None]) -> RunFolder:
    """Return the run folder without rounds that do not count; report what has changed.

    Args:
        folder: The folder as it was opened.
        plan: The run that is asked for.
        note: Takes lines for the user.

    Raises:
        UsageError: Data or files are others, or the run has more rounds or trials, or cannot have
            more.
    """
    recorded = folder.config()
    check_same_data(recorded, plan)
    check_same_files(recorded, plan)
    was_cut = not folder.finished
    folder = with_more(folder, recorded, plan)
    lines = describe_changes(recorded, plan) if folder.commit and not folder.finished else []
    if damage := folder.settle():
        row = f"round {folder.commit.round + 1}" if folder.commit else "the beginning"
        lines.append(damage if folder.finished else f"{damage}; the run continues from {row}")
    elif was_cut:
        number = round_after(folder.rows, recorded["rounds"]) + 1
        lines.append(f"the run ended without a summary in round {number}")
    if asks_for_more(recorded, plan):
        now = {key: getattr(plan.settings, key) for key in EXTENDED}
        if "set_by" in recorded:
            changed = dict.fromkeys((key for key in now if now[key] != recorded[key]), "user")
            now["set_by"] = dict(sorted({**recorded["set_by"], **changed}.items()))
        folder.extend({**recorded, **now})
    for line in lines:
        note(line)
    return folder


def with_more(folder: RunFolder, recorded: Mapping[str, Any], plan: Plan) -> RunFolder:
    """Return the run folder at the round from which the run continues.

    Args:
        folder: The folder as it was opened.
        recorded: What ``config.json`` says.
        plan: The run that is asked for.

    Raises:
        UsageError: The run has more already, or would not be as if it had had so many at once.
    """
    if not asks_for_more(recorded, plan):
        return folder
    rounds, trials = plan.settings.rounds, plan.settings.trials
    rounds_done = Counter(row.trial for row in folder.rows)
    if trials < len(rounds_done):
        raise UsageError(
            f"--trials {trials}: the run has begun {len(rounds_done)} already",
            do=f"ask for more, or {_ANEW}",
        )
    most = max(rounds_done.values(), default=0)
    if most > rounds:
        raise UsageError(
            f"--rounds {rounds}: the run has {most} already", do=f"ask for more, or {_ANEW}"
        )
    folder = RunFolder.reopen(folder.path, extend=True)
    if rounds != recorded["rounds"] and rounds_done:
        _check_independent(recorded["rounds"], plan)
        _check_kept(folder, rounds_done, rounds)
    again = [trial for trial in rounds_done if _is_other(folder, trial, rounds_done[trial], plan)]
    if any(folder.commit is None or trial != folder.commit.trial for trial in again):
        raise UsageError(
            f"--rounds {rounds}: trial {again[0]} was evaluated in its last round, which "
            f"--eval-every {plan.settings.eval_every} would have left out"
            if not plan.settings.fine_tune
            else f"--rounds {rounds}: the unseen clients of trial {again[0]} were fine-tuned after "
            "what was its last round",
            do=_ANEW,
        )
    if not again:
        return folder
    result = RunFolder.reopen(folder.path, extend=True, back=True)
    if len(result.rows) == len(folder.rows):
        raise UsageError(
            f"--rounds {rounds}: round {most} would have to be trained again without the "
            "evaluation of a last round, and the round before it is not kept any more",
            do=_ANEW,
        )
    return result


def asks_for_more(recorded: Mapping[str, Any], plan: Plan) -> bool:
    """Return True if a plan has other rounds or trials than the recorded run."""
    return any(getattr(plan.settings, key) != recorded[key] for key in EXTENDED)


def _check_independent(before: int, plan: Plan) -> None:
    """Check that finished rounds do not depend on the total number of rounds."""
    if horizon := plan.schedule.horizon:
        raise UsageError(
            f"--rounds {plan.settings.rounds}: the learning rate falls over the {before} rounds of "
            f"the run (--lr-schedule {plan.settings.lr_schedule})",
            f"with --set {horizon}=N from the beginning a run can go on",
            _ANEW,
        )
    from protofl.runs.dry_run.short_rounds import dry_run  # only for more rounds

    dry_run(plan)
    if "rounds" in plan.info.asked:
        raise UsageError(
            f"--rounds {plan.settings.rounds}: {plan.settings.method} depends on the number of "
            f"rounds, and the run was begun with {before}",
            do=_ANEW,
        )


def _check_kept(folder: RunFolder, rounds_done: Mapping[int, int], rounds: int) -> None:
    """Check that every trial to be continued was kept."""
    if folder.commit is None:
        raise UsageError(
            f"--rounds {rounds}: the run has no checkpoint to go on from (--checkpoint-every off)",
            do=_ANEW,
        )
    here = folder.commit.trial
    over = [
        t for t in rounds_done if rounds_done[t] < rounds and t != here and not folder.has_last(t)
    ]
    if over:
        raise UsageError(
            f"--rounds {rounds}: the last round of trial {over[0]} was not kept (--keep current)",
            do=_ANEW,
        )


def _is_other(folder: RunFolder, trial: int, rounds: int, plan: Plan) -> bool:
    """Return True if a trial's last round was evaluated and should not be, or reverse."""
    last = [row for row in folder.rows if row.trial == trial][-1]
    due = plan.is_due(rounds - 1, plan.settings.eval_every)
    if last.schedule:
        due = last.schedule.get("due", bool(last.evaluated))
    tuned = bool(plan.settings.fine_tune) and rounds == plan.settings.rounds
    return bool(last.evaluated) != due or ("fine_tuned_accuracy" in last) != tuned
