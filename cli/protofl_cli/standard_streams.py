"""Standard output and error: missing characters and closed pipes."""

from __future__ import annotations

import os
import sys


def replace_missing_characters() -> None:
    """Replace characters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def is_closed_pipe(problem: BaseException) -> bool:
    """Return True if the reader of the output has closed it, as ``head`` does.

    Further output is discarded.
    """
    if isinstance(problem, SystemExit):  # rich turns the error into this
        return isinstance(problem.__context__, BrokenPipeError)
    if not isinstance(problem, BrokenPipeError):
        return False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            return True
    return False


def encodes(signs: str) -> bool:
    """Return True if the terminal's encoding has these characters."""
    try:
        signs.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True
