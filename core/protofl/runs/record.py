"""The run folder: what a run writes, and how an interrupted one is taken up again.

``config.json`` (everything resolved), ``partition.json``, ``metrics.jsonl`` (a line per round),
``summary.json``, ``checkpoint/``. A manifest, renamed last, commits a round: what it does not
name does not count, so a run that is killed at any moment resumes from its last whole round.

A round writes as much as it has participants: the files of all clients that have trained are named
in a journal, to which each round adds its own, and the manifest says how far it counts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import nn

from protofl.errors import UsageError
from protofl.files.lines import append_line, read_lines, write_lines
from protofl.files.manifest import Manifest
from protofl.files.replacing import write_json
from protofl.files.tensors import read_tensors, write_tensors
from protofl.hosts.checkpoint import pack, unpack
from protofl.plan.plan import Plan
from protofl.runs.config import config_of
from protofl.views.records import ServerRecord
from protofl.wire.knowledge import Knowledge


@dataclass
class Commit:
    """The last committed round.

    Attributes:
        trial: Its trial.
        round: Its number.
        server: The server's file.
        clients: {client id: file} of all clients that have trained in this trial.
        holders: Clients that hold the download of the round's end.
        journal: The file that names the clients' files.
    """

    trial: int
    round: int
    server: str
    clients: dict[int, str]
    holders: list[int]
    journal: str = ""  # a run of protofl before there was one has none


@dataclass
class RunFolder:
    """A run's folder on disk."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    commit: Commit | None = None
    finished: bool = False

    def __post_init__(self) -> None:
        """Name what lies in the folder."""
        self._metrics, self._checkpoint = self.path / "metrics.jsonl", self.path / "checkpoint"
        self._manifest = Manifest(self._checkpoint)

    @property
    def parked(self) -> Path:
        """A folder for files of clients between rounds; no run takes it up."""
        return self.path.expanduser().absolute() / "parked"

    @classmethod
    def create(cls, path: Path, plan: Plan) -> RunFolder:
        """Start a new folder.

        Raises:
            UsageError: It can't be written, or is in use.
        """
        path = path.expanduser().absolute()
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "config.json", config_of(plan))
            (path / "checkpoint").mkdir(exist_ok=True)
            (path / "metrics.jsonl").touch()
        except OSError as error:
            raise UsageError(
                f"--out {path} can't be written: {error.strerror or error}",
                do="choose another folder with --out",
            ) from None
        return cls(path)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Open a run's folder; an interrupted run is cut to its last committed round."""
        path = path.expanduser().absolute()
        folder = cls(path, finished=(path / "summary.json").exists())
        shutil.rmtree(folder.parked, ignore_errors=True)  # of a run that was killed
        folder._manifest.read()
        folder._take_commit()
        last = (folder.commit.trial, folder.commit.round) if folder.commit else (-1, -1)
        rows = read_lines(folder._metrics)
        folder.rows = [r for r in rows if folder.finished or (r["trial"], r["round"]) <= last]
        write_lines(folder._metrics, folder.rows)
        return folder

    def add(self, row: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl, with the time."""
        row = {**row, "time": datetime.now().astimezone().isoformat(timespec="seconds")}
        append_line(self._metrics, row)
        self.rows.append(row)

    # --- checkpoints ----------------------------------------------------------------------------

    def client_paths(self, clients: Iterable[int], trial: int, round: int) -> dict[int, str]:
        """Where hosts write clients that have trained."""
        folder = self._checkpoint
        return {c: str(folder / f"client-{c:05d}-t{trial}-r{round}.safetensors") for c in clients}

    def commit_round(
        self,
        row: dict[str, Any],
        server: ServerRecord,
        holders: Iterable[int],
        paths: Mapping[int, str],
    ) -> None:
        """Make a round count: server file, metrics line, manifest; then clear away the old.

        Args:
            row: The round's line.
            server: The server as it is now.
            holders: Clients that hold the download of the round's end.
            paths: {client: its file} of those that have trained since the last commit; they have
                been written already.
        """
        trial, round = row["trial"], row["round"]
        file = f"server-t{trial}-r{round}.safetensors"
        save_server(server, self._checkpoint / file)
        self.add(row)
        self._manifest.commit(
            {"trial": trial, "round": round, "server": file, "holders": sorted(holders)},
            {client: Path(path).name for client, path in paths.items()},
            journal=f"clients-t{trial}-r{round}.jsonl",
            anew=self.commit is not None and self.commit.trial != trial,
        )
        self._take_commit()

    def _take_commit(self) -> None:
        if self._manifest.values:
            self.commit = Commit(clients=self._manifest.numbered, **self._manifest.values)

    def committed_clients(self) -> dict[int, str]:
        """{client: its file} of the committed round."""
        assert self.commit is not None
        return {c: str(self._checkpoint / name) for c, name in self.commit.clients.items()}

    def restore_server(self, server: ServerRecord) -> None:
        """Put a server back to the committed round."""
        assert self.commit is not None
        load_server(server, self._checkpoint / self.commit.server)


def check_free(path: Path) -> None:
    """Raise a `UsageError` where a new run can't use a folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            f"--out {path} is in use",
            do="choose another folder, or continue the run in it with --resume",
        )
    parent = next(place for place in (path, *path.parents) if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"--out {path} can't be written", do="choose another folder with --out")


def save_server(record: ServerRecord, path: Path) -> None:
    """Write the server's knowledge, modules and state."""
    packed = pack(_modules(record), "knowledge", record.knowledge, record.state, "the server")
    write_tensors(path, *packed)


def load_server(record: ServerRecord, path: Path) -> None:
    """Put back what `save_server` wrote."""
    packed, modules = read_tensors(path), _modules(record)
    knowledge, record.state = unpack(packed, modules, "knowledge", "the server", record.device)
    record.knowledge = Knowledge(knowledge)


def _modules(record: ServerRecord) -> dict[str, nn.Module]:
    """The modules of all methods by their names in the file."""
    return {
        f"module/{owner}/{name}": module
        for owner, modules in record.modules.items()
        for name, module in modules.items()
    }
