"""Badges: small SVG pictures for a README, such as ``mnist-equal | rank 3 of 25``."""

from __future__ import annotations

from html import escape

NARROW, WIDE = "fijlrt.,:;|!' ()[]-", "mwMWAGOQ%"
COLOURS = {"best": "#0a6a68", "ranked": "#4b5563", "bound": "#6b4fa0"}
"""Colours of the right part: in the best group, elsewhere, and of methods that are not ranked."""


def badge(left: str, right: str, colour: str) -> str:
    """Return a badge as SVG; it needs no other file.

    Args:
        left: The setting.
        right: The result.
        colour: A key of `COLOURS`.
    """
    one, two = (_width(text) + 12 for text in (left, right))
    title = escape(f"{left}: {right}")
    texts = "".join(
        f'<text x="{x:.1f}" y="14" textLength="{_width(text):.1f}">{escape(text)}</text>'
        for text, x in ((left, one / 2), (right, one + two / 2))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{one + two:.0f}" height="20" '
        f'viewBox="0 0 {one + two:.1f} 20" role="img" aria-label="{title}"><title>{title}</title>'
        f'<rect width="{one + two:.1f}" height="20" rx="3" fill="#23272e"/>'
        f'<path d="M{one:.1f} 0h{two - 3:.1f}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{one:.1f}z" '
        f'fill="{COLOURS[colour]}"/>'
        '<g fill="#fff" text-anchor="middle" font-size="11" '
        f'font-family="Verdana,DejaVu Sans,Geneva,sans-serif">{texts}</g></svg>\n'
    )


def _width(text: str) -> float:
    """Return the approximate width in pixels of a text of 11 px; browsers fit it to this width."""
    return sum(4.2 if c in NARROW else 9.4 if c in WIDE else 6.7 for c in text)
