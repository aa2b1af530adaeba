"""Digests of code, and places of errors in it."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tokenize
import traceback
from functools import lru_cache
from importlib.util import decode_source
from pathlib import Path

from protofl.system.files.atomic import regular_file

loaded_files: dict[str, tuple[Path, str, bytes]] = {}
"""{module: its file, the digest of its code, and its content when it was loaded from the file}."""


UNKNOWN = "?"
"""The digest of code without a file."""


def fingerprint(plugin: type) -> str:
    """Return a digest of the code in a class's file, or `UNKNOWN` if there is no file."""
    name = plugin.__module__
    if name in loaded_files:
        return loaded_files[name][1]
    file = getattr(sys.modules.get(name), "__file__", None)
    try:
        return digest_of_code(Path(file)) if file and name != "__main__" else UNKNOWN
    except OSError:
        return UNKNOWN


_LAYOUT = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)


def digest_of_code(path: Path) -> str:
    """Return the first digits of the SHA-256 of a file's `code`; an unchanged file is read once.

    Raises:
        OSError: The file can't be read.
    """
    about = os.stat(path)
    return _cached_digest(path, about.st_mtime_ns, about.st_size, about.st_ino)


@lru_cache(maxsize=1024)
def _cached_digest(path: Path, *stamps: int) -> str:
    return hashlib.sha256(code(regular_file(path).read_bytes())).hexdigest()[:12]


def code(source: bytes) -> bytes:
    """Return source code without comments, empty lines and docstrings.

    So a changed docstring does not change the identity of runs. The code is cut from the text, not
    printed from a syntax tree, which each version of Python prints differently. A file that is not
    Python source is returned unchanged.
    """
    try:
        text = decode_source(source)
        tokens = [*tokenize.generate_tokens(io.StringIO(text).readline)]
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        return source
    lines = text.split("\n")
    for token in sorted(_beside_code(tokens), key=lambda token: token.start, reverse=True):
        (first, start), (last, end) = token.start, token.end
        kept = lines[first - 1][:start].rstrip() + lines[last - 1][end:]
        lines[first - 1 : last] = [kept] if kept.strip() else []
    return "\n".join(lines).encode()


def _beside_code(tokens: list[tokenize.TokenInfo]) -> list[tokenize.TokenInfo]:
    empty = [token for token in tokens if token.type == tokenize.NL and not token.line.strip()]
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    rest = [token for token in tokens if token.type not in _LAYOUT]
    ends = [True, *(token.type == tokenize.NEWLINE for token in rest)]  # of a statement, before
    alone = [
        token
        for k, token in enumerate(rest)
        if token.type == tokenize.STRING and ends[k] and ends[k + 2 : k + 3] == [True]
    ]
    return empty + comments + alone


def error_location(error: BaseException) -> str:
    """Return ``FILE:LINE`` where an error was raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
