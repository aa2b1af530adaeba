"""Figures of matplotlib as part of a page: in its type, and with colours for the dark."""

from __future__ import annotations

import base64
import io
import math
import re
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 200_000
"""Bytes of SVG beyond which a figure is pixels: a scatter of many points is smaller so."""


WIDE = 300
"""Points beyond which a figure would be too small on a phone, and is moved there instead."""


class Drawings:
    """The figures of one page: no two of their names clash, and it knows all their colours."""

    def __init__(self) -> None:
        self._numbers = count()
        self._colours: set[str] = set()

    def inline(self, figure: Figure, *, scrolls: bool = True) -> str:
        """A figure as SVG that stands in a page, or as the ``data:`` address of its pixels.

        Args:
            figure: The figure. Hatches are taken out of it: they would be most of the text, and on
                a screen colours are enough.
            scrolls: Whether a wide one keeps a width at which it can be read, on phones too.
        """
        from matplotlib.patches import Patch

        from protofl_workbench.plots import svg

        for patch in figure.findobj(Patch):
            patch.set_hatch("")
        text = svg(figure, outlines=False)
        if len(text) > LARGEST:
            return _pixels(figure)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
        text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
        box = re.search(r'viewBox="([^"]*)"', text)
        assert box, "matplotlib gives every figure a viewBox"
        # What is not drawn but named (titles, other name spaces) has no place inside HTML.
        width = float(box[1].split()[2])
        least = f' class="spread" style="min-width: {0.85 * width:.0f}px"' if width > WIDE else ""
        tag = f'<svg viewBox="{box[1]}" focusable="false"{least if scrolls else ""}>'
        text = re.sub(r"<svg[^>]*>", tag, text, count=1)
        text = self._renamed(text)
        text = re.sub(r"font: ([^;\"]*?px) [^;\"]*", r"font-size: \1", text)  # an older matplotlib
        text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
        text = re.sub(r"\s*\n\s*", "\n", text)
        return re.sub(r"#[0-9a-fA-F]{6}\b", self._variable, text)

    def _renamed(self, text: str) -> str:
        """Names within a figure are its own: two figures of a page have the same otherwise."""
        mark = f"f{next(self._numbers)}-"
        used = set(re.findall(r"url\(#([^)]+)\)|xlink:href=\"#([^\"]+)\"", text))
        names = {name for pair in used for name in pair if name}
        text = re.sub(
            r' id="([^"]*)"', lambda m: f' id="{mark}{m[1]}"' if m[1] in names else "", text
        )
        text = re.sub(r"url\(#([^)]+)\)", rf"url(#{mark}\1)", text)
        return re.sub(r"xlink:href=\"#([^\"]+)\"", rf'href="#{mark}\1"', text)

    def _variable(self, match: re.Match[str]) -> str:
        colour = match[0].lower()
        self._colours.add(colour)
        return f"var(--x{colour[1:]})"

    @property
    def light(self) -> str:
        """CSS that gives all colours of the figures, as they were drawn."""
        return "".join(f"--x{c[1:]}:{c};" for c in sorted(self._colours))

    @property
    def dark(self) -> str:
        """The same for dark surroundings."""
        return "".join(f"--x{c[1:]}:{in_the_dark(c)};" for c in sorted(self._colours))


def _pixels(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
    return address(file.getvalue())


def address(png: bytes) -> str:
    """The ``data:`` address of a PNG."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


# --- colours --------------------------------------------------------------------------------------


def in_the_dark(colour: str) -> str:
    """A colour for a dark ground: greys change sides, others keep their hue and become lighter.

    Computed in Oklab (Ottosson 2020), where lightness is as one sees it.

    Args:
        colour: ``#rrggbb``.
    """
    light, a, b = _oklab(colour)
    if math.hypot(a, b) < 0.02:
        light = 0.21 + 0.77 * (1 - light)
    else:
        light = max(light, 0.62 + 0.25 * light)
    return _hex(light, a, b)


def _oklab(colour: str) -> tuple[float, float, float]:
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def _hex(light: float, a: float, b: float) -> str:
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    parts = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _curved(min(1.0, max(0.0, p)))):02x}" for p in parts)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _curved(part: float) -> float:
    return 12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055
