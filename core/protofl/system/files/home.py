"""Paths that users give: those that begin with ``~``, and those that do not exist."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path

from protofl.errors import UsageError

MOST = 2000
"""Largest number of names in a folder among which a similar one is searched."""


def missing_path(path: Path, do: str, noun: str = "file") -> UsageError:
    """Return the error about a path that does not exist, with a similar name in its folder.

    Args:
        path: The path.
        do: What the user can do.
        noun: ``file`` or ``folder``.
    """
    near, parent = "", path.absolute().parent
    if not parent.is_dir():
        near = f"the folder {parent} does not exist"
    else:
        names = [each.name for each in islice(parent.iterdir(), MOST)]
        if similar := difflib.get_close_matches(path.name, names, n=1):
            near = f"did you mean {path.with_name(similar[0])}?"
    return UsageError(f"no {noun} {path}", near, do)


def expand_user(path: str | Path) -> Path:
    """Return a path with the home folder in place of a leading ``~`` or ``~USER``.

    A file or folder that exists under such a name (``~backup``) is taken as it is.

    Args:
        path: The path as a user writes it.

    Raises:
        UsageError: There is no such user, or this one has no home folder.
    """
    unexpanded = Path(path)
    try:
        return unexpanded.expanduser()
    except RuntimeError:  # of pathlib, for all that it does not know
        if Path(unexpanded.parts[0]).exists():
            return unexpanded
    name = unexpanded.parts[0][1:]
    if not name:
        raise UsageError(
            f"{unexpanded}: this user has no home folder",
            do="set the environment variable HOME (and PROTOFL_DATA_DIR for the cache of data), or "
            "give the path in full",
        )
    raise UsageError(
        f"{unexpanded}: there is no user {name!r} on this machine",
        do=f"give the path in full; a folder that is called so: {Path.cwd() / unexpanded}",
    )
