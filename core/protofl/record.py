"""The run folder: what a run writes, and how an interrupted one is taken up again.

``config.json`` (everything resolved), ``partition.json``, ``metrics.jsonl`` (a line per round),
``summary.json``, ``checkpoint/``. A manifest, renamed last, commits a round: what it does not
name does not count, so a run that is killed at any moment resumes from its last whole round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.federation import Federation
from protofl.plan import Plan
from protofl.storage import load_server, save_server


def write_json(path: Path, values: Any) -> None:  # noqa: ANN401 - anything JSON can hold
    """Write a file atomically and durably."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


@dataclass
class Commit:
    """The last committed round.

    Attributes:
        trial: Its trial.
        round: Its number.
        server: The server's file.
        clients: {client id: file} of all clients that have trained in this trial.
        holders: Clients that hold the download of the round's end.
    """

    trial: int
    round: int
    server: str
    clients: dict[int, str]
    holders: list[int]


@dataclass
class RunFolder:
    """A run's folder on disk."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    commit: Commit | None = None
    finished: bool = False

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
            write_json(path / "config.json", plan.record())
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
            clients = {int(c): f for c, f in values.pop("clients").items()}
            folder.commit = Commit(clients=clients, **values)
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
        temporary = self._metrics.with_name("metrics.jsonl.part")
        temporary.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        os.replace(temporary, self._metrics)
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
        self, federation: Federation, round: int, paths: dict[int, str], row: dict[str, Any]
    ) -> None:
        """Make a round count: server file, metrics line, manifest; then clear away the old.

        The clients in ``paths`` have been written already.
        """
        trial = federation.trial
        server = f"server-t{trial}-r{round}.safetensors"
        save_server(federation.server, self._checkpoint / server)
        before = self.commit.clients if self.commit and self.commit.trial == trial else {}
        clients = before | {client: Path(path).name for client, path in paths.items()}
        self.add(row)
        self.commit = Commit(trial, round, server, clients, sorted(federation.holders))
        write_json(self._checkpoint / "manifest.json", asdict(self.commit))
        self._sweep()

    def restore(self, federation: Federation) -> None:
        """Put a federation back to the committed round."""
        assert self.commit is not None
        files = {c: str(self._checkpoint / f) for c, f in self.commit.clients.items()}
        federation.start_trial(self.commit.trial, files)
        load_server(federation.server, self._checkpoint / self.commit.server)
        federation.holders = set(self.commit.holders)

    def _sweep(self) -> None:
        """Remove files that the manifest does not name."""
        keep = {"manifest.json"}
        if self.commit:
            keep |= {self.commit.server, *self.commit.clients.values()}
        for file in self._checkpoint.iterdir():
            if file.name not in keep:
                file.unlink(missing_ok=True)


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


def read_config(path: Path) -> dict[str, Any]:
    """A run folder's config.json.

    Raises:
        UsageError: There is none.
    """
    file = path.expanduser() / "config.json"
    if not file.exists():
        raise UsageError(
            f"--resume: {path} is no run folder (it has no config.json)",
            do="give the folder of an interrupted run with --out",
        )
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values
