"""Standard output and error: missing characters and closed pipes."""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata

from protofl.system.formatting import visible

SIGNS = {
    **{"±": "+-", "×": "x", "·": ".", "−": "-", "–": "-", "→": "->", "←": "<-", "↦": "->"},
    **{"≥": ">=", "≤": "<=", "≠": "!=", "≈": "~", "∞": "inf", "∂": "d", "√": "sqrt", "∘": "o"},
    **{"‖": "|", "⟨": "<", "⟩": ">", "⌊": "[", "⌋": "]", "⌈": "[", "⌉": "]", "′": "'", "’": "'"},
}
"""{sign: its form in ASCII}."""


def replace_missing_characters() -> None:
    """Replace characters that the terminal's encoding lacks, instead of failing."""
    codecs.register_error("protofl", _replaced)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="protofl")


def shown(text: str) -> str:
    """Return a text as the terminal shows it, so that the columns of tables stay aligned."""
    escaped = visible(text)
    if encodes(escaped):
        return escaped
    return "".join(sign if encodes(sign) else _ascii(sign) for sign in escaped)


def _replaced(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    missing = problem.object[problem.start : problem.end]
    return "".join(map(_ascii, missing)), problem.end


def _ascii(sign: str) -> str:
    """Return the ASCII form of a sign; Greek letters have their names, unknown signs are `?`."""
    kind, _, letter = unicodedata.name(sign, "").partition(" LETTER ")
    if kind.startswith("GREEK") and letter.isalpha():
        name = letter.replace("LAMDA", "LAMBDA")
        return name.capitalize() if "CAPITAL" in kind else name.lower()
    if unicodedata.combining(sign):
        return ""
    plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    return SIGNS.get(sign) or plain or "?"


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
