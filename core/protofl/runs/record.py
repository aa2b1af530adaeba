"""The run folder: what a run writes, and how an interrupted one is taken up again.

``config.json`` (everything resolved), ``partition.json``, ``metrics.jsonl`` (a line per round),
``summary.json``, ``checkpoint/``. A manifest, renamed last, commits a round: what it does not
name does not count, so a run that is killed at any moment resumes from its last whole round.

A round writes as much as it has participants: the files of all clients that have trained are named
in a journal, to which each round adds its own, and the manifest says how far it counts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.files.replacing import replacing, write_json
from protofl.plan.plan import Plan
from protofl.runs.config import config_of
from protofl.runs.server_file import load_server, save_server
from protofl.views.records import ServerRecord


@dataclass
class Journal:
    """A file with a line for every commit: the files of the clients that trained for it.

    Attributes:
        path: The file.
        length: Bytes of it that count.
        first: Bytes of its first line, which names all clients of that time.
    """

    path: Path
    length: int
    first: int

    @classmethod
    def begin(cls, path: Path, clients: Mapping[int, str]) -> Journal:
        """A new file."""
        path.unlink(missing_ok=True)  # one of a run that was killed before it counted
        journal = cls(path, 0, 0)
        journal.add(clients)
        journal.first = journal.length
        return journal

    def add(self, clients: Mapping[int, str]) -> None:
        """Append a line, durably."""
        line = (json.dumps(clients) + "\n").encode()
        with open(self.path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.length += len(line)

    @property
    def outgrown(self) -> bool:
        """Whether most of its lines are about files that are gone."""
        return self.length > 4 * self.first + (1 << 16)

    @staticmethod
    def read(path: Path, length: int) -> dict[int, str]:
        """{client: its file} after the commit at which the file had this length."""
        clients: dict[int, str] = {}
        for line in path.read_bytes()[:length].decode("utf-8").splitlines():
            clients |= {int(client): name for client, name in json.loads(line).items()}
        return clients


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
    journal: str


@dataclass
class RunFolder:
    """A run's folder on disk."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    commit: Commit | None = None
    finished: bool = False
    _journal: Journal | None = None

    @contextmanager
    def parking(self) -> Iterator[Path]:
        """A folder for files of clients between rounds, which is gone afterwards."""
        parked = self.path.expanduser().absolute() / "parked"
        try:
            yield parked
        finally:
            shutil.rmtree(parked, ignore_errors=True)

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

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
        manifest = folder._checkpoint / "manifest.json"
        if manifest.exists():
            values = json.loads(manifest.read_text(encoding="utf-8"))
            if "journal" in values:
                length = values.pop("journal_bytes")
                clients = Journal.read(folder._checkpoint / values["journal"], length)
            else:  # protofl before the journal
                clients = {int(c): name for c, name in values.pop("clients").items()}
                values["journal"] = ""
            folder.commit = Commit(clients=clients, **values)
        shutil.rmtree(path / "parked", ignore_errors=True)  # of a run that was killed
        folder._checkpoint.mkdir(exist_ok=True)
        folder._cut()
        folder._sweep()
        return folder

    def _cut(self) -> None:
        last = (self.commit.trial, self.commit.round) if self.commit else (-1, -1)
        rows = []
        if self._metrics.exists():
            for line in self._metrics.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    break  # the line that was being written when the run was killed
                if self.finished or (row["trial"], row["round"]) <= last:
                    rows.append(row)
        with replacing(self._metrics) as part:
            part.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        self.rows = rows

    def add(self, row: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
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
        trial, round, last = row["trial"], row["round"], self.commit
        file = f"server-t{trial}-r{round}.safetensors"
        save_server(server, self._checkpoint / file)
        names = {client: Path(path).name for client, path in paths.items()}
        known = last.clients if last and last.trial == trial else {}
        stale = [known[client] for client in names if client in known]
        known |= names
        self.add(row)
        journal = self._journal
        if (
            journal is None
            or last is None
            or last.trial != trial
            or len(known) == len(names)
            or journal.outgrown
        ):
            path = self._checkpoint / f"clients-t{trial}-r{round}.jsonl"
            journal = Journal.begin(path, known)
        else:
            journal.add(names)
            stale.append(last.server)
        fresh = journal is not self._journal
        self._journal = journal
        self.commit = Commit(trial, round, file, known, sorted(holders), journal.path.name)
        manifest = {k: v for k, v in vars(self.commit).items() if k != "clients"}
        write_json(self._checkpoint / "manifest.json", manifest | {"journal_bytes": journal.length})
        self._sweep(None if fresh else stale)

    def committed_clients(self) -> dict[int, str]:
        """{client: its file} of the committed round."""
        assert self.commit is not None
        return {c: str(self._checkpoint / name) for c, name in self.commit.clients.items()}

    def restore_server(self, server: ServerRecord) -> None:
        """Put a server back to the committed round."""
        assert self.commit is not None
        load_server(server, self._checkpoint / self.commit.server)

    def _sweep(self, stale: Iterable[str] | None = None) -> None:
        """Remove files that the manifest no longer names; None for whatever it doesn't name."""
        if stale is None:
            keep = {"manifest.json"}
            if self.commit:
                keep |= {self.commit.server, self.commit.journal, *self.commit.clients.values()}
            stale = [file.name for file in self._checkpoint.iterdir() if file.name not in keep]
        for name in stale:
            (self._checkpoint / name).unlink(missing_ok=True)


def check_free(path: Path) -> None:
    """Raise a `UsageError` where a new run can't use a folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            f"--out {path} is in use",
            do="choose another folder, or continue the run in it with --resume",
        )
    parent = path
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"--out {path} can't be written", do="choose another folder with --out")
