"""Files in which clients move from one host to another."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from threading import Lock


class Handover:
    """A folder for the files of moving clients, made when the first one moves."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._parent: Path | None = None
        self._folder: Path | None = None

    def begin(self, parked: str | None) -> None:
        """A new trial: forget earlier files.

        Args:
            parked: Where to make the folder: in the run folder, which hosts on other machines see
                too where they can; None for the system's temporary one.
        """
        self.clear()
        self._parent = None if parked is None else Path(parked)

    def path(self, client: int) -> Path:
        """The file of a client."""
        with self._lock:
            if self._folder is None:
                if self._parent is not None:
                    self._parent.mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix="protofl-moved-", dir=self._parent))
            return self._folder / f"client-{client:05d}.safetensors"

    def clear(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
