"""Versions of clients that lie on nodes, as a deployed run counts them.

A version is the digest of a client's file on its node. The run decides which version of a client
counts: a node that lost a reply, or answered too late, has a version that the run never named, and
goes back to the one that the next job names. So a client is trained exactly once per round.

The checkpoint of a deployed run holds, in the place of each client's file, a file of one line with
the version. These files are read to know which versions a node must keep: those of the last two
commits and of kept rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_plugins.backends.envelopes import VERSION

MARK = "version of a client on its node"


class Versions:
    """The versions of a trial's clients that count."""

    def __init__(self) -> None:
        self._now: dict[int, str] = {}
        self._before: dict[int, str] = {}
        self._folder: Path | None = None

    def start(self, files: Mapping[int, str]) -> None:
        """Start a trial, in which some clients have files."""
        self._before = {}
        self._now = {int(client): read_version(Path(path)) for client, path in files.items()}
        if files:
            self._folder = Path(next(iter(files.values()))).parent

    def now(self, client: int) -> str:
        """Return the version that counts; empty for the initial state."""
        return self._now.get(client, "")

    def trained(self, client: int, version: str) -> None:
        """Note that a client has trained."""
        self._before[client] = self.now(client)
        self._now[client] = version

    def answer(self, header: Mapping[str, Any]) -> None:
        """Do a job that needs no node: save, load, drop or undo."""
        client, kind = header["client"], header["kind"]
        match kind:
            case "Save":
                path = Path(header["path"])
                self._folder = path.parent
                write_version(path, client, self.now(client))
            case "Load":
                self._now[client] = read_version(Path(header["path"]))
            case "Drop":
                self._now.pop(client, None)
            case "Undo":
                if client in self._before:
                    self._now[client] = self._before.pop(client)
            case _:
                raise TypeError(f"a pool of nodes can't do {kind}")

    def needed(self, clients: Iterable[int]) -> set[str]:
        """Return the versions that the node of these clients must keep."""
        found: set[str] = set()
        for client in clients:
            found |= {self.now(client), self._before.get(client, "")}
            if self._folder is not None:
                files = self._folder.glob(f"client-{client:05d}-*.safetensors")
                found |= {read_version(path) for path in files}
        return found - {""}


def write_version(path: Path, client: int, version: str) -> None:
    """Write the file that stands for a client's file."""
    text = json.dumps({"protofl": MARK, "client": client, "version": version})
    path.write_text(text + "\n", encoding="utf-8")


def read_version(path: Path) -> str:
    """Return the version in a file of a checkpoint.

    Raises:
        UsageError: The file is a client's own, so that the run was not a deployed one; or damaged.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(1000))
        if found["protofl"] == MARK and VERSION.match(found["version"]):
            return str(found["version"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise pf.UsageError(
        f"{path} doesn't name a version of a client on a node",
        do="resume a simulated run with protofl run --resume",
    )
