"""Files that data sets are read from: downloads, and cache keys of users' own files."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from protofl.errors import UsageError
from protofl.system.files.atomic import LARGEST_DATA, regular_file

__all__ = ["download", "files_key"]

_CHUNK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte


def download(
    url: str,
    path: str | Path,
    md5: str | None = None,
    sha256: str | None = None,
) -> Path:
    """Download ``url`` to ``path`` unless a file with the right checksum is already there.

    The file appears under its name only when it is complete and has the right checksum; until then
    it is a ``.part`` file beside it. A file with another checksum is replaced.

    Args:
        url: An http, https or file address.
        path: The file to write; its folder is created.
        md5: The expected checksum, in hex.
        sha256: The same; give one of the two if the publisher names one.

    Returns:
        ``path``.

    Raises:
        UsageError: No connection, an error of the server, an incomplete transfer, a wrong checksum,
            or a folder that can't be written.
    """
    path = Path(path)
    expected = {"md5": md5, "sha256": sha256}
    if path.is_file() and not _mismatch(path, expected):
        return path
    partial_path = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        print(f"downloading {path.name}", file=sys.stderr, flush=True)
        _fetch(url, partial_path)
        if wrong := _mismatch(partial_path, expected):
            do = "the download is damaged or was altered on the way; try again"
            raise UsageError(f"{url}: {wrong}", do=do)
        os.replace(partial_path, path)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(error, urllib.error.HTTPError):
            reason = f"{error.code} {reason}"
            error.close()
        raise UsageError(
            f"download failed: {reason}",
            f"address: {url}",
            "check the connection and the space on the disk (--data-dir takes another folder), or "
            f"fetch it elsewhere and put it at {path}",
        ) from error
    finally:
        with suppress(OSError):  # also if its folder could not be created
            partial_path.unlink()
    return path


def _fetch(url: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    request = urllib.request.Request(url, headers={"User-Agent": "protofl"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response, path.open("wb") as file:
        received, length = 0, response.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            received += len(chunk)
    if total is not None and received != total:
        raise OSError(f"broken off after {received} of {total} bytes")


def _mismatch(path: Path, expected: dict[str, str | None]) -> str:
    """Return the checksums that differ; empty if none does."""
    wrong = []
    for name, checksum in expected.items():
        if checksum:
            digest = hashlib.new(name, usedforsecurity=False)
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
            if digest.hexdigest() != checksum.lower():
                wrong.append(f"its {name} is {digest.hexdigest()}, not {checksum.lower()}")
    return "; ".join(wrong)


def files_key(prefix: str, path: Path, files: Iterable[Path], *options: object) -> str:
    """A cache key for data that lie in the user's own files: changed files, new key.

    Args:
        prefix: The data set's name.
        path: The file or folder that the user gave; its name is part of the key.
        files: All files that are read; their paths, sizes and times are hashed. Beside the time of
            the content that is the time of the last change to the file, which users can't set back.
        options: Option values that change the decoded data.

    Raises:
        UsageError: A file is missing, is not a regular file, or is too large.
    """
    path = Path(path).resolve()
    digest = hashlib.sha256(repr((str(path), options)).encode())
    for file in files:
        try:
            stat = os.stat(regular_file(file, LARGEST_DATA))
        except OSError as error:
            raise UsageError(
                f"{file} cannot be read: {error.strerror}", do="give another file or folder"
            ) from None
        times = stat.st_mtime_ns, stat.st_ctime_ns
        digest.update(repr((os.fspath(file), stat.st_size, *times)).encode())
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:40].strip("-")
    return "-".join(filter(None, (prefix, stem, digest.hexdigest()[:12])))
