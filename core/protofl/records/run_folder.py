"""The run folder: how a run writes it, and how an interrupted run is resumed.

Files: ``config.json`` (resolved options), ``partition.json``, ``metrics.jsonl`` (a line per round),
``summary.json`` and ``checkpoint/``. A manifest, renamed last, commits a round. Files that it does
not name do not count, so a killed run resumes from its last complete round. The manifest holds
checksums of all its files and of the record's lines (`protofl.system.files.manifest`).

A round writes only the files of its participants. A journal names the files of all trained clients,
and the manifest says how much of the journal counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.records.layout import CONFIG, METRICS, OWN, SUMMARY, check_free
from protofl.records.row import Row
from protofl.system.files.atomic import write_json
from protofl.system.files.checksums import Damaged, Record, check_plain
from protofl.system.files.manifest import Manifest
from protofl.system.files.tables import unchanged_table
from protofl.system.files.tensors import Packed, read_tensors, write_tensors
from protofl.system.options.table import EXTENDED


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
    commit: Commit | None = None
    finished: bool = False
    whole: bool = False
    """Whether the files of a finished run are needed too, as it is to go on."""

    def __post_init__(self) -> None:
        """Name what lies in the folder."""
        self._behind = ""
        self._checkpoint = self.path / "checkpoint"
        self._manifest = Manifest(self._checkpoint)
        self._record = Record(self.path / METRICS, Row)

    @property
    def rows(self) -> list[Row]:
        """The lines of metrics.jsonl."""
        return self._record.rows

    @property
    def parked(self) -> Path:
        """A folder for files of clients between rounds; no run takes it up."""
        return self.path.expanduser().absolute() / "parked"

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """Start a new folder.

        Args:
            path: The folder.
            config: What the run is, for ``config.json``.

        Raises:
            UsageError: It can't be written, or is in use.
        """
        path = path.expanduser().absolute()
        check_free(path)
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / CONFIG, config)
            folder._begin(config)
        except OSError as error:
            raise UsageError(
                f"--out {path} can't be written: {error.strerror or error}",
                do="choose another folder with --out",
            ) from None
        return folder

    def _begin(self, config: Mapping[str, Any]) -> None:
        """Keep the configuration as it is now, before the first round."""
        (self.path / METRICS).touch()
        self._checkpoint.mkdir(exist_ok=True)
        write_json(self._checkpoint / CONFIG, config)
        begun = {"config": CONFIG, "record": self._record.length}
        self._manifest.commit(begun, {}, journal="begin.jsonl")

    @classmethod
    def reopen(cls, path: Path, *, whole: bool = False, back: bool = False) -> RunFolder:
        """Open a run's folder at its last committed round that is not damaged; changes nothing.

        Args:
            path: The folder.
            whole: Whether a finished run is to go on.
            back: Whether the commit before the last shall count.

        Raises:
            Damaged: Something is in the way of going on.
        """
        folder = cls(path.expanduser().absolute(), whole=whole)
        try:
            check_plain(folder.path, OWN)
            folder._manifest.read(folder._read_rows, back=back)
            if not folder._manifest.values and not folder._record.is_empty:
                raise Damaged(f"{folder._checkpoint / 'manifest.json'} is missing")
        except Damaged as problem:
            problem.what = f"--resume: {problem.what}"
            problem.do = f"put back what was written, or begin again with --config {path / CONFIG}"
            raise
        folder._take_commit()
        return folder

    def _read_rows(self, values: Mapping[str, Any]) -> bool:
        """The rows that a commit counts; whether its other files are needed."""
        self._record.read(values.get("record"))
        self.finished = bool(values.get("finished")) and not self.whole
        return not self.finished

    def config(self) -> dict[str, Any]:
        """What config.json says of the run.

        Raises:
            Damaged: It says nothing, or not what it said when the run began.
        """
        file, began = self.path / CONFIG, self._manifest.values.get("config")
        free = EXTENDED if self._manifest.values.get("extended") else ()
        values = unchanged_table(file, self._checkpoint / began if began else None, free)
        data, options = values.get("data"), values.get("options")
        if not (isinstance(data, dict) and "digest" in data and isinstance(options, dict)):
            raise Damaged(f"{file} doesn't say what the run was", do="start a new one")
        return values

    def settle(self) -> str:
        """Cut an interrupted run to its last whole round; what is damaged of the one after it."""
        shutil.rmtree(self.parked, ignore_errors=True)  # of a run that was killed
        if not self.finished:
            (self.path / SUMMARY).unlink(missing_ok=True)
            self._manifest.settle()
        self._record.cut()
        if not self._manifest.values:  # it was killed while `create` was at work
            self._begin(self.config())
        if self._manifest.values.get("extended"):  # it may have been killed before writing it
            write_json(self.path / CONFIG, self.config())
        return "; ".join(filter(None, [self._manifest.damage, *self._manifest.lost]))

    def extend(self, config: Mapping[str, Any]) -> None:
        """From now on the run is to have other numbers of rounds and trials.

        Args:
            config: What the run is, for ``config.json``.
        """
        name = f"config-{config['trials']}x{config['rounds']}.json"
        write_json(self._checkpoint / name, config)
        self._manifest.restate({"config": name, "extended": True, "finished": False})
        write_json(self.path / CONFIG, config)

    def add(self, row: Row) -> None:
        """Append a line to metrics.jsonl, with the time."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        self._record.add(row.changed(time=now).line)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary; the run is finished."""
        write_json(self.path / SUMMARY, summary)
        if not self.finished:
            self._manifest.restate({"record": self._record.length, "finished": True})
            self.finished = True

    # --- checkpoints ----------------------------------------------------------------------------

    def client_paths(self, clients: Iterable[int], trial: int, round: int) -> dict[int, str]:
        """Where hosts write clients that have trained."""
        folder = self._checkpoint
        return {c: str(folder / f"client-{c:05d}-t{trial}-r{round}.safetensors") for c in clients}

    def commit_round(
        self,
        row: Row,
        server: Packed,
        holders: Iterable[int],
        paths: Mapping[int, str],
        *,
        keep: bool = False,
        best: bool = False,
    ) -> None:
        """Make a round count: server file, metrics line, manifest; then clear away the old.

        Args:
            row: The round's line.
            server: What the server is now.
            holders: Clients that hold the download of the round's end.
            paths: {client: its file} of those that have trained since the last commit; they have
                been written already.
            keep: Whether the last round of the trial before is kept.
            best: Whether this round is kept as its trial's best.
        """
        trial, round = row.trial, row.round
        other = self.commit if self.commit is not None and self.commit.trial != trial else None
        before = self._manifest.values
        if self._behind:
            other = Commit(before["trial"], before["round"], "", {}, [], "")
        last = {f"last-t{other.trial}": _kept(other.trial, other.round)} if other and keep else {}
        file = f"server-t{trial}-r{round}.safetensors"
        write_tensors(self._checkpoint / file, *server)
        self.add(row)
        self._manifest.commit(
            {
                "trial": trial,
                "round": round,
                "server": file,
                "holders": sorted(holders),
                "record": self._record.length,
                **{key: before[key] for key in ("config", "extended") if key in before},
            },
            {client: Path(path).name for client, path in paths.items()},
            journal=f"clients-t{trial}-r{round}.jsonl",
            anew=other is not None and not self._behind,
            behind=self._behind,
            keep={f"best-t{trial}": _kept(trial, round)} if best else {},
            keep_before=last,
        )
        self._behind = ""
        self._take_commit()

    def _take_commit(self) -> None:
        values = self._manifest.values
        if "server" in values:
            self.commit = _commit_of(values, self._manifest.numbered)

    def has_last(self, trial: int) -> bool:
        """Whether the last round of a trial that is over is kept, so that it can go on."""
        return self._manifest.kept(f"last-t{trial}") is not None

    def take_up(self, trial: int) -> None:
        """Go on with a trial; its last round is the committed one from now on."""
        if self.commit is not None and self.commit.trial == trial:
            return
        self._behind = f"last-t{trial}"
        found = self._manifest.kept(self._behind)
        assert found is not None
        clients = {client: name for client, (name, _) in found.numbered.items()}
        self.commit = _commit_of(found.values, clients)

    def committed_clients(self) -> dict[int, str]:
        """{client: its file} of the committed round."""
        assert self.commit is not None
        return {c: str(self._checkpoint / name) for c, name in self.commit.clients.items()}

    def committed_server(self) -> Packed:
        """What the server was in the committed round."""
        assert self.commit is not None
        return read_tensors(self._checkpoint / self.commit.server)


def _commit_of(values: Mapping[str, Any], clients: dict[int, str]) -> Commit:
    said = {key: values[key] for key in ("trial", "round", "server", "holders", "journal")}
    return Commit(clients=clients, **said)


def _kept(trial: int, round: int) -> str:
    """The manifest of a round that is kept."""
    return f"kept-t{trial}-r{round}.json"
