"""Tests of the built site in a browser: served below a path, wide and narrow, light and dark.

``PROTOFL_SITE`` names a site that is built already, as .ci/run does; otherwise it is built here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browsing import FAINT, chromium, needs_browser

import protofl

ROOT = Path(__file__).parents[2]
PAGES = (
    "index.html",
    "gallery.html",
    "tutorials/first-run.html",
    "reference/benchmark.html",
    "reference/methods/index.html",
    "reference/methods/fedproto.html",
    "reference/python.html",
    "reference/commands.html",
)
METHODS = sorted(
    p.stem for p in (ROOT / "docs/reference/methods").glob("*.md") if p.stem != "index"
)
pytestmark = needs_browser
browser = pytest.fixture(chromium, scope="module")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the built site."""
    if built := os.environ.get("PROTOFL_SITE"):
        return Path(built)
    pytest.importorskip("material", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def address(site, tmp_path_factory):
    """Return the address of the site, below a path of a server."""
    root = tmp_path_factory.mktemp("server")
    (root / "below").symlink_to(site, target_is_directory=True)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/below/"
        server.shutdown()


@pytest.fixture
def opened(browser, address):
    """Return a function that opens a page. Console output and other hosts are errors."""
    contexts, said = [], []

    def asked(url):
        if not url.startswith((address, "data:", "blob:")):
            said.append(url)

    def at(name, width=1280, scheme="light", **options):
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda wanted: said.append(wanted.url))
        page.on("request", lambda wanted: asked(wanted.url))
        page.on("response", lambda got: said.append(got.url) if got.status >= 400 else None)
        page.goto(address + name)
        return page

    yield at
    for context in contexts:
        context.close()
    assert said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_can_be_read(opened, name, width, scheme):
    page = opened(name, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        page.locator("[data-md-color-scheme]").first.get_attribute("data-md-color-scheme")
        == {"light": "default", "dark": "slate"}[scheme]
    )
    assert page.evaluate(FAINT) == []
    assert page.locator("main img:not([alt])").count() == 0


CUT = """(width) => [...document.querySelectorAll('.equations *')].filter((one) => {
    const box = one.getBoundingClientRect();
    return one.matches('dd, dt') ? box.left < 0 || box.right > width
        || one.matches('dd') && one.scrollHeight > one.clientHeight
        : one.matches('math, math *:not(mspace, :empty)') && !(box.width && box.height);
}).map((one) => one.outerHTML)"""
"""Rows beside the page, formulas cut off below, and mathematics that is not drawn."""


@pytest.mark.parametrize("name", [*METHODS, "../../how-to/simulate-devices"])
def test_equations_and_their_numbers_are_seen(opened, name):
    page = opened(f"reference/methods/{name}.html")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("document.fonts.ready")
        assert page.locator(".equations math").count() > 0
        assert page.evaluate("document.fonts.check('1em \"STIX Two Math\"', '𝑃')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT, width) == []


def test_pictures_of_the_gallery_are_there(opened):
    page = opened("gallery.html")
    loaded = "(all) => all.map((one) => { one.loading = 'eager'; return one.decode(); }).length"
    assert page.locator("main img").evaluate_all(loaded) > 12
    page.wait_for_function("[...document.images].every((one) => one.complete && one.naturalWidth)")


@pytest.mark.parametrize(("name", "column"), [("benchmark", "lr"), ("methods/index", "name")])
def test_tables_are_sorted_by_keys(opened, name, column):
    page = opened(f"reference/{name}.html")
    if name == "benchmark":
        page.locator("details summary").first.click()
    table = page.locator("[data-sort] table").first
    heads = table.locator("thead th")
    place = [text.strip() for text in heads.all_text_contents()].index(column)
    cells = f"(t) => [...t.tBodies[0].rows].map((r) => r.cells[{place}].textContent.trim())"
    before = table.evaluate(cells)
    heads.nth(place).locator("button").focus()
    for state in ("ascending", "descending"):
        page.keyboard.press("Enter")
        assert heads.nth(place).get_attribute("aria-sort") == state
        assert table.locator("[aria-sort]").count() == 1
        now = table.evaluate(cells)
        assert sorted(now) == sorted(before)
        filled = [cell for cell in now if cell]
        assert now == filled + [""] * before.count("")  # empty cells are last in both directions
        values = [float(cell) for cell in filled] if column == "lr" else filled
        assert values == sorted(values, reverse=state == "descending")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("load_run", "reference/python.html#load_run"),
        ("class_means", "reference/functional.html#class_means"),
        ("fedproto", "reference/methods/fedproto.html"),
    ],
)
def test_search_finds_names(opened, address, typed, found):
    page = opened("index.html")
    page.get_by_placeholder("Search").click()
    page.keyboard.type(typed)
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    links = page.locator(".md-search-result__link").evaluate_all("(all) => all.map((a) => a.href)")
    links = [
        re.sub(r"\?h=[^#]*", "", link).removeprefix(address) for link in links
    ]  # what is marked
    assert found in links, links


