"""Definition of a sweep, its checks, and its file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from protofl.errors import UsageError, unknown
from protofl.runs.request.plugin_names import places_in
from protofl.runs.request.request import Request, read_request
from protofl.system.consent import check_code
from protofl.system.files.atomic import write_file
from protofl.system.files.lock import LOCK
from protofl.system.files.tables import read_table
from protofl.system.options.parsing import text_list
from protofl_workbench.batch.batch_events import BatchRun
from protofl_workbench.sweeps.axes import Axis, Point, read_axes, resolved_axes
from protofl_workbench.sweeps.sweep_points import (
    number_of_points,
    point_name,
    points_of,
    request_at,
)

SWEEP = "sweep.toml"

MOST = 1000
"""Default of the largest number of runs."""

Figure = Literal["best", "final", "best-server", "final-server"]
FIGURES: tuple[str, ...] = get_args(Figure)
"""Figures by which points can be compared: in the best round or in the last one."""


@dataclass(frozen=True)
class Sweep:
    """The definition of a sweep.

    Attributes:
        base: Options of all runs.
        axes: The axes.
        trials: Runs of each point; seeds count up from the base's seed.
        figure: Figure by which points are compared.
        runs: Folder of runs.
        where: Working folder at the start; relative paths refer to it.
    """

    base: Request
    axes: list[Axis]
    trials: int = 1
    figure: str = "best"
    runs: Path = Path("runs")
    where: Path = field(default_factory=Path.cwd)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs of a point."""
        first = int(self.base.options.get("seed") or 0)
        return [first + trial for trial in range(self.trials)]

    @property
    def points(self) -> int:
        """Number of points."""
        return number_of_points(self.axes)

    @property
    def all_runs(self) -> int:
        """Number of runs."""
        return self.points * self.trials

    def grid_runs(self) -> list[BatchRun]:
        """Return the runs of all points of a grid."""
        return [self.run_at(point, seed) for point in points_of(self.axes) for seed in self.seeds]

    def run_at(self, point: Point, seed: int) -> BatchRun:
        """Return the run of a point with a seed."""
        name = point_name(point)
        if self.trials > 1:
            name += f" · seed {seed}"
        return BatchRun(name, request_at(self.base, self.axes, point, seed))

    def values(self) -> dict[str, Any]:
        """Return the content of ``sweep.toml``: options as in ``--config``, and two tables."""
        sweep_table: dict[str, Any] = {"trials": self.trials, "figure": self.figure}
        sweep_table |= {"runs": str(self.runs), "where": str(self.where)}
        grid = {axis.key: axis.text for axis in self.axes}
        return {**_as_config(self.base.options), "sweep": sweep_table, "grid": grid}


def check_sweep(sweep: Sweep, most: int = MOST) -> list[str]:
    """Check a sweep, and return notes for the user.

    Raises:
        UsageError: The sweep has no axis, or too many runs.
    """
    if not sweep.axes:
        raise UsageError(
            "no --grid is given", do="write --grid KEY=VALUE,VALUE; see: protofl sweep --help"
        )
    if sweep.figure not in FIGURES:
        raise unknown("figure", sweep.figure, FIGURES)
    if bare := sweep.base.options.get("options", {}).get(""):
        raise UsageError(
            f"--set {next(iter(bare))}=…: the plugin of this option is unknown",
            do="with --grid method=… write --set NAME.KEY=VALUE",
        )
    if sweep.base.options.get("hold_split") and sweep.trials > 1:
        raise UsageError(
            "--hold-split: each trial of a sweep is a separate run with its own split",
            do="leave --hold-split out",
        )
    runs = sweep.all_runs
    if runs > most:
        factors = [str(len(axis.values)) for axis in sweep.axes]
        raise UsageError(
            f"the sweep has {runs:,} runs ({' × '.join(factors)} points × {sweep.trials} trials), "
            f"expected at most {most:,}",
            do=f"use fewer values or trials, or --most {runs}",
        )
    if sweep.points == 1:
        return ["the grid has one point: there is nothing to compare it with"]
    return []


# --- the file -------------------------------------------------------------------------------------


