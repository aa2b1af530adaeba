"""Figures as files: PDF, PNG and SVG, the same bytes each time."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError
from protofl.system.files.replacing import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png", "svg")

_one_at_a_time = threading.Lock()

_PARAMETERS = {
    "pdf.fonttype": 42,  # TrueType, as publishers ask for
    "svg.hashsalt": "protofl",  # names of parts that are the same each time
}
_WITHOUT_TIME: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}


def save(figure: Figure, path: str | Path, *, transparent: bool = False) -> None:
    """Write a figure; how is said by the name's end: .pdf, .png or .svg.

    Args:
        figure: The figure.
        path: The file; what is there is replaced.
        transparent: Whether it is to have no ground.

    Raises:
        UsageError: The name ends otherwise, or the file can't be written.
    """
    path = Path(path).expanduser()
    kind = format_of(path)
    content = _drawn(figure, kind, transparent)
    try:
        with replacing(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise UsageError(
            f"{path} can't be written: {error.strerror or error}", do="choose another file"
        ) from None


def format_of(path: Path) -> str:
    """The format that a file's name asks for.

    Raises:
        UsageError: There is none.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(
            f"{path}: a figure can't be written as {path.suffix or 'that'}",
            do="give a name that ends in .pdf, .png or .svg",
        )
    return kind


def svg(figure: Figure, *, outlines: bool = True, transparent: bool = True) -> str:
    """A figure as the text of an SVG, to be put into a page.

    Args:
        figure: The figure.
        outlines: Whether letters are shapes, the same everywhere; else they are text in the fonts
            of who reads it.
        transparent: Whether it has no ground.
    """
    parameters = {} if outlines else {"svg.fonttype": "none"}
    text = _drawn(figure, "svg", transparent, parameters).decode("utf-8")
    return text[text.index("<svg") :]


def _drawn(
    figure: Figure,
    kind: str,
    transparent: bool,
    parameters: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """A figure's bytes; what matplotlib keeps for all threads is lent by one at a time."""
    import matplotlib

    settings: Any = matplotlib.rcParams
    buffer, asked = io.BytesIO(), {**_PARAMETERS, **parameters}
    with _one_at_a_time:
        usual = {key: settings[key] for key in asked}
        settings.update(asked)
        try:
            figure.savefig(
                buffer,
                format=kind,
                metadata=_WITHOUT_TIME[kind],
                facecolor="none" if transparent else figure.get_facecolor(),
            )
        finally:
            settings.update(usual)
    return buffer.getvalue()