QUESTIONS = {
    "add clients later": "how-to/add-clients-later",
    "asynchronous": "how-to/run-without-rounds",
    "compress uploads": "how-to/compress-uploads",
    "confusion matrix": "how-to/plot-runs",
    "differential privacy": "how-to/protect-uploads",
    "malicious clients": "how-to/simulate-attacks",
    "notebook": "tutorials/notebooks",
    "out of memory": "how-to/scale-to-many-clients",
    "own data csv": "how-to/choose-data",
    "pfllib": "how-to/from-other-libraries",
    "pretrained resnet": "how-to/use-pretrained-nets",
    "privacy leak": "how-to/measure-leaks",
    "resume interrupted run": "how-to/resume-and-reuse",
    "several gpus": "how-to/choose-a-device",
    "slurm": "how-to/run-on-slurm",
    "sweep learning rate": "how-to/sweep-options",
    "wandb": "how-to/use-trackers",
    "which gpu": "how-to/choose-a-device",
    "worst client": "how-to/compare-runs",
    "worst client plot": "how-to/plot-runs",
    "write own method": "how-to/plugins/method",
}


@pytest.mark.parametrize(("asked", "answer"), QUESTIONS.items())
def test_a_guide_is_among_the_first_three_pages(opened, address, asked, answer):
    page = opened("index.html")
    page.get_by_placeholder("Search").click()
    page.get_by_placeholder("Search").fill(asked)
    found = page.locator(".md-search-result__item > a")
    found.first.wait_for()
    links = found.evaluate_all("(all) => all.map((one) => one.href)")
    pages = [re.sub(r"[?#].*", "", link).removeprefix(address) for link in links]
    assert f"{answer}.html" in [*dict.fromkeys(pages)][:3], pages[:8]


def test_the_search_knows_every_public_name(site):
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    titles = {}
    for section in index["docs"]:
        page, _, _ = section["location"].partition("#")
        titles.setdefault(page, set()).add(re.sub(r"<.*?>", "", section["title"]))
    pages = {"python": protofl, "functional": protofl.functional, "plots": protofl.plots}
    modules = {"functional", "plots", "backends", "datasets", "models", "schedules"}
    for name, module in pages.items():
        known = titles[f"reference/{name}.html"]
        assert {*module.__all__} - modules - {"__version__"} <= known
    further = {name for space in ("datasets", "models") for name in getattr(protofl, space).__all__}
    known = {title.rpartition(".")[2] for title in titles["reference/python.html"]}
    assert further <= known


def test_links_and_search_work_in_a_folder_without_a_server(browser, site):
    page, said = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda got: None if got.url.startswith("file:") else said.append(got.url))
    page.goto((site / "index.html").as_uri())
    page.locator("article a", has_text="Benchmark").first.click()
    assert page.url.endswith("/reference/benchmark.html")
    assert page.locator("h1").inner_text().startswith("Benchmark")
    page.get_by_placeholder("Search").click()
    page.keyboard.type("load_run")
    page.locator(".md-search-result__link").first.wait_for()
    page.goto((site / "reference/methods/fedtgp.html").as_uri())
    fonts = page.evaluate("document.fonts.ready.then((all) => [...all].map((one) => one.status))")
    assert "loaded" in fonts
    page.close()
    assert said == []


class Loaded(HTMLParser):
    """Collects what a page loads, without links that a reader may follow."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.found += [given[key] for key in ("src", "srcset", "poster", "data") if given.get(key)]
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(given["href"])


def test_no_page_loads_from_another_host(site):
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 100
    for path in pages:
        reader = Loaded()
        reader.feed(path.read_text(encoding="utf-8"))
        assert reader.found
        outside = [url for url in reader.found if "//" in url.partition(":")[2] or url[0] == "/"]
        outside = [url for url in outside if not url.startswith("data:")]
        assert not outside, (path, outside)