def check_new_folder(folder: Path, sweep: Sweep) -> None:
    """Check that a sweep can start in a folder.

    Raises:
        UsageError: The folder has a sweep or other files.
    """
    file = folder / SWEEP
    if file.exists():
        there = load_sweep(folder)
        same = there.values() == sweep.values()
        raise UsageError(
            f"--out {folder} is the folder of {'this' if same else 'another'} sweep",
            do=f"resume it: protofl sweep --resume {folder}; or choose another folder",
        )
    leftover = {LOCK, f"{SWEEP}.part"}  # of a sweep that was killed at the start
    if folder.exists() and (not folder.is_dir() or {p.name for p in folder.iterdir()} - leftover):
        raise UsageError(f"--out {folder} is in use", do="choose another folder with --out")


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write ``sweep.toml``.

    Raises:
        UsageError: The file cannot be written.
    """
    comment = f"# A sweep. Resume it with: protofl sweep --resume {folder}\n\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / SWEEP, comment + to_toml(sweep.values()))
    except OSError as error:
        raise UsageError(
            f"--out {folder} cannot be written: {error.strerror or error}",
            do="choose another folder with --out",
        ) from None


def load_sweep(folder: Path) -> Sweep:
    """Read a sweep from its folder.

    Raises:
        UsageError: The folder has no sweep, or the file is damaged.
    """
    file = folder / SWEEP
    if not file.is_file():
        raise UsageError(
            f"{folder} is not the folder of a sweep (it has no {SWEEP})",
            do="give the --out folder of the sweep",
        )
    values = read_table(file, "--resume", "a sweep")
    try:
        return _read(values, str(file))
    except KeyError as error:
        raise UsageError(f"{file}: {error} is missing", do="restore the file") from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{file}: {error}", do="restore the file") from None
    except UsageError as error:
        error.what = f"{file}: {error.what}"
        raise


def _read(values: dict[str, Any], file: str) -> Sweep:
    sweep_table, grid = values.pop("sweep"), values.pop("grid")
    if not isinstance(sweep_table, dict) or not isinstance(grid, dict):
        raise TypeError("sweep and grid: expected tables")
    base = read_request({}, config=values, file=file)
    axes = read_axes(f"{key}={value}" for key, value in grid.items())
    for axis in axes:
        for value in axis.values:
            check_code(places_in({axis.key: value}), file)
    sweep = Sweep(
        base,
        resolved_axes(axes, base),
        trials=int(sweep_table["trials"]),
        figure=str(sweep_table["figure"]),
        runs=Path(str(sweep_table["runs"])),
        where=Path(str(sweep_table["where"])),
    )
    check_sweep(sweep, most=sweep.all_runs)
    return sweep


def _as_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as in a ``--config`` file; options of plugins as for ``--set``."""
    config = {k: v for k, v in options.items() if v is not None and v not in ([], {})}
    nested = config.pop("options", {})
    if nested:
        config["set"] = {
            f"{name}.{k}": v
            for name, plugin_options in nested.items()
            for k, v in plugin_options.items()
        }
    if "transforms" in config:
        config["with"] = config.pop("transforms")
    config = as_typed(config)
    return {key: str(value) if isinstance(value, Path) else value for key, value in config.items()}


def check_same_place(sweep: Sweep) -> None:
    """Check that a sweep is resumed where it was started, as its options may have relative paths.

    Raises:
        UsageError: This is another folder.
    """
    if sweep.where != Path.cwd():
        raise UsageError(
            f"the sweep was started in {sweep.where}", do=f"go there first: cd {sweep.where}"
        )


def as_typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded options as typed: loss terms get their hook."""
    result = dict(values)
    for key, prefix in (("add", "local_loss="), ("drop", "local_loss.")):
        if result.get(key) is not None:
            terms = text_list(f"--{key}", result[key])
            whole = {t for t in terms if "=" in t or t.partition(".")[0] == "local_loss"}
            result[key] = [t if t in whole else prefix + t for t in terms]
    return result


def to_toml(values: Mapping[str, Any]) -> str:
    """Write strings, numbers, booleans, and lists and tables of them as TOML."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_toml(value)}" for key, value in plain.items()]
    for key, table in values.items():
        if isinstance(table, Mapping):
            entries = [f"{_key(inner)} = {_toml(value)}" for inner, value in table.items()]
            lines += ["", f"[{_key(key)}]", *entries]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _toml(value: Any) -> str:  # noqa: ANN401 - options are of many types
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if value is None:
        return '"none"'  # as --set writes it
    return json.dumps(str(value), ensure_ascii=False)
