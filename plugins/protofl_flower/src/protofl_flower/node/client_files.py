"""Versions of a node's clients on its disk.

A client is written after each training, before the reply is sent, under its number, the length and
the CRC-32 of its file. A job names the version on which it builds. ``names.json`` says which
versions the checkpoint of the run names. All others are removed when a request no longer names
them, so a node holds those that count and the one that it has just made.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.files import write_json
from protofl_flower.protocol.messages import version_of

RUNS = 5
"""Runs whose clients a node keeps."""

NAMES = "names.json"

KEPT = 1000
"""Evaluations that a node remembers; it does no earlier ones."""

TOO_OLD = 1 << 40

PLAN = "plan.json"
"""The plan as this node took it."""


class Stale(Exception):
    """The version on which a job builds is not on this node."""


class NodeFiles:
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
        self._names: dict[str, str] = {}
        with suppress(OSError, ValueError):
            self._names = dict(json.loads((self._folder / NAMES).read_text(encoding="utf-8")))

    def keep_plan(self, text: str) -> None:
        """Write the plan of the run, for exports."""
        (self._folder / PLAN).write_text(text, encoding="utf-8")

    def evaluated(self, client: int, about: Mapping[str, Any], blob: bytes) -> None:
        """Write with what a client was evaluated last: a line of facts, and its download."""
        temporary = self._folder / f"evaluation-{client:05d}.part"
        temporary.write_bytes(json.dumps(dict(about)).encode() + b"\n" + blob)
        temporary.replace(temporary.with_suffix(""))

    def count_evaluation(self, client: int, trial: int, number: int) -> int:
        """Count an evaluation of a client; a restart of the node keeps the numbers.

        Args:
            client: The client.
            trial: The trial.
            number: The number of the evaluation: later rounds have larger ones.

        Returns:
            How often the client did this evaluation; `TOO_OLD` if the node does not
            know it any more.
        """
        file = self._folder / f"evaluations-{client:05d}.json"
        counts = dict[str, int]()
        with suppress(OSError, ValueError):
            counts = dict(json.loads(file.read_text(encoding="utf-8")))
        rounds = sorted([*map(int, key.split("-"))] for key in counts)
        if len(rounds) >= KEPT and [trial, number] < rounds[0]:
            return TOO_OLD
        key = f"{trial}-{number}"
        counts[key] = counts.get(key, 0) + 1
        for old in rounds[: len(rounds) + 1 - KEPT]:
            counts.pop(f"{old[0]}-{old[1]}", None)
        write_json(file, counts)
        return counts.get(key, TOO_OLD)

    def begin(self) -> None:
        """Note that the host has forgotten its clients."""
        self._here = {}

    def keep(self, names: Mapping[str, str], versions: Collection[str]) -> None:
        """Remove all versions but these.

        Args:
            names: {file that the checkpoint names: its version}; empty for one named before.
            versions: Other versions that count.
        """
        file_versions = {
            name: version or self._names.get(name, "") for name, version in names.items()
        }
        if file_versions != self._names:
            write_json(self._folder / NAMES, file_versions)
            self._names = file_versions
        counted = {*versions, *file_versions.values()}
        for path in self._folder.glob("client-*"):
            if path.suffix == ".part" or path.stem.split("-", 2)[-1] not in counted:
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
            path = self._path(client, version)
            if not path.is_file() or version_in(path) != version:
                raise Stale(f"client {client}: this node does not have its last state")
            self._do("Load", client, path=str(path))
            # The host reads the file when it needs it, and a request may then no longer name it.
            self._host.client(client, keep=True)
        self._here[client] = version

    def write(self, client: int) -> str:
        """Write the present state of a client; return its version."""
        temporary = self._folder / f"client-{client:05d}.part"
        self._do("Save", client, path=str(temporary))
        version = version_in(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.replace(self._path(client, version))
        self._here[client] = version
        return version

    def forget(self, client: int) -> None:
        """Note that the host's state of a client counts no longer."""
        self._here[client] = "unknown"

    def _path(self, client: int, version: str) -> Path:
        return self._folder / f"client-{client:05d}-{version}.safetensors"

    def _do(self, kind: str, client: int, **values: Any) -> None:  # noqa: ANN401 - of a job
        job = {"kind": kind, "client": client, **values}
        self._host.handle(pf.backends.Job.from_header(job))


@dataclass(frozen=True)
class Evaluation:
    """A client of a run on this node as it was evaluated last.

    Attributes:
        plan: The plan, as JSON.
        file: The client's file; None if it had not trained.
        trial: The trial.
        round: The round.
        blob: The encoded download.
    """

    plan: str
    file: Path | None
    trial: int
    round: int
    blob: bytes


def last_evaluation(folder: Path, client: int) -> Evaluation:
    """Return the last evaluation of a client.

    Args:
        folder: The folder of the run on this node.
        client: The client.

    Raises:
        UsageError: It was not evaluated here, or its file is gone.
    """
    try:
        line, _, blob = (folder / f"evaluation-{client:05d}").read_bytes().partition(b"\n")
        plan = (folder / PLAN).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise pf.UsageError(f"client {client} was not evaluated on this node in {folder}") from None
    about = json.loads(line)
    file, version = None, about["version"]
    if version:
        file = folder / f"client-{client:05d}-{version}.safetensors"
        if not file.is_file() or version_in(file) != version:
            raise pf.UsageError(
                f"the state with which client {client} was evaluated last is gone",
                do="export after the next evaluation",
            )
    return Evaluation(plan, file, about["trial"], about["round"], blob)


def version_in(path: Path) -> str:
    """Return the version of a file."""
    size, crc = 0, 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return version_of(size, crc)
