"""Tests of pages in a browser: no console output, no overflow, in light, dark and print."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from protofl import board, report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine"),
]

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

FAINT = """() => {
    // WCAG 2.1's contrast of every text that can be seen with the ground below it.
    const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const ground = (one) => {
        for (; one; one = one.parentElement) {
            const found = parts(getComputedStyle(one).backgroundColor);
            if (found.length < 4 || found[3] > 0.9) return found;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll('body *')].filter((one) => {
        if (one.closest('script, .on-paper svg')) return false;
        const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        if (!own || !one.getClientRects().length) return false;
        const style = getComputedStyle(one);
        const ink = parts(one instanceof SVGElement ? style.fill : style.color);
        const pair = [light(ink), light(ground(one))].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05) < 4.5;
    }).map((one) => one.outerHTML.slice(0, 160));
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


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


@pytest.fixture(scope="module")
def leaderboard(tmp_path_factory):
    """Write the leaderboard of the committed benchmark."""
    records = Path(__file__).parents[3] / "docs/reference/benchmark"
    return board(records, tmp_path_factory.mktemp("board") / "site").folder


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


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]
)
@pytest.mark.parametrize("name", ["index", "methods/fedsaf", "methods/centralised"])
def test_a_leaderboard_fits_and_can_be_read(browser, leaderboard, name, width, scheme):
    with opening(browser, leaderboard / f"{name}.html") as at:
        check_fits(at(width, scheme), width)


def test_a_leaderboard_leads_to_its_methods_and_back(browser, leaderboard):
    with opening(browser, leaderboard / "index.html") as at:
        page = at(390)
        page.locator("th a", has_text="fedsaf").first.click()
        assert page.locator("h1").inner_text() == "fedsaf"
        badge = page.locator("figure img").first
        assert badge.evaluate("(one) => one.complete && one.naturalWidth") > 100
        page.locator("header a").click()
        assert page.locator("h1").inner_text() == "Leaderboard"


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
    button.focus()
    page.keyboard.press("Enter")
    rising = table.evaluate(column)
    assert rising == sorted(rising)
    assert table.locator("thead th").nth(1).get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert table.evaluate(column) == rising[::-1]


def test_it_reads_without_its_script(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("h2").count() >= 5 and page.locator("figure svg:visible").count() >= 5
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
