"""Matplotlib figures as parts of a page, with colours for light and dark backgrounds."""

from __future__ import annotations

import base64
import io
import math
import re
from itertools import count
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 200_000
"""Bytes of SVG above which a figure becomes pixels: many points take less space so."""

WIDE = 300
"""Points of width above which a figure scrolls on a phone, because it would be too small."""

_COLOUR = re.compile(r"(?<!url\()#[0-9a-fA-F]{6}\b")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r"font: ([^;]*?px) [^;]*")  # an older matplotlib
_FAMILY = re.compile(r"font-family: [^;]*;? ?")


class Drawings:
    """The figures of one page: unique ids, and all colours in use."""

    def __init__(self) -> None:
        self._numbers = count()
        self._colours: set[str] = set()

    def inline(self, figure: Figure, *, scrolls: bool = True) -> str:
        """Return a figure as an SVG element, or as the ``data:`` address of its pixels.

        Ids and colours are changed in attributes only, so any text of the figure stays as it is.

        Args:
            figure: The figure. Hatches are removed: they would be most of the text, and on a screen
                colours are enough.
            scrolls: True to keep a wide figure readable on phones by scrolling.
        """
        from matplotlib.patches import Patch

        from protofl_workbench import plots

        for patch in figure.findobj(Patch):
            patch.set_hatch("")
        text = plots.svg(figure, outlines=False)
        if len(text) > LARGEST:
            return _pixels(figure)
        root = ElementTree.fromstring(text)
        box = root.get("viewBox", "0 0 0 0")
        width = float(box.split()[2])
        root.attrib = {"viewBox": box, "focusable": "false"}
        if scrolls and width > WIDE:
            root.attrib |= {"class": "spread", "style": f"min-width: {0.85 * width:.0f}px"}
        for parent in [*root.iter()]:
            for child in [*parent]:
                if _name(child.tag) in ("metadata", "style"):
                    parent.remove(child)
        self._rewrite(root)
        return ElementTree.tostring(root, encoding="unicode")

    def _rewrite(self, root: ElementTree.Element) -> None:
        """Make ids unique on the page, replace colours by variables, and remove fonts."""
        mark = f"f{next(self._numbers)}-"
        values = [value for element in root.iter() for value in element.attrib.values()]
        used = {name for value in values for name in _REFERENCE.findall(value)}
        used |= {value[1:] for value in values if re.fullmatch(r"#[^#\s]+", value)}
        for element in root.iter():
            element.tag = _name(element.tag)
            if element.tag not in ("text", "tspan"):
                element.text = element.tail = None  # line breaks
            given, element.attrib = element.attrib, {}
            for key, value in given.items():
                key = _name(key)
                if key == "id":
                    if value in used:
                        element.set(key, mark + value)
                    continue
                if key == "href":
                    value = re.sub(r"^#", f"#{mark}", value)
                elif key != "class":
                    value = _REFERENCE.sub(rf"url(#{mark}\1)", value)
                    value = _COLOUR.sub(self._variable, value)
                if key == "style":
                    value = _FAMILY.sub("", _FONT.sub(r"font-size: \1", value))
                element.set(key, value)

    def _variable(self, match: re.Match[str]) -> str:
        colour = match[0].lower()
        self._colours.add(colour)
        return f"var(--x{colour[1:]})"

    @property
    def light(self) -> str:
        """CSS of all colours as they were drawn."""
        return "".join(f"--x{c[1:]}:{c};" for c in sorted(self._colours))

    @property
    def dark(self) -> str:
        """CSS of all colours for a dark background."""
        return "".join(f"--x{c[1:]}:{in_the_dark(c)};" for c in sorted(self._colours))


def _name(name: str) -> str:
    """Return a tag or attribute without its namespace."""
    return name.rpartition("}")[2]


def _pixels(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


# --- colours --------------------------------------------------------------------------------------


def in_the_dark(colour: str) -> str:
    """Return a colour for a dark background: greys are inverted, others become lighter.

    Computed in Oklab (Ottosson 2020), a space with perceived lightness.

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
