"""Figures as files: PDF, PNG and SVG, with the same bytes each time."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError
from protofl_workbench.comparing.figure_table import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png", "svg")

_lock = threading.Lock()

_PARAMETERS: dict[str, Any] = {
    "pdf.fonttype": 42,  # TrueType, as publishers require
    "svg.hashsalt": "protofl",  # the same ids each time
}
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}


def save(figure: Figure, path: str | Path, *, transparent: bool = False) -> None:
    """Write a figure in the format of the file name: .pdf, .png or .svg.

    Args:
        figure: The figure.
        path: The file, which is replaced if it exists.
        transparent: Leave out the background.

    Raises:
        UsageError: The format is unknown, or the file cannot be written.
    """
    path = Path(path)
    write_output(path, drawn(figure, format_of(path), transparent=transparent))


def format_of(path: Path) -> str:
    """Return the format of a file name.

    Raises:
        UsageError: The format is unknown.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(
            f"{path}: a figure cannot be written as {path.suffix or 'a file without an ending'}",
            do="give a name that ends in .pdf, .png or .svg",
        )
    return kind


def svg(figure: Figure, *, outlines: bool = True, transparent: bool = True) -> str:
    """Return a figure as the text of an SVG element.

    Args:
        figure: The figure.
        outlines: Draw letters as shapes; otherwise they are text in a font of the reader.
        transparent: Leave out the background.
    """
    parameters = {} if outlines else {"svg.fonttype": "none"}
    text = drawn(figure, "svg", transparent=transparent, **parameters).decode("utf-8")
    return text[text.index("<svg") :]


def drawn(figure: Figure, kind: str, *, transparent: bool, **parameters: Any) -> bytes:  # noqa: ANN401
    """Return the bytes of a figure; one thread at a time uses matplotlib's global parameters."""
    import matplotlib

    buffer, settings = io.BytesIO(), {**_PARAMETERS, **parameters}
    with _lock, matplotlib.rc_context(settings):  # type: ignore[arg-type] # known names
        figure.savefig(
            buffer,
            format=kind,
            metadata=_METADATA[kind],
            facecolor="none" if transparent else figure.get_facecolor(),
        )
    return buffer.getvalue()
