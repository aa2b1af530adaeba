"""What of a file is code: a digest that comments and docstrings don't change."""

from __future__ import annotations

import hashlib
import io
import os
import tokenize
from functools import lru_cache
from importlib.util import decode_source
from pathlib import Path

_LAYOUT = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)


def digest_of_code(path: Path) -> str:
    """The first digits of the SHA-256 of a file's `code`; a file is read once while it is the same.

    Raises:
        OSError: It can't be read.
    """
    about = os.stat(path)
    return _digest(path, about.st_mtime_ns, about.st_size, about.st_ino)


@lru_cache(maxsize=1024)
def _digest(path: Path, *stamps: int) -> str:
    return hashlib.sha256(code(path.read_bytes())).hexdigest()[:12]


def code(source: bytes) -> bytes:
    """A module's source without comments, empty lines, and strings that are whole statements.

    So who mends a docstring doesn't make other runs of those that are there. It is cut from the
    text, not printed from a tree, as each version of Python prints another text. What is no Python
    source is returned as it is.
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
