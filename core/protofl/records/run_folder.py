"""The run folder: how a run writes it, and how an interrupted run is resumed.

Files: ``config.json`` (resolved options), ``partition.json``, ``metrics.jsonl`` (a line per round),
``summary.json`` and ``checkpoint/``. A round is committed by one table of the files that count,
`protofl.records.checkpoint.Commit`, so a killed run resumes from its last complete round. The table
also says how much of ``metrics.jsonl`` counts. A round writes only the files of its participants.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.records.checkpoint import LAST, Checkpoint, Commit, table_of
from protofl.records.layout import CONFIG, METRICS, OWN, SUMMARY, check_free
from protofl.records.result import is_best
from protofl.records.row import Row
from protofl.system.files.atomic import write_json
from protofl.system.files.checksums import Check, Damaged, RowFile, check_plain
from protofl.system.files.home import expand_user
from protofl.system.files.tables import unchanged_table
from protofl.system.files.tensors import Packed, read_tensors, write_tensors
from protofl.system.options.table import EXTENDED


@dataclass
class RunFolder:
    """The folder of a run.

    Attributes:
        path: The folder.
        commit: The round from which the run continues; None before the first commit.
        finished: True if the run is finished and is not extended.
        elsewhere: True if hosts keep clients' files, so that the folder has their names alone.
    """

    path: Path
    commit: Commit | None = None
    finished: bool = False
    elsewhere: bool = False

    def __post_init__(self) -> None:
        self._folder = self.path / "checkpoint"
        self._checkpoint = Checkpoint(self._folder)
        self._record = RowFile(self.path / METRICS, Row)

    @property
    def rows(self) -> list[Row]:
        """The lines of metrics.jsonl."""
        return self._record.rows

    @property
    def engine(self) -> dict[str, str]:
        """The engine of the last round as an option, if it is not that of ``config.json``."""
        last = self.rows[-1] if self.rows else {}
        return {"engine": str(last["engine"])} if "engine" in last else {}

    @property
    def saved_rounds(self) -> list[tuple[int, int]]:
        """Trial and round of the last two commits, from either of which a run may be resumed."""
        return [(commit.trial, commit.round) for commit in self._checkpoint.commits]

    @property
    def parked(self) -> Path:
        """A folder for files of clients between rounds; it does not outlive the process."""
        return expand_user(self.path).absolute() / "parked"

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """Start a new folder.

        Args:
            path: The folder.
            config: The content of ``config.json``.

        Raises:
            UsageError: The folder can't be written, or is in use.
        """
        path = expand_user(path).absolute()
        check_free(path)
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / CONFIG, config)
            folder._begin(config)
        except OSError as error:
            raise UsageError(
                f"--out {path} cannot be written: {error.strerror or error}",
                do="choose another folder with --out",
            ) from None
        return folder

    def _begin(self, config: Mapping[str, Any]) -> None:
        """Commit the configuration before the first round."""
        (self.path / METRICS).touch()
        self._folder.mkdir(exist_ok=True)
        write_json(self._folder / CONFIG, config)
        files = self._checkpoint.sync([CONFIG])
        self._checkpoint.commit(Commit(config=CONFIG, record=self._record.length, files=files))

    @classmethod
    def reopen(cls, path: Path, *, extend: bool = False, back: bool = False) -> RunFolder:
        """Open a run folder at its last undamaged commit, without changing it.

        Args:
            path: The folder.
            extend: Continue a finished run, so that its checkpoint is needed.
            back: Use the commit before the last.

        Raises:
            Damaged: Files that are needed to continue are damaged.
        """
        folder = cls(expand_user(path).absolute())

        def read_record(commit: Commit) -> None:
            folder._record.read(commit.record)
            folder.finished = commit.finished and not extend

        try:
            check_plain(folder.path, OWN)
            folder._checkpoint.read(read_record, back=back)
            if not folder._checkpoint.last.files and not folder._record.is_empty:
                raise Damaged(f"{folder._folder / LAST} is missing")
        except Damaged as problem:
            problem.what = f"--resume: {problem.what}"
            problem.do = f"restore the file, or start again with --config {path / CONFIG}"
            raise
        folder._continue(folder._checkpoint.last)
        return folder

    def _continue(self, commit: Commit) -> None:
        """Continue the run from a commit."""
        if commit.server:
            self.commit, self.elsewhere = commit, commit.elsewhere

    def config(self) -> dict[str, Any]:
        """Return the content of ``config.json``.

        Raises:
            Damaged: The file is not complete, or has changed since the run began.
        """
        file, last = self.path / CONFIG, self._checkpoint.last
        first = self._folder / last.config if last.config else None
        values = unchanged_table(file, first, EXTENDED if last.extended else ())
        data, options = values.get("data"), values.get("options")
        if not (isinstance(data, dict) and "digest" in data and isinstance(options, dict)):
            raise Damaged(f"{file} doesn't say what the run was", do="start a new one")
        return values

    def settle(self) -> str:
        """Cut an interrupted run to its last complete round; return what is damaged after it."""
        shutil.rmtree(self.parked, ignore_errors=True)  # of a run that was killed
        if not self.finished:
            (self.path / SUMMARY).unlink(missing_ok=True)
            self._checkpoint.settle()
        self._record.cut()
        if not self._checkpoint.last.files:  # it was killed inside `create`
            self._begin(self.config())
        if self._checkpoint.last.extended:  # it may have been killed before writing it
            write_json(self.path / CONFIG, self.config())
        return "; ".join(filter(None, [self._checkpoint.damage, *self._checkpoint.lost]))

    def extend(self, config: Mapping[str, Any]) -> None:
        """Give the run other numbers of rounds and trials.

        Args:
            config: The new content of ``config.json``.
        """
        name, last = f"config-{config['trials']}x{config['rounds']}.json", self._checkpoint.last
        write_json(self._folder / name, config)
        files = last.files | self._checkpoint.sync([name])
        now = replace(last, config=name, extended=True, finished=False, files=files)
        self._checkpoint.restate(now)
        write_json(self.path / CONFIG, config)

    def add(self, row: Row) -> None:
        """Append a line to metrics.jsonl, with the time."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        self._record.add(row.changed(time=now).line)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary; the run is finished."""
        write_json(self.path / SUMMARY, summary)
        if not self.finished:
            last = self._checkpoint.last
            self._checkpoint.restate(replace(last, record=self._record.length, finished=True))
            self.finished = True

    # --- checkpoints ----------------------------------------------------------------------------

    def client_paths(self, clients: Iterable[int], trial: int, round: int) -> dict[int, str]:
        """Return the files to which hosts write clients that have trained."""
        return {c: self._path(f"client-{c:05d}-t{trial}-r{round}.safetensors") for c in clients}

    def _path(self, name: str) -> str:
        return name if self.elsewhere else str(self._folder / name)

    def place_clients(self, *, elsewhere: bool) -> None:
        """Say where hosts write clients: to the folder, or elsewhere under plain names.

        Raises:
            UsageError: The run has done otherwise so far.
        """
        if self.commit and self.elsewhere != elsewhere:
            places = ["in the run folder", "with the hosts of the backend"]
            raise UsageError(
                f"--resume: the clients' files of {self.path} are {places[self.elsewhere]}",
                f"this backend has them {places[elsewhere]}",
                "continue with the backend that began the run",
            )
        self.elsewhere = elsewhere

    @property
    def client_files(self) -> set[str]:
        """The names of the clients' files that the run may need."""
        return {name for name in self._checkpoint.names if name.startswith("client-")}

    def commit_round(
        self,
        row: Row,
        server: Packed,
        holders: Iterable[int],
        paths: Mapping[int, str],
        checks: Mapping[int, Check] | None = None,
        *,
        keep: str = "current",
        chosen: bool = False,
    ) -> None:
        """Commit a round: server file, line of the record, table of files; then remove old files.

        Args:
            row: The round's line of the record.
            server: The server's tensors.
            holders: Clients that hold the download of the round's end.
            paths: {client: file} of clients that have trained since the last commit; the files
                have been written already.
            checks: {client: check} of these files if they are elsewhere.
            keep: What ``--keep`` says: ``current``, or ``last`` for the last round of the trial
                before too, or ``best`` for both and the best round.
            chosen: True to keep this round, because ``--keep-weights`` names it.
        """
        trial, last, kept = row.trial, self._checkpoint.last, dict[str, Commit]()
        if keep != "current" and last.server and last.trial != trial:
            kept[f"last-t{last.trial}"] = last
        best = keep == "best" and is_best(row, self.rows)
        file = f"server-t{trial}-r{row.round}.safetensors"
        write_tensors(self._folder / file, *server)
        self.add(row)
        names = {client: Path(path).name for client, path in paths.items()}
        synced = self._checkpoint.sync([file, *(() if self.elsewhere else names.values())])
        trained = {c: (name, checks[c] if checks else synced[name]) for c, name in names.items()}
        before = self.commit if self.commit and self.commit.trial == trial else Commit()
        client_files = {**before.client_files, **trained}
        table = f"clients-t{trial}-r{row.round}.jsonl"
        check = self._checkpoint.write(table, table_of(client_files))
        commit = replace(
            last,
            trial=trial,
            round=row.round,
            server=file,
            clients=table,
            holders=tuple(sorted(holders)),
            elsewhere=self.elsewhere,
            record=self._record.length,
            finished=False,
            files={**last.files, file: synced[file], table: check},
            client_files=client_files,
        )
        if best:
            kept[f"best-t{trial}"] = commit
        if chosen:
            kept[f"r{row.round}-t{trial}"] = commit
        self._checkpoint.commit(commit, kept)
        self._continue(self._checkpoint.last)

    def has_last(self, trial: int) -> bool:
        """Return True if the last round of a finished trial is kept."""
        return self._checkpoint.kept(f"last-t{trial}") is not None

    def continue_trial(self, trial: int) -> None:
        """Continue a trial at its last round, which may be a kept one."""
        if self.commit is None or self.commit.trial != trial:
            kept = self._checkpoint.kept(f"last-t{trial}")
            assert kept is not None
            self._continue(kept)

    def committed_clients(self) -> dict[int, str]:
        """Return {client: file} of the round from which the run continues."""
        assert self.commit is not None
        return {client: self._path(name) for client, (name, _) in self.commit.client_files.items()}

    def committed_server(self) -> Packed:
        """Return the server's tensors of the round from which the run continues."""
        assert self.commit is not None
        return read_tensors(self._folder / self.commit.server)
