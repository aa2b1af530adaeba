"""Tests of pages in a browser: no console output, no overflow, in light, dark and print."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from browsing import FAINT, chromium, needs_browser

from protofl import report

pytestmark = needs_browser
browser = pytest.fixture(chromium, scope="module")

WITHIN = """() => [...document.querySelectorAll('body *')].filter((one) => {
    // What scrolls by itself may hold more than the page is wide.
    for (let up = one; up; up = up.parentElement)
        if (getComputedStyle(up).overflowX !== 'visible') return false;
    const box = one.getBoundingClientRect();
    return box.width && (box.right > innerWidth + 1 || box.left < -1) && !one.closest('.skip, svg');
}).map((one) => one.outerHTML.slice(0, 120))"""

WORDLESS = """() => [...document.querySelectorAll('svg, img, canvas')].filter((one) => {
    const named = one.closest('[role=img]') || one;
    return !(named.getAttribute('aria-label') || named.getAttribute('alt'));
}).length"""


@pytest.fixture(scope="module")
def files(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    report(runs / "proto", folder / "one.html")
    report(runs, folder / "several.html")
    return folder


@contextmanager
def opening(browser, path):
    """Yield a function that opens a page. Console output and foreign requests are errors."""
    contexts, said = [], []

    def asked(url):
        if not url.startswith(("file:", "data:")):
            said.append(url)

    def at(width=1280, scheme="light", **options):
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda wanted: said.append(wanted.url))
        page.on("request", lambda wanted: asked(wanted.url))
        page.goto(path.as_uri())
        return page

    yield at
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture(params=["one", "several"])
def opened(browser, files, request):
    with opening(browser, files / f"{request.param}.html") as at:
        yield at


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_and_can_be_read(opened, width, scheme):
    check_fits(opened(width, scheme), width)


def check_fits(page, width):
    for folded in (True, False):
        if not folded:
            page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(WITHIN) == []
        assert page.evaluate(FAINT) == []
    assert page.evaluate(WORDLESS) == 0


def test_pictures_follow_the_scheme(opened):
    page = opened(scheme="light")
    ink = "getComputedStyle(document.querySelector('figure svg text')).fill"
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ink), page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ink) != light[0] and page.evaluate(ground) != light[1]


def test_tables_are_sorted_by_keys(opened):
    page = opened()
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    table = page.locator("table[data-sort]").first
    button = table.locator("thead th").nth(1).locator("button")
    column = "(t) => [...t.tBodies[0].rows].map((r) => parseFloat(r.cells[1].textContent))"
    column += ".filter((value) => !isNaN(value))"  # the row of the majority guess has no trials
    button.focus()
    page.keyboard.press("Enter")
    rising = table.evaluate(column)
    assert rising == sorted(rising)
    assert table.locator("thead th").nth(1).get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert table.evaluate(column) == rising[::-1]


def test_it_reads_without_its_script(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("h2").count() >= 4 and page.locator("figure svg:visible").count() >= 5
    assert page.locator("button").count() == 0


def test_it_prints_light_with_all_that_is_folded(opened):
    page = opened(scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert not page.locator("nav").is_visible()
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert sum(map(int, ink.removeprefix("rgb(").removesuffix(")").split(","))) < 150
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
