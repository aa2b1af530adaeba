"""Values of columns of a table: numbers, texts, and where they are missing."""

from __future__ import annotations

import difflib
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import protofl as pf

_GAPS = frozenset(
    ("", "na", "nan", "-nan", "none", "nat", "<na>", "n/a", "#n/a", "#na", "null", "?")
)
"""Texts, in small letters, that programs write where a number is missing."""

_GAPS_IN_TEXTS = frozenset(("", "NA", "NaN", "nan", "<NA>"))
"""Texts that are a missing value in columns of texts, where None may be a category."""

_DISGUISES = re.compile(r"\d_\d|(?![0-9])\d")
"""An underscore between digits, and digits other than 0 to 9."""


def as_objects(values: Sequence[str]) -> np.ndarray:
    """Return texts [n] as objects: an array of texts would be as wide as the longest."""
    result = np.empty(len(values), object)
    result[:] = values
    return result


def block_of(frame: Any) -> dict[str, np.ndarray]:  # noqa: ANN401 - a data frame, or a mapping of columns
    """Return the columns of a data frame, or of a mapping {column: values}."""
    block = {}
    for name in frame.keys():
        values = np.asarray(frame[name])
        if values.dtype.kind in "iuf":
            block[str(name)] = values.astype(np.float64)
        else:
            texts = ["" if value is None else str(value) for value in values.astype(object)]
            block[str(name)] = as_objects(texts)
    return block


def gaps_in(values: np.ndarray, *, texts: bool = False) -> np.ndarray:
    """Return where values are missing, [n] bool.

    Args:
        values: Numbers, or texts.
        texts: True for a column of texts, where only what is empty or NA is missing.
    """
    if values.dtype != object:
        missing: np.ndarray = np.isnan(values)
        return missing
    cells = values.tolist()
    if texts:
        gaps = {cell for cell in {*cells} if cell.strip() in _GAPS_IN_TEXTS}
    else:
        gaps = {cell for cell in {*cells} if cell.strip().lower() in _GAPS}  # most repeat
    return np.fromiter((cell in gaps for cell in cells), bool, len(cells))


def without(
    values: np.ndarray, words: Sequence[str], found: Counter[str] | None = None
) -> np.ndarray:
    """Return values [n] where some words are missing values.

    Args:
        values: Numbers, or texts.
        words: The words, or numbers as texts.
        found: Counts the rows of each word.
    """
    if not words:
        return values
    places = places_in(values, {word: place for place, word in enumerate(words)})
    if found is not None:
        found.update(words[place] for place in places[places >= 0])
    return np.where(places < 0, values, "" if values.dtype == object else np.nan)


def numbers_in(values: np.ndarray, decimal: str = ".") -> np.ndarray | None:
    """Return values as numbers [n] float64, NaN where they are missing.

    Args:
        values: Numbers, or texts.
        decimal: The decimal mark of texts.

    Returns:
        The numbers; None if a text is none, or is only a number of Python (`is_disguised`).
    """
    if values.dtype != object:
        return values
    if decimal != ".":  # a point would be one between thousands
        values = as_objects([v.replace(".", "|").replace(decimal, ".") for v in values])
    try:
        numbers: np.ndarray = values.astype(np.float64)
    except ValueError:
        try:
            numbers = np.where(gaps_in(values), "nan", values).astype(np.float64)
        except ValueError:
            return None
    return None if is_disguised("\n".join(values)) else numbers


def is_disguised(text: str) -> bool:
    """Return True for ``1_000`` and ``٣``, numbers that few programs but Python read."""
    return ("_" in text or not text.isascii()) and bool(_DISGUISES.search(text))


def texts_in(values: np.ndarray) -> list[str]:
    """Return values as texts; whole numbers have no decimals, and é has one form of Unicode."""
    if values.dtype == object:
        texts = values.tolist()
        plain = {text: _plain(text.strip()) for text in {*texts}}  # most repeat
        return [plain[text] for text in texts]
    return [f"{value:.0f}" if value.is_integer() else repr(value) for value in values.tolist()]


def places_in(values: np.ndarray, names: Mapping[str, int]) -> np.ndarray:
    """Return the place [n] that ``names`` has for each value as a text, -1 for others."""
    texts = texts_in(values)
    return np.fromiter((names.get(text, -1) for text in texts), np.int64, len(texts))


def _plain(text: str) -> str:
    """Return a text in Unicode's form NFC; a whole number without decimals."""
    whole = text.endswith(".0") and text[:-2].lstrip("-").isdecimal()
    return text[:-2] if whole else unicodedata.normalize("NFC", text)


def set_option(option: str, value: str | Sequence[str]) -> str:
    """Return ``--set dataset.OPTION=VALUE`` as a shell takes it; names in a list as ``A,B``."""
    if not isinstance(value, str):
        value = ",".join(f'"{name}"' if "," in name else name for name in value)
    return f"--set {shlex.quote(f'dataset.{option}={value}')}"


def missing_column(source: str, column: str, names: Sequence[str]) -> pf.UsageError:
    """Return the error about a missing column."""
    near = difflib.get_close_matches(column, names, n=1)
    return pf.UsageError(
        f"{source} has no column {column!r}",
        f"columns: {listed([n for n in names if n])}"
        + (f"; did you mean {near[0]}?" if near else ""),
        "correct its name, or add the column",
    )


def listed(names: Sequence[str]) -> str:
    """Return at most 12 names, and how many there are besides."""
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
