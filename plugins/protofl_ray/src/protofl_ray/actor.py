"""A host in a Ray actor: its calls take and return bytes.

Ray imports this module by its name in the actor's process, so protofl has to be installed there,
with the same plugins. Every argument and result is bytes, which Ray passes on as they are: a JSON
header and a blob.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import protofl as pf

_MALLOPT = {-1: 1 << 30, -2: 64 << 20, -3: 32 << 20}
"""M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD: keep freed memory, as worker processes do."""


class HostActor:
    """A host in an actor. Ray makes one call after the other."""

    def __init__(self) -> None:
        self._host: pf.backends.Host | None = None
        with suppress(OSError, AttributeError):  # another C library than glibc
            for option, value in _MALLOPT.items():
                ctypes.CDLL(None).mallopt(option, value)

    def place(self) -> bytes:
        """Return the machine and the process of this actor as JSON."""
        return json.dumps({"machine": socket.gethostname(), "process": os.getpid()}).encode()

    def build(self, plan: bytes, expected: bytes) -> bytes:
        """Build the host.

        Args:
            plan: ``Plan.to_json()``.
            expected: What `fingerprint` says where the run is.

        Returns:
            The header of a reply.
        """
        header = pf.backends.Reply().header()
        try:
            made = pf.backends.Plan.from_json(plan.decode())
            _same(json.loads(expected), fingerprint(made))
            self._host = pf.backends.Host(made)
        except Exception as error:
            header = {"failure": pf.ProtoflError.to_values(error)}
        return json.dumps(header).encode()

    def warm_up(self) -> None:
        """Import what clients' models need, while the run still prepares itself."""
        if self._host is not None:
            self._host.warm_up()

    def do(self, header: bytes, blob: bytes) -> tuple[bytes, bytes]:
        """Execute a job; return the header and the blob of the reply."""
        asked: dict[str, Any] = json.loads(header)
        try:
            if self._host is None:
                raise pf.RunFailure("the host was not built")
            _see_run_folder(asked)
            reply = self._host.handle(pf.backends.Job.from_header(asked, blob))
            answer, data = reply.header(), reply.blob
        except Exception as error:
            answer, data = {"failure": pf.ProtoflError.to_values(error)}, b""
        return json.dumps(answer).encode(), data


def fingerprint(plan: pf.backends.Plan) -> dict[str, str]:
    """Return what must be equal on all machines of a run: versions and the digest of the data."""
    versions = {name: metadata.version(name) for name in ("protofl", "torch")}
    return versions | {"data": plan.data.digest}


def _same(expected: dict[str, str], actual: dict[str, str]) -> None:
    for what, value in expected.items():
        if actual[what] != value:
            here = socket.gethostname()
            if what == "data":
                raise pf.UsageError(
                    f"the data on {here} are not those of the run",
                    do="put the same files on all machines, or the data on a shared disk",
                )
            raise pf.UsageError(
                f"{here} has {what} {actual[what]}, the run has {value}",
                do=f"install {what} {value} on all machines",
            )


def _see_run_folder(asked: dict[str, Any]) -> None:
    """Check that this machine can read the run folder, where clients' files are exchanged."""
    parked = asked.get("parked")
    if parked is not None and not Path(parked).parent.is_dir():
        raise pf.UsageError(
            f"{socket.gethostname()} doesn't see the run folder {Path(parked).parent}",
            do="give a folder on a disk that all machines share, under the same path: --out",
        )
