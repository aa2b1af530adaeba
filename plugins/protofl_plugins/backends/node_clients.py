"""Versions of a node's clients on its disk.

A client is written after each training, before the reply is sent, under the SHA-256 of its file. A
job names the version on which it builds. Versions that a request no longer names are removed, so a
node holds those that count and the one that it has just made.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import protofl as pf

RUNS = 5
"""Runs whose clients a node keeps."""


class Stale(Exception):
    """The version on which a job builds is not on this node."""


class ClientFiles:
    """The clients of a run on this node.

    Args:
        folder: The folder of all runs.
        run: The name of the run.
        host: The host with the clients in memory.
    """

    def __init__(self, folder: Path, run: str, host: pf.backends.Host) -> None:
        self._folder, self._host = folder / run, host
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(self._folder)
        runs = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in runs[:-RUNS]:
            shutil.rmtree(old, ignore_errors=True)
        self._here: dict[int, str] = {}

    def begin(self) -> None:
        """Note that the host has forgotten its clients."""
        self._here = {}

    def keep(self, versions: Collection[str]) -> None:
        """Remove all versions but these."""
        for path in self._folder.iterdir():
            if path.stem not in versions:
                with suppress(OSError):
                    path.unlink()

    def set(self, client: int, version: str) -> None:
        """Set a client of the host to a version; empty for its initial state.

        Raises:
            Stale: The version is not on this node.
        """
        if self._here.get(client, "") == version:
            return
        if not version:
            self._do("Drop", client)
        else:
            path = self._path(version)
            if not path.is_file() or digest_of(path) != version:
                raise Stale(f"client {client}: this node does not have its last state")
            self._do("Load", client, path=str(path))
            # The host reads the file when it needs it, and a request may then no longer name it.
            self._host.client(client, keep=True)
        self._here[client] = version

    def write(self, client: int) -> str:
        """Write the present state of a client; return its version."""
        part = self._folder / f"client-{client:05d}.part"
        self._do("Save", client, path=str(part))
        version = digest_of(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        part.replace(self._path(version))
        self._here[client] = version
        return version

    def forget(self, client: int) -> None:
        """Note that the host's state of a client counts no longer."""
        self._here[client] = "unknown"

    def _path(self, version: str) -> Path:
        return self._folder / f"{version}.safetensors"

    def _do(self, kind: str, client: int, **values: Any) -> None:  # noqa: ANN401 - of a job
        job = {"kind": kind, "client": client, **values}
        self._host.handle(pf.backends.Job.from_header(job))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
