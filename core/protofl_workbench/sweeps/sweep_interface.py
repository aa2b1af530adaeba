"""Sweeps from Python (`protofl.sweep`), and requests of the command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.runs.request.plugin_names import Extra
from protofl.runs.request.program_classes import name_classes
from protofl.runs.request.request import read_request
from protofl.system.files.home import expand_user
from protofl.system.options.table import validated
from protofl_workbench.batch import batch_events as events
from protofl_workbench.sweeps import sweep_execution
from protofl_workbench.sweeps.axes import read_axes, resolved_axes
from protofl_workbench.sweeps.sweep import MOST, Sweep, check_sweep
from protofl_workbench.sweeps.sweep_results import SweepResult


def sweep(
    method: str | type | object | None = None,
    *,
    grid: Mapping[str, Any] | None = None,
    trials: int | None = None,
    figure: str | None = None,
    out: str | Path | None = None,
    runs: str | Path | None = None,
    resume: str | Path | None = None,
    most: int | None = None,
    at_once: int | None = None,
    config: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    follow: events.Follow = events.ignore,
    **options: Any,  # noqa: ANN401 - as `protofl.run` takes them
) -> SweepResult:
    """Run a grid of options, as ``protofl sweep`` does.

    Existing runs in the folder of runs are not repeated.

    Args:
        method: A method; None if they are an axis.
        grid: {option as for ``--grid``: values}.
        trials: Runs of each point, one for each seed; default: 1.
        figure: Accuracy by which points are compared: ``best`` (default), ``final``,
            ``best-server`` or ``final-server``, on validation samples if the runs have some.
        out: Folder of the sweep; default: ``runs/sweeps/METHOD-MODELS-DATA-TIME``.
        runs: Folder of runs; default: ``runs``.
        resume: An interrupted sweep; allows only ``at_once``, ``follow`` and ``set``.
        most: Largest number of runs; default: 1,000.
        at_once: Number of parallel runs; None: one per core, 0: in this process (for classes).
        config: A TOML or JSON file with options of the runs; arguments override it.
        set: Options of plugins as for ``--set``.
        follow: Called with every event of the runs (`protofl_workbench.batch.batch_events`).
        **options: Further options of all runs, as for `protofl.run`.

    Returns:
        The points, best first (``result.best.point``); ``result.frame()`` has a line for each run.
        Failed runs do not stop others.

    Raises:
        UsageError: A run cannot be done, or the folder is in use; nothing has been started.

    Examples:
        >>> grid = {"tau": [10, 100]}
        >>> result = pf.sweep("fedtgp", models="mlp", dataset="wine", rounds=2, grid=grid)
        >>> [line.point for line in result.lines]
        [{'tau': '10'}, {'tau': '100'}]
    """
    sweep_options: dict[str, Any] = {"figure": figure, "most": most, "config": config}
    typed = {"method": method, "trials": trials, **options}
    if resume is not None:
        check_resume_options({**typed, **sweep_options, "grid": grid, "out": out, "runs": runs})
        said = [f"{key}={value}" for key, value in (set or {}).items()]
        folder = expand_user(resume)
        return sweep_execution.resume_sweep(folder, said=said, at_once=at_once, follow=follow)[1]
    named = name_classes({**typed, "set": set})
    sweep_options |= {"runs": runs, "extra": named.extra}
    requested, _ = requested_sweep(named.typed, _texts(grid or {}), **sweep_options)
    if named.extra and at_once is None:
        at_once = 0
    with named.opened():
        folder = expand_user(out) if out is not None else sweep_execution.new_folder(requested)
        return sweep_execution.start_sweep(requested, folder, at_once=at_once, follow=follow)


def requested_sweep(
    typed: Mapping[str, Any],
    grid: Iterable[str],
    *,
    config: str | Path | None = None,
    runs: str | Path | None = None,
    most: int | None = None,
    figure: str | None = None,
    extra: Extra | None = None,
) -> tuple[Sweep, list[str]]:
    """Return the requested sweep, and notes.

    Args:
        typed: Options of the runs by their long names, with ``trials``.
        grid: ``KEY=VALUE,…`` of each axis.
        config: A file with further options.
        runs: The folder of runs.
        most: Largest number of runs.
        figure: Figure by which points are compared.
        extra: Classes of this program, which have names among the options.

    Raises:
        UsageError: The request is not possible.
    """
    axes = read_axes(grid)
    request = read_request(typed, config=config, extra=extra)
    sweep_options: dict[str, Any] = {"figure": figure}
    options = dict(request.options)
    if "trials" in options:
        sweep_options["trials"] = validated("trials", options.pop("trials"))
        request = request.with_options(options)
    sweep = Sweep(
        request,
        resolved_axes(axes, request),
        runs=expand_user(runs or "runs").absolute(),
        **{key: value for key, value in sweep_options.items() if value is not None},
    )
    notes = check_sweep(sweep, MOST if most is None else most)
    return sweep, [*request.notes, *notes]


def check_resume_options(others: Mapping[str, Any], *, plan: bool = False) -> None:
    """Check that no options are given that a resumed sweep has in its file.

    Raises:
        UsageError: Such an option is given.
    """
    conflicting = [key for key, value in others.items() if value is not None]
    if conflicting or plan:
        word = "METHOD" if conflicting[:1] == ["method"] else f"--{(conflicting or ['plan'])[0]}"
        raise UsageError(
            f"--resume uses the options of the sweep; leave {word.replace('_', '-')} out"
        )


def _texts(grid: Mapping[str, Any]) -> list[str]:
    """Return the axes as ``--grid`` takes them.

    Raises:
        UsageError: A value contains a comma.
    """
    result = []
    for key, axis_values in grid.items():
        values = [*axis_values] if isinstance(axis_values, (list, tuple, range)) else [axis_values]
        texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
        if len(texts) > 1 and (odd := [text for text in texts if "," in text]):
            raise UsageError(f"grid {key}: {odd[0]!r} contains a comma, which separates values")
        result.append(f"{key}={','.join(texts)}")
    return result
