"""Tests of a page's HTML: self-contained, accessible, and safe for any content of folders."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from reported_pages import read
from written_records import write_rows

from protofl import report
from protofl_workbench.reporting.page_parts import in_the_dark


@pytest.fixture(scope="module", params=["page", "page_of_all"])
def either(request):
    return request.getfixturevalue(request.param)


@pytest.mark.slow
def test_pictures_have_words(either):
    page = read(either)
    figures = page.all("figure")
    assert len(figures) > 4
    for figure in figures:
        drawn = [e for e in figure.all("div", "img") if e.get("role") == "img" or e.tag == "img"]
        assert len(drawn) == 1
        words = drawn[0].get("aria-label") or drawn[0].get("alt")
        assert len(words) > 30 and "nan" not in words
        assert figure.all("h3", "h4")[0].words
    inside = {id(e) for figure in figures for e in figure.all("svg")}
    assert {id(e) for e in page.all("svg")} == inside


def test_headings_are_in_order(either):
    levels = [int(e.tag[1]) for e in read(either).all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_have_captions_and_say_what_heads_them(either):
    for table in read(either).all("table"):
        (caption,) = table.all("caption")
        assert caption.words
        width = len(table.all("thead")[0].all("th"))
        for row in table.all("tr"):
            assert len(row.all("th", "td")) == width
        assert all(th["scope"] in ("row", "col") for th in table.all("th"))


def test_names_are_of_one_thing_and_lead_somewhere(either):
    page = read(either)
    names = [e["id"] for e in page.all() if e.get("id")]
    assert len(names) == len(set(names))
    wanted = {e["href"][1:] for e in page.all("a", "use") if e.get("href")}
    wanted |= {e["aria-labelledby"] for e in page.all() if e.get("aria-labelledby")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", either))
    assert wanted and wanted <= set(names)


def test_nothing_is_fetched(either):
    for element in read(either).all():
        for name in ("src", "href", "data", "srcset", "poster", "action"):
            value = element.get(name) or ""
            assert value.startswith(("#", "data:")) or not value
    style = read(either).all("style")[0].text
    assert "@import" not in style and not re.findall(r"url\((?!#)", style)


def test_colours_of_pictures_are_known_in_light_and_dark(either):
    used = set(re.findall(r"var\(--x([0-9a-f]{6})\)", either))
    style = read(either).all("style")[0].text
    light, dark = style.split("@media screen and (prefers-color-scheme: dark) { :root")[-2:]
    assert used
    for colour in used:
        assert f"--x{colour}:#{colour};" in light and f"--x{colour}:#" in dark
    assert not re.findall(r"(?:fill|stroke): #", either)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """Return the contrast of two colours by WCAG 2.1."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_pictures_can_be_seen_in_the_dark():
    from protofl_workbench.plots.style import COLOURS, FAINT, GROUND, INK

    ground = "#14161a"
    for colour in COLOURS:
        assert contrast(in_the_dark(colour), ground) >= 4.5
    assert contrast(in_the_dark(INK), ground) >= 10
    assert 1.1 <= contrast(in_the_dark(FAINT), ground) <= 2
    assert contrast(in_the_dark(GROUND), ground) <= 1.5


def test_words_can_be_read(either):
    style = read(either).all("style")[0].text
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", part))
        for part in (style.partition("@media")[0], style.partition("@media")[2])
    )
    for scheme in (light, light | dark):
        for ground in ("ground", "raised", "wash"):
            for word in ("ink", "soft", "accent"):
                assert contrast(scheme[word], scheme[ground]) >= 4.5


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}{% raw %}$\\frac"


@pytest.mark.slow
def test_names_in_a_folder_stay_words(copy):
    config = json.loads((copy / "config.json").read_text())
    config |= {"dataset": HOSTILE, "models": HOSTILE, "partition": HOSTILE}
    config["options"]["fedproto"][HOSTILE] = HOSTILE
    config["use"] = {HOSTILE: HOSTILE}
    config["versions"][HOSTILE] = HOSTILE
    config["plugins"].append(dict.fromkeys(("kind", "name", "version", "distribution"), HOSTILE))
    (copy / "config.json").write_text(json.dumps(config))
    split = json.loads((copy / "partition.json").read_text())
    for one in (split, *split.get("trials", ())):
        one["classes"] = [f"{HOSTILE}{n}" for n in range(4)]
    (copy / "partition.json").write_text(json.dumps(split))
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row["loss_terms"][HOSTILE] = 1.0
        row["absent"] = {"0": HOSTILE}
        row["seconds"][HOSTILE] = 1.0
    write_rows(copy, rows)

    text = report([copy, copy.parent / "copy"])
    page = read(text)
    assert page.all("h1")[0].words.startswith(f"fedproto on {' '.join(HOSTILE.split())}")
    assert len(page.all("script")) == 1 and not page.all("img")
    assert not [name for e in page.all() for name in e.attributes if name.startswith("on")]
    assert "<script>alert" not in text and "49}" not in text
    assert text.count("<script>") == 1


@pytest.mark.slow
def test_colours_and_ids_are_changed_in_attributes_alone(copy):
    names = ["#ff0000", "url(#a)", "fill: #0072b2", "font: 9px x"]
    split = json.loads((copy / "partition.json").read_text())
    for one in (split, *split.get("trials", ())):
        one["classes"] = names
    (copy / "partition.json").write_text(json.dumps(split))
    page = read(report(copy))
    texts = {e.words for svg in page.all("svg") for e in svg.all("text", "tspan")}
    assert {*names} <= texts


def test_nothing_that_a_folder_names_is_executed(copy, tmp_path, undrawn):
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'done')!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((copy / "config.json").read_text())
    config["classes"] = {"method/evil": f"{evil}:Evil"}
    config["method"] = "evil"
    config["plugins"].append({"kind": "method", "name": "evil", "version": "", "distribution": ""})
    (copy / "config.json").write_text(json.dumps(config))
    text = report(copy)
    assert "evil is not installed here" in text and not (tmp_path / "done").exists()
