"""Study files: ``draw``, which picture and how; and the files that options name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protofl.studies.given import files_in
from protofl.studies.opened import File
from protofl.studies.study import DRAWINGS, OF_IMAGES

_TYPES: dict[str, Callable[[Any], bool]] = {
    "together": lambda value: isinstance(value, bool),
    "rounds": lambda value: isinstance(value, list) and all(map(_whole, value)),
    "classes": lambda value: _whole(value) and value > 0,
    "client": lambda value: _whole(value),
}


def drawing(file: File, kind: str) -> tuple[str, dict[str, Any]]:
    """What a study draws, and how where that is images.

    Args:
        file: The study's file.
        kind: The study's kind.

    Raises:
        UsageError: There is no such picture, or it isn't drawn so.
    """
    given = file.first("draw")
    if given is None and kind != "pictures":
        return "", {}
    values = given if isinstance(given, dict) else {"picture": given}
    picture, further = values.get("picture"), {k: v for k, v in values.items() if k != "picture"}
    if not isinstance(picture, str) or picture not in DRAWINGS:
        file.unknown(("draw",), "picture", str(picture or "nothing"), DRAWINGS)
    for key, value in further.items():
        if key not in OF_IMAGES:
            file.unknown(("draw", key), "key of draw", key, ("picture", *OF_IMAGES))
        if picture != "images":
            file.fail(("draw", key), f"{key} is of images, and the picture is {picture}")
        if not _TYPES[key](value):
            file.fail(("draw", key), f"{key} is {value!r}, and should be: {OF_IMAGES[key]}")
    return picture, further


def check_named(
    file: File, path: tuple[str, ...], options: Mapping[str, Any], files: Mapping[str, str]
) -> None:
    """Whether options name files of ``[files]`` alone.

    Raises:
        UsageError: One is not there.
    """
    for name in files_in(options):
        if name not in files:
            file.unknown(path, "file of [files]", name, files)


def _whole(value: Any) -> bool:  # noqa: ANN401 - from a file
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
