"""Folders for files that only one object of one process writes."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from threading import Lock


class ScratchFolder:
    """A folder of somebody's own, made when a file in it is first asked for.

    It is removed by `clear`, or else when nobody holds this object any more or the process ends.

    Args:
        prefix: What its name begins with.
        within: The folder in which it is made, where the parent of that one is to be seen from
            here; else, and for None, it is made in the system's temporary one.
    """

    def __init__(self, prefix: str, within: str | None = None) -> None:
        self._prefix, self._within = prefix, within
        self._lock = Lock()
        self._made: tuple[Path, weakref.finalize[..., ScratchFolder]] | None = None

    def file(self, name: str) -> Path:
        """The path of a file in it."""
        with self._lock:
            if self._made is None:
                within = self._within and Path(self._within)
                if within and within.parent.is_dir():
                    within.mkdir(exist_ok=True)
                else:
                    within = None
                path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=within))
                self._made = path, weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
            return self._made[0] / name

    def holds(self, path: Path) -> bool:
        """Whether a file lies in it."""
        return self._made is not None and path.parent == self._made[0]

    def clear(self) -> None:
        """Remove it with all files; the next one that is asked for lies in another."""
        with self._lock:
            if self._made is not None:
                self._made[1]()
                self._made = None
