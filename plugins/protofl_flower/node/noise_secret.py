"""The secret of a node, from which the noise of its uploads comes."""

from __future__ import annotations

import hmac
import json
import os
import secrets
from pathlib import Path

import protofl as pf

FILE = "noise.secret"
SIZE = 32


def node_secret(folder: Path) -> bytes:
    """Return the secret of 32 bytes in a node's folder, which is made once and never sent.

    Raises:
        UsageError: The file is damaged, or others may read it.
    """
    path = folder / FILE
    if not path.exists():
        part = folder / f".{FILE}.{os.getpid()}"
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    secret, mode = path.read_bytes(), path.stat().st_mode & 0o777
    if mode & 0o077:
        raise pf.UsageError(
            f"{path} has the mode {mode:o}: others on this machine may know the noise of uploads",
            do="remove it, and the node makes a new one; what was sent is as known as the old one",
        )
    if len(secret) != SIZE:
        raise pf.UsageError(
            f"{path} has {len(secret)} bytes, expected {SIZE}",
            do="restore it; without it, remove it, and the node makes a new one",
        )
    return secret


def secret_of(secret: bytes, *context: str) -> bytes:
    """Return the secret of one run, plan or state: HMAC-SHA256 of the context."""
    return hmac.digest(secret, json.dumps(context).encode(), "sha256")
