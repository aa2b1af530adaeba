"""Chromium for tests of pages. Importing this module skips a test file without Playwright."""

from __future__ import annotations

import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
needs_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine"),
]

FAINT = """() => {
    // WCAG 2.1's contrast of every text that can be seen with the ground below it.
    const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const over = ([r, g, b, a = 1], below) => [r, g, b].map((c, i) => a * c + (1 - a) * below[i]);
    const ground = (one) => {
        if (!one) return [255, 255, 255];
        const found = parts(getComputedStyle(one).backgroundColor);
        return found[3] === 0 ? ground(one.parentElement)
            : found.length < 4 ? found : over(found, ground(one.parentElement));
    };
    return [...document.querySelectorAll('body *')].filter((one) => {
        if (one.closest('script, .on-paper svg')) return false;
        const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        const seen = one.checkVisibility({opacityProperty: true, visibilityProperty: true});
        if (!own || !seen) return false;
        const style = getComputedStyle(one), below = ground(one);
        const ink = over(parts(one instanceof SVGElement ? style.fill : style.color), below);
        const pair = [light(ink), light(below)].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05) < 4.5;
    }).map((one) => one.outerHTML.slice(0, 160));
}"""


def chromium():
    """Yield a running Chromium, for a fixture."""
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()
