"""Texts about classes for a text encoder: a template, and descriptions from a file of the user."""

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
    classes: Sequence[str], template: str | None, descriptions: Descriptions | None
) -> tuple[list[str], list[int]]:
    """Return all texts, and for each the number of its class.

    Args:
        classes: Names of the C classes; ``_`` is written as a space.
        template: A text with ``{class}``, and with ``{description}`` if there are descriptions.
        descriptions: Descriptions of the classes; None for one text per class.
    """
    usual = "A photo of a {class}: {description}" if descriptions else "A photo of a {class}."
    texts, owners = list[str](), list[int]()
    for number, name in enumerate(classes):
        text = (template or usual).replace("{class}", name.replace("_", " "))
        for description in descriptions[name] if descriptions else [""]:
            texts.append(text.replace("{description}", description))
            owners.append(number)
    return texts, owners


def check_template(template: str | None, *, described: bool) -> None:
    """Check that a template has the places that it needs.

    Raises:
        UsageError: It lacks ``{class}``, or has ``{description}`` without descriptions or vice
            versa.
    """
    if template is None:
        return
    if "{class}" not in template:
        raise pf.UsageError(f"template={template!r} lacks {{class}}", do="write {class} into it")
    if ("{description}" in template) != described:
        what, do = ("lacks {description}", "write {description} into it")
        if not described:
            what, do = "has {description}, and descriptions is not given", "give a file"
        raise pf.UsageError(f"template={template!r} {what}", do=do)
