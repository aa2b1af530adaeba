"""Records of a benchmark: one JSON file for each method in each setting.

A record has what the tables and statistics need: the chosen options, every run of the search, and
of each final run the figures of the round that validation samples chose, with the accuracy of each
client in it. It has no weights and no paths of the machine.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from protofl.errors import UsageError
from protofl.records.result import chosen_row
from protofl.system import version
from protofl.system.files.atomic import write_file
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reproductions.benchmark.candidates import Candidate, Weight
from protofl_workbench.reproductions.cells import Cell
from protofl_workbench.reproductions.reproduction import Reproduction, Tuning

DECIMALS = 5
"""Decimals of clients' accuracies."""

LOCAL, CENTRALISED = "local", "centralised"


def definition_of(cell: Cell, tuning: Tuning, weight: Weight | None) -> str:
    """Return a digest of everything that defines the runs of a method in a setting.

    Data files count by their names, so that a record is valid on another machine.
    """
    options = {**cell.options, "dataset": without_folder(str(cell.options.get("dataset")))}
    for key in ("data_dir", "device", "engine", "track", "eval_server"):  # change no figure here
        options.pop(key, None)
    search = tuning.model_dump(exclude={"rows", "weights", "scales"})
    main = weight and {"name": weight.name, "value": weight.value}
    values = {"options": options, "tuning": search, "weight": main}
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def without_folder(dataset: str) -> str:
    """Return a data set as ``npz:FILE`` without the folder of the file."""
    name, colon, place = dataset.partition(":")
    return f"{name}{colon}{Path(place).name}" if colon else name


def figures_of(run: Run) -> dict[str, Any]:
    """Return the figures of a finished run, as the record has them.

    They are those of the round with the best validation accuracy; of a run that fine-tunes clients
    after the last round, those after fine-tuning. Traffic is the sum over the rounds up to there.
    Seconds are left out, because runs of a benchmark compete with each other for the machine.

    Raises:
        UsageError: No round has a validation accuracy.
    """
    trial = min(run.trials)
    rows = run.rows_of(trial)
    chosen = chosen_row(rows, "validation")
    if chosen is None:
        raise UsageError("no round has a validation accuracy", do="run with --validation 0.2")
    clients = rows[-1].client_fine_tuned_accuracies
    if clients:
        chosen = rows[-1]
    else:
        clients = chosen.client_accuracies
    until = [row for row in rows if row.round <= chosen.round]
    return {
        "seed": int(run.config["seed"]),
        "rounds": len(rows),
        "chosen_round": chosen.round + 1,
        "client_accuracy": fmean(clients.values()),
        "clients": {client: round(a, DECIMALS) for client, a in clients.items()},
        "split": run.split(trial).hash,
        "upload_bytes": sum(int(row["upload_bytes"]) for row in until),
        "download_bytes": sum(int(row["download_bytes"]) for row in until),
    }


def environment_of(run: Run) -> dict[str, Any]:
    """Return versions, kind of machine, and the code of the method that made a run."""
    method = run.config["method"]
    plugins = [p for p in run.config.get("plugins", ()) if p.get("kind") == "method"]
    plugin: Mapping[str, Any] = next((p for p in plugins if p.get("name") == method), {})
    return {
        "versions": dict(run.config.get("versions", {})),
        "machine": dict(run.config.get("machine", {})),
        "plugin": {k: plugin.get(k, "") for k in ("distribution", "version", "code")},
        "commit": commit(),
        "data": str(run.config.get("data", {}).get("digest", ""))[:16],
    }


@cache
def commit() -> str:
    """Return the commit of the source of protofl; empty if it is installed without one."""
    file = Path(version.__file__)
    # A repository that only holds the environment does not have this file.
    if not _git(file.parent, "ls-files", "--error-unmatch", file.name):
        return ""
    return _git(file.parent, "rev-parse", "--short=10", "HEAD")


def _git(folder: Path, *words: str) -> str:
    """Return the output of git in a folder; empty if it fails or is not installed."""
    command = ["git", "-C", str(folder), *words]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return made.stdout.strip() if made.returncode == 0 else ""


def search_record(found: Mapping[Candidate, Mapping[int, float]]) -> list[dict[str, Any]]:
    """Return the candidates of a search with the validation accuracy of each run.

    A run that diverged has None.
    """
    return [
        {
            "lr": candidate.rate,
            "weight": candidate.weight,
            "validation_accuracy": [
                None if a < 0 else round(a, DECIMALS) for _, a in sorted(each.items())
            ],
        }
        for candidate, each in found.items()
    ]


# --- files ----------------------------------------------------------------------------------------


def folder_of(runs: Path, reproduction: Reproduction, scale: str) -> Path:
    """Return the folder of the records within a folder of runs."""
    return runs / "benchmark" / reproduction.name.replace("/", "-") / scale


def file_of(folder: Path, setting: str, method: str) -> Path:
    """Return the file of a record."""
    name = "".join(c if c.isalnum() or c in "-_.+" else "-" for c in method)
    return folder / setting / f"{name}.json"


def write_record(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write a record, one line for each final run."""
    path = file_of(folder, str(record["setting"]), str(record["method"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = record.get("runs", [])
    rest = {key: value for key, value in record.items() if key != "runs"}
    text = json.dumps(rest, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    lines = ",\n".join("  " + json.dumps(run, sort_keys=True, allow_nan=False) for run in runs)
    body = f'{text[:-2]},\n "runs": [\n{lines}\n ]\n}}\n' if runs else f"{text}\n"
    write_file(path, body)
    return path


def read_record(path: Path) -> dict[str, Any] | None:
    """Return a record; None if the file is missing.

    Raises:
        UsageError: The file is damaged.
    """
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(record, dict)
        assert {"setting", "method", "definition"} <= record.keys()
    except (ValueError, AssertionError) as error:
        raise UsageError(
            f"{path} is not a record of a benchmark: {str(error) or 'a key is missing'}",
            do="delete the file; the method then runs again",
        ) from None
    return record


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return all records in a folder, sorted by setting and method.

    Raises:
        UsageError: A file is damaged.
    """
    found = (read_record(path) for path in sorted(folder.glob("*/*.json")))
    return [record for record in found if record is not None]
