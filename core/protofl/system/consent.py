"""Consent to code: the files and modules whose classes this command line or program allowed.

The place of a class may come from a file that protofl reads: a reproduction, a configuration, a
sweep or a run folder. Importing the class runs code, so it needs consent: the place
itself on the command line or among a program's arguments, or ``--trust-code PATH``. Worker
processes inherit the consents of the process that starts them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.system.files.atomic import default_data_dir, regular_file
from protofl.system.files.home import expand_user

INHERITED = "PROTOFL_INTERNAL_TRUSTED"
"""The environment variable by which worker processes inherit the consents."""

_given: list[list[str]] = json.loads(os.environ.get(INHERITED, "[[], [], []]"))
_files, _modules, _folders = {*map(Path, _given[0])}, {*_given[1]}, {*map(Path, _given[2])}


def trust_code(*paths: str | Path) -> None:
    """Allow code from files or folders, or a module, for the rest of this process.

    Args:
        *paths: Python files, folders with such files, or names of modules.

    Raises:
        UsageError: The file or folder does not exist.
    """
    for path in paths:
        expanded = expand_user(path)
        if expanded.exists():
            _files.add(expanded.resolve())
        elif isinstance(path, str) and all(name.isidentifier() for name in path.split(".")):
            _modules.add(path)
        else:
            raise UsageError(f"--trust-code {path}: no such file or folder")


def allow(places: Iterable[str]) -> None:
    """Allow classes by their places, as this command line or program names them."""
    for place in filter(None, places):
        target = place.rpartition(":")[0]
        if target.endswith(".py"):
            _files.add(expand_user(target).resolve())
        else:
            _modules.add(target)


def allow_folder(folder: object) -> None:
    """Allow a data folder, as this command line or program names it."""
    if folder is not None:
        _folders.add(expand_user(str(folder)).resolve())


def is_data_folder(folder: object) -> bool:
    """Return True if the user named a data folder in this process, or it is the usual one."""
    resolved = expand_user(str(folder)).resolve()
    return resolved in _folders or resolved == expand_user(default_data_dir()).resolve()


def is_allowed(place: str) -> bool:
    """Return True if a class may be imported; an empty place names none."""
    target = place.rpartition(":")[0]
    if target.endswith(".py"):
        path = expand_user(target).resolve()
        return not _files.isdisjoint((path, *path.parents))
    parents = target.split(".")
    known = {".".join(parents[: n + 1]) for n in range(len(parents))}
    return not target or not known.isdisjoint(_modules) or parents[0] in _installed()


def check_code(places: Mapping[str, Iterable[str]], file: str) -> None:
    """Check that all classes that a file names may be imported; nothing is imported.

    Args:
        places: {key of the file: places of classes}.
        file: The file, for the error.

    Raises:
        UsageError: A class has no consent; the error names file, key, path and digest.
    """
    lacking = {
        place: key for key, named in places.items() for place in named if not is_allowed(place)
    }
    if not lacking:
        return
    first, *others = lacking
    targets = [*dict.fromkeys(place.rpartition(":")[0] for place in lacking)]
    near = "; ".join(f"{lacking[place]} = {place} ({digest_of(place)})" for place in others)
    raise UsageError(
        f"{file}: {lacking[first]} = {first} ({digest_of(first)}) is code, which does not run "
        "without your consent",
        f"also: {near}" if near else "importing it runs it with your rights",
        "read the code; to allow it: " + " ".join(f"--trust-code {path}" for path in targets),
    )


def check_recorded(options: Mapping[str, Any], file: str) -> None:
    """Check that the classes among recorded options may be imported.

    Args:
        options: The options as ``config.json`` or a ``--config`` file has them.
        file: The file, for the error.

    Raises:
        UsageError: A class has no consent.
    """
    classes = options.get("classes") or {}
    check_code({f"classes.{label}": [place] for label, place in classes.items()}, file)


def check_output(key: str, value: object, file: str, home: Path) -> None:
    """Check that an output folder that a file names is allowed.

    Args:
        key: The key, which is an option of the command line.
        value: The folder.
        file: The file, for the error.
        home: The folder of the file; folders inside need no consent.

    Raises:
        UsageError: The folder lies elsewhere.
    """
    if not is_inside(value, home):
        option = "--" + key.rpartition(".")[2].replace("_", "-")
        raise UsageError(
            f"{file}: {key} = {value} is a folder that protofl would write to",
            f"a file may name folders inside {home.absolute()} only",
            f"leave it out of the file; to allow it: {option} {value}",
        )


def is_inside(path: object, home: Path) -> bool:
    """Return True if a path is the folder, or lies in it.

    An invalid path, with a zero byte, counts as inside: reading it raises an error with its name.
    """
    try:
        return expand_user(str(path)).resolve().is_relative_to(expand_user(home).resolve())
    except ValueError:
        return True


def digest_of(place: str) -> str:
    """Describe the file of a class by its SHA-256."""
    target = place.rpartition(":")[0]
    if not target.endswith(".py"):
        return "a module outside the installed plugins"
    try:
        content = regular_file(expand_user(target)).read_bytes()
    except OSError as error:
        return error.strerror or str(error)
    return f"SHA-256 {hashlib.sha256(content).hexdigest()[:16]}…"


def inherited() -> dict[str, str]:
    """Return the environment variable that gives a worker process the consents of this one."""
    lists = [sorted(map(str, _files)), sorted(_modules), sorted(map(str, _folders))]
    return {INHERITED: json.dumps(lists)}


def _installed() -> set[str]:
    """Return the packages of the installed plugins."""
    points = importlib.metadata.entry_points()
    groups = [group for group in points.groups if group.startswith("protofl.")]
    modules = {entry.value.partition(":")[0] for g in groups for entry in points.select(group=g)}
    return {"protofl", *(name.partition(".")[0] for name in modules)}
