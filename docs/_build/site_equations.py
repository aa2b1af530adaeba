"""The equations on the pages as mathematics: blocks in our plain notation become MathML.

Browsers draw MathML themselves, so pages need no script. A row has a symbol, a formula and a
number, with two or more spaces between them. ``_`` and ``^`` begin a script: a letter, a word, a
number, ``(…)`` or ``{…}``; ``D_i,c`` has two indices. A prime belongs to the letter before it, a
star to the whole symbol. ``a/b`` is a fraction of what touches the stroke, ``A / B`` of products.
Σ before a space is a sum, otherwise a matrix. E is the mean. Other words are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape, unescape
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

BLOCK = re.compile(
    r'<div class="highlight"><pre><span></span><code>(?!protofl )(?=[^<]*\S(?:·|  +)\S)([^<]*)'
    "</code></pre></div>"
)
"""A block without a language that has products or columns and is not a command."""
ROW = re.compile(r"(?:(\S+(?: \S+)*) {2,}| *)(.*?)(?: {2,}(\([^()]*[A-Za-z]{2}[^()]*\)))?")
SPELLED = {
    **{r"({\w+) in ": r"\1 ∈ ", r"\*(?!\w)": "^∗", "∪(?=_)": "⋃", "~": "∼", "·": "⋅"},
    **{"₁": "_1", "₂": "_2", "₃": "_3", "²": "^2", "³": "^3", "ᵀ": "^⊤", "⁺": "^+"},
    "⁻¹": "^−1",
    r"Σ(?=(_{[^}]*}|_[^ ⋅,;]+)? +[^⋅,; ])": "∑",
}
"""Patterns, and what stands for them while a formula is read."""
NAME = (
    r"(?:(?:argmax|cos|exp|ln|log|mod|softmax)(?!\w)"
    r"|[A-Za-z]{2,}(?=[(^/]|_\{|_.(?![a-z]))|(?<=/)[A-Za-z]{2,})"
)
WORD = (
    r"[A-Za-z]{2,}(?:[-–][A-Za-z]+|_[a-z]{2,})*(?:'s?(?!\w))?"
    r"|'s(?!\w)|a(?= [a-z]{2})|(?<=[a-z]{2} )a(?= )|[,;:.%]"
)
RELATION = r"[+=<>≤≥≠≈∈∼←→∩∪]|−(?= |(?<=\S−))|(?<= )‖(?= )"
PREFIX = r"(?:^|(?<=[ ({\[⟨⋅]))−(?! )"
PAIRS = dict(zip("([⟨⌊⌈|‖", ")]⟩⌋⌉|‖", strict=True))
ACCENTS = dict(zip("\u0302\u0303\u0304\u0306", "ˆ˜ˉ˘", strict=True))
MATH = '<math displaystyle="true">'
DRAWN = (
    "20-7E,D7,2B0-2DF,391-3C9,2016,2026,2032,210E,2113,2190-2193,2200-22C5,2308-230B,27E8-27E9"
    ",1D434-1D467,1D49C-1D4B5,1D53C,1D6E2-1D71B,1D7CF"
)
"""The characters of equations in the font."""


class Item(NamedTuple):
    """A part of a formula: MathML of its kind, or the text of words, a mark or a stroke."""

    kind: str
    xml: str


def operator(text: str, **attributes: str) -> str:
    """Return an operator of MathML."""
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<mo{given}>{escape(text)}</mo>"


def joined(items: Iterable[Item]) -> str:
    """Return parts as MathML."""
    return "".join(f"<mtext>{xml}</mtext>" if kind == "text" else xml for kind, xml in items)


def without_parentheses(items: list[Item]) -> str:
    """Return parts as MathML, without the parentheses of a single pair."""
    pair = r"^<mrow><mo[^>]*>\(</mo>(.*)<mo[^>]*>\)</mo></mrow>$"
    return re.sub(pair, r"\1", joined(items)) if len(items) == 1 else joined(items)


def with_fractions(items: list[Item], stroke: str, kinds: tuple[str, ...]) -> list[Item]:
    """Return parts with a fraction for each stroke; its halves are parts of these kinds."""
    while ("stroke", stroke) in items:
        at = items.index(Item("stroke", stroke))
        sides = items[:at][::-1], items[at + 1 :]
        above, below = ([*takewhile(lambda item: item.kind in kinds, side)] for side in sides)
        halves = map(without_parentheses, (above[::-1], below))
        fraction = "".join(f"<mrow>{half}</mrow>" for half in halves)
        last = at + len(below)
        items[at - len(above) : last + 1] = [Item("operand", f"<mfrac>{fraction}</mfrac>")]
    return items


class Formula:
    """Reads a formula from left to right; ValueError if it is not in our notation."""

    def __init__(self, text: str) -> None:
        """Take the text; accents become characters of their own."""
        for pattern, spelled in SPELLED.items():
            text = re.sub(pattern, spelled, text)
        self.text = "".join(normalize("NFD", c) if c.isalpha() else c for c in text)
        self.at, self.depth = 0, 0

    def sees(self, pattern: str) -> re.Match[str] | None:
        """Return the text that matches here."""
        return re.compile(pattern).match(self.text, self.at)

    def take(self, pattern: str) -> str:
        """Return the text that matches here, and continue after it."""
        found = self.sees(pattern)
        self.at = found.end() if found else self.at
        return found[0] if found else ""

    def items(self, end: str = "$") -> list[Item]:
        """Return the parts up to a closing bracket."""
        found = list[Item]()
        while not (stop := self.sees(f" *{end}")):
            found.append(self.item())
        self.at = stop.end()
        found = with_fractions(found, "/", ("operand",))
        return with_fractions(found, " / ", ("operand", "large", "space", "times"))

    def item(self) -> Item:
        """Return the next part, with the spaces around all but operands."""
        if self.take(PREFIX):
            return Item("prefix", operator("−", form="prefix"))
        if relation := self.take(f" *({RELATION}) *"):
            return Item("relation", operator(relation.strip(), form="infix"))
        if times := self.take(" *[⋅×∘⊙] *"):
            return Item("times", operator(times.strip(), lspace="0.15em", rspace="0.15em"))
        if stroke := self.take(" / |/"):
            linear = stroke == "/" and (self.depth or " / " in self.text)
            slash = Item("times", operator("/", lspace="0", rspace="0"))
            return slash if linear else Item("stroke", stroke)
        if text := self.take(f" *(?!{NAME})({WORD})(?: +(?! |{RELATION}))?"):
            return Item("text", escape(text))
        if self.take(" +"):
            return Item("space", '<mspace width="0.17em"/>')
        limits = self.sees("[∑⋃]|[a-z]{2,}_{")
        xml, below, above = self.base(), "", ""
        while self.sees(r"[_^]|'(?!s\b)"):
            if self.take("_"):
                below += self.script()
            else:
                above += self.script() if self.take(r"\^") else operator("′" * len(self.take("'")))
        if below or above:
            tag = "munder" if limits else "m" + "sub" * bool(below) + "sup" * bool(above)
            scripts = "".join(f"<mrow>{script}</mrow>" for script in (below, above) if script)
            xml = f"<{tag}>{xml}{scripts}</{tag}>"
        if limits and limits[0] in "∑⋃":
            self.take(" +")
        return Item("large" if limits else "operand", xml)

    def base(self) -> str:
        """Return a name, a number, a root, a letter with its accent, or a pair of brackets."""
        if name := self.take("[A-Za-z]{2,}"):
            return f"<mi>{name}</mi>"
        if number := self.take(r"\d+(,\d{3})*(\.\d+)?"):
            return f"<mn>{number}</mn>"
        if self.take("√"):
            return f"<msqrt>{without_parentheses([self.item()])}</msqrt>"
        if left := self.take(f"[{re.escape(''.join(PAIRS))}]"):
            self.take(" +")
            inner = joined(self.items(re.escape(PAIRS[left])))
            tall = {} if "<mfrac" in inner or "<munder" in inner else {"stretchy": "false"}
            closed = operator(PAIRS[left], form="postfix", **tall)
            return f"<mrow>{operator(left, form='prefix', **tall)}{inner}{closed}</mrow>"
        if sign := self.take("[∑⋃]"):
            return operator(sign)
        if not (letter := self.take(r"[^\W\d_]|[∇∂…↑↓]")):
            raise ValueError(f"{self.text}: unknown notation {self.text[self.at :]!r}")
        upright = ' mathvariant="normal"' * (letter in "∇…↑↓" or "Α" <= letter <= "Ω")
        xml = f"<mi{upright}>{'𝔼' if letter == 'E' else letter}</mi>"
        if accent := self.take(f"[{''.join(ACCENTS)}]"):
            over = operator(ACCENTS[accent], stretchy="false")
            xml = f'<mover accent="true">{xml}{over}</mover>'
        return xml

    def script(self) -> str:
        """Return what is below or above a symbol."""
        self.depth += 1
        if self.take("{"):
            xml = joined(self.items("}"))
        elif sign := self.take("[+∗⋅⊤]"):
            xml = operator(sign, lspace="0", rspace="0")
        elif self.take("−"):
            called = self.item(), *([self.item()] if self.sees(r"\(") else [])
            xml = operator("−", form="prefix") + joined(called)
        else:
            xml = self.base()
            xml = f"<msup>{xml}<mo>′</mo></msup>" if self.take(r"'(?!s\b)") else xml
        while self.take(r",(?=\w)"):
            xml += operator(",", rspace="0") + self.script()
        self.depth -= 1
        return xml


def mathematics(formula: str) -> str:
    """Return a formula as HTML; lines may break at words, marks and relations."""
    breaks = {"text": f"</math>{{}}{MATH}", "relation": f"</math><wbr>{MATH}{{}}"}
    html = "".join(breaks.get(kind, "{}").format(xml) for kind, xml in Formula(formula).items())
    html = f"{MATH}{html}</math>".replace(f"{MATH}</math>", "")
    return re.sub(r"</math>(?=[,;:.%'])", "</math>&NoBreak;", html)


def row(text: str) -> str:
    """Return a row as a term, its formula and its number; text that is not understood stays."""
    symbol, formula, number = (escape(part or "") for part in ROW.fullmatch(text).groups())
    try:
        shown = [mathematics(unescape(part)) for part in (symbol, formula)]
    except ValueError:
        shown = [symbol, f"<code>{formula}</code>"]
    last = f'<dd class="number">{number}</dd>' if number else ""
    return f"<div><dt>{shown[0]}</dt><dd>{shown[1]}</dd>{last}</div>"


def equations(html: str) -> str:
    """Return a page with its blocks of equations as lists of rows."""

    def block(found: re.Match[str]) -> str:
        lines = re.sub(r"\n {20,}(?=\()", "  ", unescape(found[1])).splitlines()
        return f'<dl class="equations">{"".join(map(row, lines))}</dl>'

    return BLOCK.sub(block, html)


def write_font(target: Path) -> None:
    """Write the part of a font that equations need; not all systems have one for mathematics."""
    from fontTools import subset  # of matplotlib

    font = Path(find_spec("ziamath").origin).with_name("fonts") / "STIXTwoMath-Regular.ttf"
    words = ["--flavor=woff", "--no-hinting", "--layout-features=", "--name-IDs=*"]
    subset.main([str(font), f"--unicodes={DRAWN}", *words, f"--output-file={target}"])
