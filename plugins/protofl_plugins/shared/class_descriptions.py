"""Texts about classes for a text encoder: their names, and descriptions from a user's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import protofl as pf
from protofl_plugins.shared.text_files import read_lines

Descriptions = Mapping[str, Sequence[str]]
"""{class: its descriptions, at least one}."""


def read_descriptions(path: Path) -> dict[str, list[str]]:
    """Read descriptions of classes from a file.

    Args:
        path: A text file with a line ``CLASS: description`` for each description. Lines that begin
            with ``#`` are comments.

    Raises:
        UsageError: The file can't be read, or a line is not of this form.
    """
    result: dict[str, list[str]] = {}
    for number, line in read_lines(path, "file of descriptions"):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, text = line.partition(":")
        if not colon or not name.strip() or not text.strip():
            raise pf.UsageError(
                f"{path}, line {number}: expected CLASS: description, got {line!r}",
                do="write one description per line",
            )
        result.setdefault(name.strip(), []).append(text.strip())
    return result


def check_descriptions(descriptions: Descriptions, classes: Sequence[str], source: object) -> None:
    """Check that every class has a description; others are not used.

    Raises:
        UsageError: A class has none.
    """
    for name in classes:
        if not descriptions.get(name):
            others = [other for other in descriptions if other not in classes]
            near = get_close_matches(name, others, n=1)
            raise pf.UsageError(
                f"{source} has no description of the class {name!r}",
                f"did you mean {near[0]!r}?"
                if near
                else f"it describes: {', '.join([*descriptions][:20])}",
                "describe each class of the data once or more",
            )


def class_texts(
    classes: Sequence[str], descriptions: Descriptions | None
) -> tuple[list[str], list[int]]:
    """Return all texts, and for each the number of its class.

    Args:
        classes: Names of the C classes; ``_`` is written as a space.
        descriptions: Descriptions of the classes; None for one text per class.
    """
    texts, owners = list[str](), list[int]()
    for number, name in enumerate(classes):
        text = f"A photo of a {name.replace('_', ' ')}"
        for ending in [f": {d}" for d in descriptions[name]] if descriptions else ["."]:
            texts.append(text + ending)
            owners.append(number)
    return texts, owners
