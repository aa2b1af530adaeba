"""Tests of the measured part of the methods' pages, and of the stored measurements."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import batch_norm
import pytest
import site_cards
import site_hooks
import site_methods
from measurements import Measurements
from payload_sizes import measure_payloads
from slowness import quick
from toy_runs import toy_runs

import protofl as pf
from protofl import Key
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.wire.keys import declared_keys, fault_of, reveals_of
from protofl.hooks.wire.payload import weight_views
from protofl.testing.donors import methods_to_run
from protofl.testing.toy_plugins import Weights

METHODS = methods_to_run(Registry(), "protofl")
STORED = site_cards.read_measured()
UPDATE = "update it: python tests/update.py"


def on_the_site(place, text):
    """Return a page as mkdocs gets it: without its first lines, through the hook."""
    body = re.sub(r"\A---\n.*?^---\n+", "", text, flags=re.DOTALL | re.MULTILINE)
    return site_hooks.on_page_markdown(
        body, page=SimpleNamespace(file=SimpleNamespace(src_uri=place))
    )


def test_the_sections_are_below_the_page():
    place = f"{site_methods.FOLDER}/fedtgp.md"
    page = on_the_site(place, (site_methods.PAGES / "fedtgp.md").read_text(encoding="utf-8"))
    assert page.startswith("# ") and page.endswith(site_cards.card_sections("fedtgp"))


@pytest.mark.parametrize("name", METHODS)
def test_the_page_names_weak_points(name):
    page = (site_methods.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert re.search(r"^(\*\*Weak points\*\*:|## Weak points$)", page, re.MULTILINE)


@pytest.mark.parametrize("name", METHODS)
def test_the_card_has_every_part(name):
    """Equations, payloads and bytes, what they reveal, when it works, own and published figures."""
    page = (site_methods.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert re.search(r"^    \S.* {2}\S", page, re.MULTILINE), "equations"
    sections = dict(
        part.split("\n\n", 1) for part in ("\n" + site_cards.card_sections(name)).split("\n## ")[1:]
    )
    uploads = declared_keys(Registry().load("method", name), "uploads")
    table = sections["What it reveals"]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", table, re.MULTILINE)
    assert [key for key, _ in rows] == [*uploads], "what it reveals"
    assert uploads or "Nothing" in table
    sizes = sections["Payload sizes"]
    assert "C=4, K=8" in sizes or (not uploads and "Nothing travels" in sizes), "bytes by C and K"
    assert all(f"up: `{key}`" in sizes for key in uploads)
    benchmark, published = sections["Benchmark"], sections["Published figures"]

    figures = re.search(r"^(- |\| )", benchmark, re.MULTILINE)
    assert figures or "No figure yet" in benchmark, "when it works, own figures"
    assert "protofl reproduce" in published or "have no row" in published


def test_what_keys_reveal():
    """The declared keys and their shapes decide, and a plugin's own words come first."""
    assert reveals_of("counts", "n_i^c") == "the number of training samples of each class, exactly"
    assert reveals_of("mine", Key("[n, K]", "x", by_class=True)).startswith("which classes")
    assert "student" in reveals_of("mine", Key("[N, C]", "x"))
    assert "inverted" in reveals_of("mine/*", Key("as the parameter", "x"))
    assert reveals_of("mine", Key("[K]", "x")) == "not known: protofl leak does not attack it"
    assert reveals_of("counts", Key("[n] int", "x", reveals="all")) == "all"
    assert "reveals=3" in fault_of("mine", Key("[K]", "x", reveals=3))


def test_other_pages_have_no_card():
    for place in ("index.md", f"{site_methods.FOLDER}/index.md", "how-to/fedproto.md"):
        assert on_the_site(place, "# A\n\ntext") == "# A\n\ntext"


def test_all_methods_are_measured():
    assert {*STORED} == {*METHODS}, UPDATE
    for name, stored in STORED.items():
        assert not stored.not_measured, (name, stored.not_measured)


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(METHODS, "fedproto"))
def test_stored_payloads_are_those_of_the_code(name):
    assert name in STORED, f"{UPDATE} {name}"
    with toy_runs(name) as runs:
        keys, payloads = measure_payloads(runs)
    stored = STORED[name]
    if name != "fedpkd":
        assert (stored.keys, stored.payloads) == (keys, payloads), f"{UPDATE} {name}"
        return
    declared = [[replace(key, measured=()) for key in each] for each in (stored.keys, keys)]
    assert declared[0] == declared[1], f"{UPDATE} {name}"
    # Its server sends the public samples that it trusts. Their number depends on the last digits
    # of a processor's sums, so downloads may differ by whole samples: C scores and an index.
    for known, found in zip(stored.payloads, payloads, strict=True):
        sample = 4 * found.classes + 8 if found.direction == "down" else math.inf
        assert (known.bytes - found.bytes) % sample == 0, f"{UPDATE} {name}"


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(METHODS, "fedavg", "fedkd"))
def test_the_stored_line_on_batch_norm_is_that_of_a_run(name):
    assert STORED[name].batch_norm == batch_norm.batch_norm_line(name), f"{UPDATE} {name}"
    assert STORED[name].batch_norm in site_cards.card_sections(name)


class Half(Weights):
    """Each client takes half of the mean, and the server's counts start at 0."""

    @pf.hookimpl
    def receive(self, client):
        if client.received:
            own = weight_views(client.module("model"), "model")
            for key, tensor in client.received.items():
                if tensor.is_floating_point():
                    own[key].lerp_(tensor, 0.5)
                else:
                    own[key].zero_()


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("fedavg", {}, (batch_norm.MEAN, batch_norm.MEAN, batch_norm.LARGEST)),
        ("fedavg", {"buffers": "local"}, (batch_norm.MEAN, *[batch_norm.LOCAL] * 2)),
        ("fedbn", {}, (batch_norm.LOCAL,) * 3),
        (Half, {}, (batch_norm.MIXED, batch_norm.MIXED, batch_norm.SERVER)),
    ],
)
def test_a_run_shows_what_becomes_of_batch_norm(method, options, words):
    (policy,) = batch_norm.policies(method, **options).values()
    assert tuple(policy.values()) == words


def test_new_and_named_methods_are_measured_and_others_stay(tmp_path, monkeypatch):
    measured = []

    def measure(name):
        measured.append(name)
        return Measurements((), "", (), None, {"cost": name}, {"torch": "2.6"})

    monkeypatch.setattr(site_cards, "measure", measure)
    path = tmp_path / "measured.json"
    assert site_cards.update_measured(["b", "a"], [], path) == ["b", "a"]
    assert site_cards.update_measured(["a", "c"], ["a"], path) == ["a", "c"]
    assert measured == ["b", "a", "a", "c"]
    assert [*site_cards.read_measured(path)] == ["a", "c"]  # b no longer exists
    before = path.read_bytes()
    assert site_cards.update_measured(["a", "c"], [], path) == [] and path.read_bytes() == before
    assert len(path.read_text().splitlines()) == 4  # a line for each method
