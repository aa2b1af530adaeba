"""Helpers that write files of run folders: complete lines and configs, and valid manifests."""

from __future__ import annotations

import json
import zlib

from protofl.system.files.atomic import write_json
from protofl.system.files.checksums import Check

LINE = {
    "trial": 0,
    "round": 0,
    "train_loss": 0.5,
    "loss_terms": {"ce": 0.5},
    "upload_floats": 0,
    "upload_bytes": 0,
    "download_floats": 0,
    "download_bytes": 0,
    "participants": 1,
    "evaluated": 1,
    "extra": {},
    "seconds": {"total": 1.0},
}
"""Values that every line of metrics.jsonl has."""

CONFIG = {
    "method": "fedproto",
    "models": "cnn4",
    "dataset": "digits",
    "partition": "dirichlet",
    "clients": 3,
    "participation": 1.0,
    "rounds": 10,
    "local_epochs": 1,
    "optimizer": "sgd",
    "lr": 0.01,
    "trials": 1,
    "seed": 0,
    "device": "cpu",
    "engine": "eager",
    "options": {},
}
"""Values that every config.json has."""


def write_rows(folder, rows):
    """Write rows as a record that its run has committed."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal(folder)


def seal(folder, **values):
    """Update the manifest to match the record as it is now, if the folder has a checkpoint.

    Args:
        folder: The run folder.
        values: Other values of the manifest; None removes a value.
    """
    file, record = folder / "checkpoint/manifest.json", folder / "metrics.jsonl"
    if not file.parent.is_dir():
        return
    held = json.loads(file.read_text()) if file.exists() else {"checks": {}}
    lines = record.read_bytes().count(b"\n")
    held |= {"record": [lines, *Check.of(record).values]} | values
    held = {key: value for key, value in held.items() if key != "crc32" and value is not None}
    write_json(file, held | {"crc32": zlib.crc32(json.dumps(held, sort_keys=True).encode())})
