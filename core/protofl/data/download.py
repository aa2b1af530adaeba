"""Downloads with progress and a checksum."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from protofl.errors import UsageError

__all__ = ["download"]

_CHUNK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte


def download(
    url: str,
    path: str | Path,
    md5: str | None = None,
    sha256: str | None = None,
    report: Callable[[int, int | None], None] | None = None,
) -> Path:
    """Download ``url`` to ``path`` unless a file with the right checksum is already there.

    The file appears under its name only when it is complete and its checksum holds; until then it
    is a ``.part`` file beside it. A file that is there without its checksum holding is replaced.

    Args:
        url: An http, https or file address.
        path: The file to write; its folder is created.
        md5: The expected checksum, in hex.
        sha256: The same; give one of the two where the publisher names one.
        report: Takes (bytes so far, bytes in all or None); None: a line on standard error.

    Returns:
        ``path``.

    Raises:
        UsageError: No connection, an error of the server, a broken-off transfer, a wrong checksum
            or a folder that can't be written.
    """
    path = Path(path)
    expected = {"md5": md5, "sha256": sha256}
    if path.is_file() and not _mismatch(path, expected):
        return path
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    show = report or _Line(path.name, url)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.touch()
        except OSError as error:
            raise UsageError(
                f"can't write to {path.parent}: {error.strerror or error}",
                do="give another folder with --data-dir",
            ) from error
        _fetch(url, part, show, f"check the connection, or fetch it elsewhere and put it at {path}")
        wrong = _mismatch(part, expected)
        if wrong:
            raise UsageError(
                f"{url}: {wrong}",
                do="the download is damaged or was altered on the way; try again",
            )
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):  # also where its folder could not be made
            part.unlink()
        if isinstance(show, _Line):
            show.close()
    return path


def _fetch(url: str, part: Path, show: Callable[[int, int | None], None], do: str) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "protofl"})
    done, total = 0, None
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            show(0, total)
            with part.open("wb") as file:
                while chunk := response.read(_CHUNK):
                    _write(file.write, chunk, part)
                    done += len(chunk)
                    show(done, total)
    except urllib.error.HTTPError as error:
        error.close()
        raise UsageError(
            f"the server refused the download: {error.code} {error.reason}", f"address: {url}", do
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        what = f"broken off after {done} bytes" if done else "no connection"
        raise UsageError(f"download: {what}: {reason}", f"address: {url}", do) from error
    if total is not None and done != total:
        raise UsageError(
            f"download: broken off after {done} of {total} bytes", f"address: {url}", do
        )


def _write(write: Callable[[bytes], int], chunk: bytes, part: Path) -> None:
    try:
        write(chunk)
    except OSError as error:
        raise UsageError(
            f"can't write {part}: {error.strerror or error}",
            do="make room, or give another folder with --data-dir",
        ) from error


def _mismatch(path: Path, expected: dict[str, str | None]) -> str:
    """What is wrong with the file's checksums; empty where they hold."""
    wanted = {name: value.lower() for name, value in expected.items() if value}
    sums = {name: hashlib.new(name, usedforsecurity=False) for name in wanted}
    if sums:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                for digest in sums.values():
                    digest.update(chunk)
    return "; ".join(
        f"its {name} is {digest.hexdigest()}, not {wanted[name]}"
        for name, digest in sums.items()
        if digest.hexdigest() != wanted[name]
    )


class _Line:
    """Progress on standard error: one updating line on a terminal, one plain line elsewhere."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.moving = sys.stderr.isatty()
        self.started = False
        self.shown = 0.0

    def __call__(self, done: int, total: int | None) -> None:
        if not self.started:
            self.started = True
            size = f" ({total / 1e6:.1f} MB)" if total else ""
            print(f"downloading {self.url}{size}", file=sys.stderr, flush=True)
        now = time.monotonic()
        if self.moving and (now - self.shown > 0.2 or done == total):
            self.shown = now
            of = f" of {total / 1e6:.1f} MB, {done / total:.0%}" if total else " MB"
            line = f"{self.name}: {done / 1e6:.1f}{of}"
            print(f"\r{line:<79}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.moving and self.started:
            print(file=sys.stderr, flush=True)
