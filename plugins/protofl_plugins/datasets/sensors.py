"""Motion sensors of persons, in the folders that UCI distributes: ``har:DIR``, ``pamap2:DIR``.

A sample is a window of a series, channels×length, and the column ``subject`` names its person: each
person is a client (``--partition column:subject``, the default). As in PFLlib and HtFLlib, the
windows of a person are shuffled and split 75/25. Neighbouring windows share half their readings,
so a person's test windows overlap its training windows.

- ``har``: Human Activity Recognition Using Smartphones (Anguita et al., ESANN 2013,
  https://archive.ics.uci.edu/dataset/240). 30 persons, 6 activities, 10,299 windows of 128
  readings at 50 Hz of 9 channels: body acceleration, gyroscope and total acceleration along three
  axes. The persons of its own test part appear in no training part, so both parts are pooled.
- ``pamap2``: Physical Activity Monitoring (Reiss and Stricker, ISWC 2012,
  https://archive.ics.uci.edu/dataset/231). 9 persons, 27 channels at 100 Hz: acceleration (±16 g),
  gyroscope and magnetometer along three axes, at hand, chest and ankle. As in PFLlib: windows of
  256 readings, 128 apart, missing readings are 0, each channel of a person is divided by its
  largest absolute value, and the twelve activities of the protocol stay. Departure: a window of two
  activities is left out; PFLlib gives it the smaller number.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import protofl as pf

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
"""The channels of ``har``, by the names of their files."""

ACTIVITIES = {
    1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling",
    7: "nordic walking", 12: "ascending stairs", 13: "descending stairs",
    16: "vacuum cleaning", 17: "ironing", 24: "rope jumping",
}  # fmt: skip
"""The numbers of the protocol's activities in ``pamap2``."""

COLUMNS = 54
"""Numbers in a line of ``pamap2``: time, activity, heart rate and 17 of each of three sensors."""

CHANNELS = [3 + 17 * place + at for place in range(3) for at in (1, 2, 3, 7, 8, 9, 10, 11, 12)]
"""Columns of acceleration (±16 g), gyroscope and magnetometer at hand, chest and ankle."""


