"""Tests of the equations on the site: our plain notation as mathematics."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

import pytest
import site_equations
import site_hooks
import site_methods

BLOCK = '<div class="highlight"><pre><span></span><code>{}</code></pre></div>'
PAGES = [
    *site_methods.PAGES.glob("[!i]*.md"),
    *map(site_hooks.DOCS.joinpath, site_hooks.WITH_EQUATIONS),
]


def blocks(page):
    """Return the indented blocks of a page as mkdocs gives them to the hook."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    found = re.findall(r"^(?:    .*\n)+", text, re.MULTILINE)
    return [BLOCK.format(html.escape(re.sub("^    ", "", b, flags=re.M), False)) for b in found]


def parsed(shown):
    """Return HTML as a tree, without line breaks that may be."""
    return ElementTree.fromstring(re.sub("<wbr>|&NoBreak;", "", f"<p>{shown}</p>"))


def drawn(node):
    """Return the structure of what is drawn: frac(a;b), sub(a;b); $ are around mathematics."""
    parts = ["".join([drawn(one), one.tail or ""]) for one in node]
    text = f"{node.text or ''}{''.join(parts)}"
    if node.tag in ("msub", "msup", "msubsup", "munder", "mover", "mfrac", "msqrt"):
        return f"{node.tag[1:]}({';'.join(parts)})"
    return f"${text}$" if node.tag == "math" else text


@pytest.mark.parametrize(
    ("plain", "shown"),
    [
        ("P̂_i^c", "$subsup(over(P;ˆ);i;c)$"),
        ("ȳ, D̆ and r̃_k", "$over(y;ˉ)$, $over(D;˘)$ and $sub(over(r;˜);k)$"),
        ("the encoder's mean, client i's own", "the encoder's mean, client $i$'s own"),
        ("D_i,c of L_MCL", "$sub(D;i,c)$ of $sub(L;MCL)$"),
        ("d_i* = c_i⁺ + h'_i", "$subsup(d;i;∗)$$=subsup(c;i;+)$$+subsup(h;i;′)$"),
        ("u_c / Σ_c' u_c', uniform", "$frac(sub(u;c);under(∑;sup(c;′))sub(u;sup(c;′)))$, uniform"),
        ("1/C·Σ_{i in S} a/(b + c)", "$frac(1;C)⋅under(∑;i∈S)frac(a;b+c)$"),
        ("(1/M · x) / T", "$frac(1/M⋅x;T)$"),
        ("KL(p_a ‖ p_s)/2 − ‖x‖²", "$frac(KL(sub(p;a)‖sub(p;s));2)$$−sup(‖x‖;2)$"),
        ("E −log( e^−(d+m) )", "$𝔼−log(sup(e;−(d+m)))$"),
        ("e^{s·cos θ_c/τ}", "$sup(e;s⋅cossub(θ;c)/τ)$"),
        (
            "max_{c≠c'} φ(x), mean of a P^(y,d)",
            "$under(max;c≠sup(c;′))φ(x)$, mean of a $sup(P;(y,d))$",
        ),
        ("U·Σ·V, Σ_i, Σ_i w_i", "$U⋅Σ⋅V$, $sub(Σ;i)$, $under(∑;i)sub(w;i)$"),
        ("√(C/(C−1))·UᵀU", "$sqrt(frac(C;C−1))⋅sup(U;⊤)U$"),
        ("(G + γ·I)⁻¹·S_c⁻¹", "$sup((G+γ⋅I);−1)⋅subsup(S;c;−1)$"),
        ("|D_m|/|D| < 1", "$frac(|sub(D;m)|;|D|)$$<1$"),
    ],
)
def test_our_notation_becomes_mathematics(plain, shown):
    assert drawn(parsed(site_equations.mathematics(plain))) == shown


def test_rows_have_a_symbol_a_formula_and_a_number():
    text = "P^c  F(e)   (Eq. 2)\n     (mean)\nL    x\n" + " " * 50 + "(Eq. 10, Alg. 1)\n"
    page = site_equations.equations(BLOCK.format(text))
    rows = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd>(.*?)</div>", page)
    assert [drawn(parsed(symbol)) for symbol, _, _ in rows] == ["$sup(P;c)$", "", "$L$"]
    numbers = [re.sub("<.*?>", "", number) for _, _, number in rows]
    assert numbers == ["(Eq. 2)", "", "(Eq. 10, Alg. 1)"]


def test_a_row_that_is_not_understood_stays_text():
    page = site_equations.equations(BLOCK.format("x   a ⊗ b &lt; c   (Eq. 1)\ny   (open\n"))
    assert "<dt>x</dt><dd><code>a ⊗ b &lt; c</code></dd>" in page and "(Eq. 1)" in page
    assert "<code>(open</code>" in page


@pytest.mark.parametrize("text", ["protofl run fedtgp  # trains\n", "gflops,latency\n6,2\n"])
def test_other_blocks_stay(text):
    assert site_equations.equations(BLOCK.format(text)) == BLOCK.format(text)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_all_rows_of_a_page_are_mathematics_in_the_font(page):
    found = [site_equations.equations(block) for block in blocks(page)]
    assert found and all(one.startswith("<dl") and "<code>" not in one for one in found)
    ranges = [part.split("-") for part in site_equations.DRAWN.split(",")]
    known = {chr(c) for r in ranges for c in range(int(r[0], 16), int(r[-1], 16) + 1)}
    for shown in found:
        signs = (one.text or "" for one in parsed(shown).iter() if one.tag in ("mi", "mn", "mo"))
        assert {*"".join(signs)} <= known
