"""Sweeps as they are asked for, by a command or from Python: `sweep`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.runs.plugin_names import NamedOptions, named_request
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
    search: str | None = None,
    budget: int | None = None,
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
    """Do runs over a grid of options, or search it, as ``protofl sweep`` does.

    Runs that are in the folder of runs already are not repeated. A sweep that is interrupted goes
    on with ``pf.sweep(resume=FOLDER)``, or ``protofl sweep --resume FOLDER``.

    Args:
        method: A method or a recipe; None where they are an axis.
        grid: {option, as ``--grid`` names it: its values, or ``"LOW..HIGH[:log]"`` to search}.
        trials: Runs of each point, one for each seed; 1 where not given.
        figure: By what points are compared: ``best`` (the usual one), ``final``, ``best-server`` or
            ``final-server`` accuracy, on validation samples where the runs have some.
        search: ``tpe`` to have Optuna choose points; None to do all.
        budget: Points that a search tries.
        out: The sweep's folder; by default ``runs/sweeps/METHOD-MODELS-DATA-TIME``.
        runs: The folder of runs; by default ``runs``.
        resume: The folder of a sweep that is to go on; beside it stand ``budget``, ``at_once``,
            ``follow``, and ``set`` for what nobody but you may allow.
        most: Runs that a sweep has at most; 1,000 where not given.
        at_once: Runs that are done at once; None as many as there are cores, 0 in this process, as
            classes of this program need it.
        config: A TOML or JSON file with options of the runs; arguments win over it.
        set: Options of plugins as ``--set`` takes them.
        follow: Called with every event of the runs (`protofl_workbench.batch.batch_events`).
        **options: Further options of all runs, as `protofl.run` takes them.

    Returns:
        The points, best first: ``result.best.point``, and ``result.records()`` and
        ``result.frame()`` with a line for each run. A run that failed stopped no other.

    Raises:
        UsageError: A run can't be done, or the folder is in use; nothing has been started.

    Examples:
        >>> found = pf.sweep("fedtgp", models="htfe8", grid={"tau": [10, 100]})  # doctest: +SKIP
        >>> found.best.point  # doctest: +SKIP
        {'tau': '100'}
    """
    own: dict[str, Any] = {"figure": figure, "search": search, "budget": budget}
    typed = {"method": method, "trials": trials, **options}
    if resume is not None:
        others = {**typed, **own, "grid": grid, "out": out, "runs": runs, "most": most}
        check_resume_options(
            {k: v for k, v in {**others, "config": config}.items() if k != "budget"}
        )
        said = [f"{key}={value}" for key, value in (set or {}).items()]
        return sweep_execution.resume_sweep(
            Path(resume).expanduser(), said=said, budget=budget, at_once=at_once, follow=follow
        )[1]
    found, named, _ = requested_sweep(
        {**typed, "set": set},
        _texts(grid or {}),
        config=config,
        runs=runs,
        most=most,
        **own,
    )
    if named.extra and at_once is None:
        at_once = 0
    with ExitStack() as until:
        for offer in named.offers:
            until.enter_context(offer.open())
        folder = Path(out) if out is not None else sweep_execution.new_folder(found)
        return sweep_execution.start_sweep(
            found, folder.expanduser(), at_once=at_once, follow=follow
        )


def requested_sweep(
    typed: Mapping[str, Any],
    grid: Iterable[str],
    *,
    config: str | Path | None = None,
    runs: str | Path | None = None,
    most: int | None = None,
    search: str | None = None,
    budget: int | None = None,
    figure: str | None = None,
) -> tuple[Sweep, NamedOptions, list[str]]:
    """Return the requested sweep, its classes and arrays, and notes.

    Args:
        typed: Options of the runs by their long names, with ``trials``.
        grid: ``KEY=VALUE,…`` of each axis.
        config: A file with further options.
        runs: The folder of runs.
        most: Runs that it may have at most.
        search: ``tpe``, or None.
        budget: Points that a search tries.
        figure: By what points are compared.

    Raises:
        UsageError: It can't be.
    """
    axes = read_axes(grid)
    request, found = named_request(typed, config=config)
    own: dict[str, Any] = {"figure": figure, "search": search, "budget": budget}
    if "trials" in request.options:
        own["trials"] = validated("trials", request.options.pop("trials"))
    if search and budget is None:
        raise UsageError("--search tries as many points as --budget says", do="write --budget N")
    if budget is not None and not search:
        raise UsageError(
            "--budget is for a search; a grid is done as a whole", do="add --search tpe"
        )
    sweep = Sweep(
        request,
        resolved_axes(axes, request),
        runs=Path(runs or "runs").expanduser().absolute(),
        **{key: value for key, value in own.items() if value is not None},
    )
    notes = check_sweep(sweep, MOST if most is None else most)
    return sweep, found, [*found.notes, *notes]


def check_resume_options(others: Mapping[str, Any], *, plan: bool = False) -> None:
    """Check that no option is given that the file of a resumed sweep sets.

    Raises:
        UsageError: Something is.
    """
    given = [key for key, value in others.items() if value is not None]
    if given or plan:
        word = "METHOD" if given[:1] == ["method"] else f"--{(given or ['plan'])[0]}"
        raise UsageError(
            f"--resume goes on with the sweep as it was; leave {word.replace('_', '-')} out"
        )


def _texts(grid: Mapping[str, Any]) -> list[str]:
    """Return the axes as ``--grid`` takes them.

    Raises:
        UsageError: A value has a comma in it.
    """
    found = []
    for key, given in grid.items():
        values = [*given] if isinstance(given, (list, tuple, range)) else [given]
        texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
        if len(texts) > 1 and (odd := [text for text in texts if "," in text]):
            raise UsageError(f"grid {key}: {odd[0]!r} has a comma in it, which parts values")
        found.append(f"{key}={','.join(texts)}")
    return found
