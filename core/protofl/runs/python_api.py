"""Runs from a Python program: `protofl.run`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from protofl.federation import events
from protofl.federation.events import Progress
from protofl.records.result import Result
from protofl.runs.lifecycle.lifecycle import start
from protofl.runs.request.request import read_request


def run(
    method: str | type | object | None = None,
    *,
    models: str | type | object | None = None,
    dataset: Any = None,  # noqa: ANN401 - a name, a class, arrays, torch's data sets
    partition: str | type | object | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    config: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    progress: Progress | bool = True,
    reuse: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - the options of a run
) -> Result:
    """Train a federation of heterogeneous clients.

    A plugin is given by its name, its class, an instance, or the place of the class:
    ``"FILE.py:CLASS"`` or ``"MODULE:CLASS"``. Other processes (``workers``, ``backend``) cannot
    import a class of a script's own file or of a notebook.

    Args:
        method: A method.
        models: A model group.
        dataset: A data set, or the data: ``(x_train, y_train)`` or ``(x_train, y_train, x_test,
            y_test)`` of arrays or tensors, a mapping with these names and perhaps ``classes``, a
            torch Dataset of pairs or two of them (training, test), or a
            `protofl.datasets.Dataset`. ``set={"dataset.kind": …}`` states the kind of a sample
            if the arrays do not determine it.
        partition: A partitioner.
        out: The run folder; by default ``runs/METHOD-MODELS-DATA-sSEED-TIME``.
        resume: Continue the run in ``out``.
        config: A TOML or JSON file with options; arguments win over it.
        set: Options of plugins as ``--set`` takes them: ``{"lambda": 1, "dataset.side": 32}``.
        progress: Called with every event of the run (`protofl.events`). True: print a line per
            round and notes. False: print nothing.
        reuse: A folder of runs. A run that exists in it is not trained again; one with fewer
            rounds continues. Otherwise the run starts in it.
        **options: All other options of ``protofl run`` by their long names; ``classes=[CLASS, …]``
            makes further classes known, which ``add`` may name.

    Raises:
        UsageError: The request is not possible; nothing has been started.
        RunFailure: The run failed; finished rounds are in the folder.

    Examples:
        >>> result = pf.run("fedproto", models="mlp", dataset="wine", rounds=2)
        >>> result.summary["best_test_accuracy"] > 0.5
        True
    """
    typed = {"method": method, "models": models, "dataset": dataset, "partition": partition}
    places: dict[str, Any] = {"out": out, "resume": resume, "config": config}
    return run_named({**typed, "set": set, **options}, reuse=reuse, progress=progress, **places)


def run_named(
    typed: Mapping[str, Any],
    *,
    progress: Progress | bool,
    reuse: str | Path | None = None,
    **places: Any,  # noqa: ANN401 - as `read_request` takes them
) -> Result:
    """Do what a program asks for; see `run`.

    Args:
        typed: The options of the run.
        progress: Called with every event; True for what is usual, False for nothing.
        reuse: A folder of runs among which it may be already.
        **places: The files of a request, and whether it continues.
    """
    follow = progress or events.ignore
    if follow is True:
        from protofl.runs.lifecycle.progress_lines import Lines

        follow = Lines()
    notes: tuple[str, ...] = ()
    extra: dict[tuple[str, str], type] = {}
    opened: AbstractContextManager[None] = nullcontext()
    if not all(name == "set" or _is_plain(value) for name, value in typed.items()):
        from protofl.runs.request.program_classes import name_classes

        named = name_classes(typed)
        typed, extra, notes, opened = named.typed, named.extra, named.notes, named.opened()
    request = read_request(typed, extra=extra, **places)
    with opened:
        for line in (*notes, *request.notes):
            follow(events.Note(line))
        if reuse is None:
            return start(request, follow)
        from protofl.runs.resume.reuse import run_or_reuse

        return run_or_reuse(request, reuse, follow).result


def _is_plain(value: object) -> bool:
    """Return True for numbers and texts, which need no names."""
    return value is None or isinstance(value, (str, int, float))