class HAR:
    """UCI HAR: smartphone series of 30 persons, 6 activities, a client a person (har:DIR)."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {"partition": "column:subject"}

    class Config(pf.Config):
        """Options of har."""

        path: str = pf.Field(description="the folder that holds train/ and test/")

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The paths, sizes and times of all files."""
        root = _folder(config.path, "har")
        files = [file for subset in ("train", "test") for file in _files_of_har(root, subset)]
        names = root / "activity_labels.txt"
        named = [names] if names.is_file() else []
        return pf.datasets.files_key("har", root, [*files, *named], "by number")

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Read the windows of both parts.

        Raises:
            UsageError: A file is missing or damaged, or files differ in their numbers of windows.
        """
        root = _folder(config.path, "har")
        names = _names(root / "activity_labels.txt")
        numbers = sorted(names)
        parts, subjects = [], []
        for subset in ("train", "test"):
            *signals, people, labels = _files_of_har(root, subset)
            y = _numbers(labels)[:, 0].astype(np.int64)
            subjects.append(_numbers(people)[:, 0].astype(np.int64))
            channels = [_numbers(file) for file in signals]
            for file, table in zip((people, *signals), (subjects[-1], *channels), strict=True):
                _check_lines(file, len(table), labels, len(y))
            for file, table in zip(signals, channels, strict=True):
                _check_lines(file, table.shape[1], signals[0], channels[0].shape[1], "columns")
            if names and (strange := sorted({*y.tolist()} - {*numbers})):
                raise pf.UsageError(
                    f"{labels} has the activity {strange[0]}, which has no name",
                    f"{root / 'activity_labels.txt'} names {', '.join(map(str, numbers))}",
                    "unpack the data set again",
                )
            y = np.searchsorted(numbers, y) if names else y - 1
            parts.append((np.stack(channels, 1), y, str(root / subset)))
        return pf.datasets.dataset_from_arrays(
            parts,
            classes=[names[number] for number in numbers] or None,
            kind="series",
            columns={"subject": np.concatenate(subjects)},
        )


class PAMAP2:
    """PAMAP2: series of three body sensors of 9 persons, a client a person (pamap2:DIR)."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {"partition": "column:subject"}

    class Config(pf.Config):
        """Options of pamap2."""

        path: str = pf.Field(description="the folder that holds Protocol/subject101.dat and others")
        window: int = pf.Field(256, ge=8, description="readings of a window, at 100 Hz")
        step: int = pf.Field(128, ge=1, description="readings between the starts of two windows")
        optional: bool = pf.Field(
            True, description="also read Optional/, further recordings of some persons, if there"
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The paths, sizes and times of all files, and the options."""
        root = _folder(config.path, "pamap2")
        files = [file for person in _persons(root, config.optional) for file in person]
        return pf.datasets.files_key("pamap2", root, files, config.window, config.step)

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Cut each person's recordings into windows.

        Raises:
            UsageError: A file is missing or damaged, or holds no window of one activity.
        """
        root = _folder(config.path, "pamap2")
        activities = np.array([*ACTIVITIES])
        parts, subjects = [], []
        for files in _persons(root, config.optional):
            readings = np.concatenate([_numbers(file, COLUMNS) for file in files])
            x, activity = _windows(readings, config.window, config.step)
            if not len(x):
                raise pf.UsageError(
                    f"{files[0]} has no {config.window} readings in a row of one activity",
                    f"{len(readings)} readings",
                    "copy the file again, or use a smaller --set dataset.window",
                )
            parts.append((x, np.searchsorted(activities, activity), str(files[0])))
            subjects.append(np.full(len(x), int(files[0].stem.removeprefix("subject"))))
        data = pf.datasets.dataset_from_arrays(
            parts,
            classes=[*ACTIVITIES.values()],
            kind="series",
            columns={"subject": np.concatenate(subjects)},
        )
        data.preparation = None  # each person's channels are divided by largest values of their own
        return data


def _windows(readings: np.ndarray, window: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut one person's readings into windows.

    Args:
        readings: Lines of the files, [T, 54].
        window: Readings of a window, L.
        step: Readings between the starts of two windows.

    Returns:
        Windows [n, 27, L] of one activity of the protocol each, and these activities [n].
    """
    values = np.nan_to_num(readings[:, CHANNELS], nan=0.0)
    values /= np.maximum(np.abs(values).max(0, initial=0.0), 1e-12)
    if len(values) < window:
        return np.empty((0, len(CHANNELS), window), np.float32), np.empty(0, np.int64)
    starts = slice(None, None, step)
    cut = np.lib.stride_tricks.sliding_window_view
    x = cut(values, window, axis=0)[starts]
    activity = cut(readings[:, 1].astype(np.int64), window)[starts]
    kept = (activity == activity[:, :1]).all(1) & np.isin(activity[:, 0], [*ACTIVITIES])
    return x[kept].astype(np.float32), activity[kept, 0]


def _folder(path: str, name: str) -> Path:
    """Return the data set's folder; the folder around it serves too."""
    root = pf.expand_user(path)
    if not root.is_dir():
        raise pf.missing_path(root, f"give it as --dataset {name}:DIR", "folder")
    for inner in ("UCI HAR Dataset", "PAMAP2_Dataset"):
        if (root / inner).is_dir():
            return root / inner
    return root


def _files_of_har(root: Path, subset: str) -> list[Path]:
    """The files of one part: nine signals, then subjects and labels."""
    folder = root / subset
    files = [folder / "Inertial Signals" / f"{name}_{subset}.txt" for name in SIGNALS]
    files += [folder / f"subject_{subset}.txt", folder / f"y_{subset}.txt"]
    for file in files:
        if not file.is_file():
            raise pf.UsageError(
                f"no file {file}",
                do="give the unpacked folder 'UCI HAR Dataset': --dataset har:DIR",
            )
    return files


def _check_lines(file: Path, count: int, other: Path, expected: int, what: str = "lines") -> None:
    if count != expected:
        raise pf.UsageError(
            f"{file} has {count} {what}, but {other} has {expected}",
            do="the files do not belong together; unpack the data set again",
        )


def _persons(root: Path, optional: bool) -> list[list[Path]]:
    """Return each person's files, in the order of the persons' numbers."""
    files = sorted((root / "Protocol").glob("subject[0-9]*.dat"))
    if not files:
        raise pf.UsageError(
            f"no file {root / 'Protocol'}/subject101.dat",
            do="give the unpacked folder 'PAMAP2_Dataset': --dataset pamap2:DIR",
        )
    more = [root / "Optional" / file.name for file in files]
    return [[a, b] if optional and b.is_file() else [a] for a, b in zip(files, more, strict=True)]


def _numbers(file: Path, columns: int | None = None) -> np.ndarray:
    """Return the numbers of a text file, [lines, columns].

    Raises:
        UsageError: The file can't be read, or has another number of columns.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's about empty files
            result = np.loadtxt(file, dtype=np.float64, ndmin=2)
    except (OSError, ValueError) as error:
        raise pf.UsageError(
            f"{file} cannot be read as numbers: {' '.join(str(error).split())}",
            do="the file is damaged; unpack the data set again",
        ) from error
    if not result.size or columns not in (None, result.shape[1]):
        raise pf.UsageError(
            f"{file} has {result.shape[1]} numbers in a line, expected {columns}"
            if result.size
            else f"{file} is empty",
            do="the file is damaged or of another data set; unpack the data set again",
        )
    return result


def _names(file: Path) -> dict[int, str]:
    """Return {number: activity}, of lines such as ``1 WALKING``; empty without such a file.

    Raises:
        UsageError: A line has no number, or a number or name occurs twice.
    """
    result: dict[int, str] = {}
    lines = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    for line in filter(str.strip, lines.splitlines()):
        number, _, name = line.strip().partition(" ")
        name = name.strip().lower()
        if not number.isdecimal() or not name or int(number) in result or name in result.values():
            raise pf.UsageError(
                f"{file}: the line {line.strip()!r} is not a number and a name of its own",
                "expected lines such as: 1 WALKING",
                "unpack the data set again",
            )
        result[int(number)] = name
    return result
