"""Paths that begin with ``~``: the only place that asks for a user's home folder."""

from __future__ import annotations

from pathlib import Path

from protofl.errors import UsageError


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
