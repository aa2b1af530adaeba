"""Figures as files: PDF, PNG and SVG, with the same bytes each time."""

from __future__ import annotations

import io
import sys
import threading
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError
from protofl.system.formatting import visible
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


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format of the file name: .pdf, .png or .svg.

    Args:
        figure: The figure.
        path: The file, which is replaced if it exists.

    Raises:
        UsageError: The format is unknown, or the file cannot be written.
    """
    path = Path(path)
    write_output(path, drawn(figure, format_of(path), transparent=False))


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


def svg(figure: Figure, *, outlines: bool = True) -> str:
    """Return a figure as the text of an SVG element without a background.

    Args:
        figure: The figure.
        outlines: Draw letters as shapes; otherwise they are text in a font of the reader.
    """
    parameters = {} if outlines else {"svg.fonttype": "none"}
    text = drawn(figure, "svg", transparent=True, **parameters).decode("utf-8")
    return text[text.index("<svg") :]


def drawn(figure: Figure, kind: str, *, transparent: bool, **parameters: Any) -> bytes:  # noqa: ANN401
    """Return the bytes of a figure; one thread at a time uses matplotlib's global parameters.

    Characters that the fonts of a text lack are drawn with other installed fonts. A line says once
    if there are none, unless the letters stay text in a font of the reader.
    """
    import matplotlib
    from matplotlib.text import Text

    settings = {**_PARAMETERS, **parameters}

    def draw() -> tuple[bytes, bool]:
        buffer = io.BytesIO()
        with warnings.catch_warnings(record=True) as caught:
            for message in LACKS:  # they repeat the character, which a terminal may obey
                warnings.filterwarnings("always", message)
            figure.savefig(
                buffer,
                format=kind,
                metadata=_METADATA[kind],
                facecolor="none" if transparent else figure.get_facecolor(),
            )
        others = [one for one in caught if not str(one.message).startswith(LACKS)]
        for one in others:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        return buffer.getvalue(), len(others) < len(caught)

    with _lock, matplotlib.rc_context(settings):  # type: ignore[arg-type] # known names
        content, lacks = draw()
        if lacks and settings.get("svg.fonttype") != "none":
            texts = [each for each in figure.findobj(Text) if isinstance(each, Text)]
            fonts, missing = fonts_for("".join(text.get_text() for text in texts))
            for text in texts:
                text.set_fontfamily([*text.get_fontfamily(), *fonts])
            content, _ = draw()
            if missing:
                _say_once(missing)
    return visible(content.decode()).encode() if kind == "svg" else content


LACKS = ("Glyph ", "Matplotlib currently does not support ")
"""Starts of matplotlib's warnings about characters that a font lacks."""

BUNDLED = "DejaVu Sans"
"""The font with most characters of those that come with matplotlib."""


def fonts_for(text: str) -> tuple[tuple[str, ...], str]:
    """Return the installed fonts that have the characters of a text, `BUNDLED` first.

    Args:
        text: Any text.

    Returns:
        The names of the fonts, and the characters that no font has.
    """
    from matplotlib.font_manager import fontManager

    missing, fonts = {ord(c) for c in text if c.isprintable()}, list[str]()
    # A family's regular face comes last, and counts: its oblique face may have fewer characters.
    faces = sorted(fontManager.ttflist, key=lambda e: (e.style == "normal", e.weight == 400))
    entries = {face.name: str(face.fname) for face in faces}
    for name in sorted(entries, key=lambda name: (name != BUNDLED, "Noto" not in name, name)):
        if not missing:
            break
        has = missing & (_characters(entries[name]) if "Last" not in name else frozenset())
        if has:
            fonts.append(name)
            missing -= has
    return tuple(fonts), "".join(map(chr, sorted(missing)))


@cache
def _characters(file: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(file).get_charmap())
    except (OSError, RuntimeError):  # a font that FreeType cannot read
        return frozenset()


_said: list[str] = []


def _say_once(missing: Iterable[str]) -> None:
    if not _said:
        _said.append("".join(missing))
        line = (
            f"note: no installed font has {_said[0][:10]}, so figures show boxes; install one, "
            "such as Noto Sans (Debian: fonts-noto-core, fonts-noto-cjk)"
        )
        print(visible(line), file=sys.stderr, flush=True)
