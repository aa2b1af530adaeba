"""The page of each method names its options and loss terms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protofl import Config
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.providers import Baseline
from protofl.system.options.plugin_options import option_names
from protofl.testing.donors import methods_to_run

DOCS = Path(__file__).parents[2] / "docs"
PAGES = DOCS / "reference/methods"
REGISTRY = Registry()
METHODS = methods_to_run(REGISTRY, "protofl")
DONORS = [p.name for p in REGISTRY.plugins("method") if p.distribution == "protofl"]
DONORS = sorted({*DONORS} - {*METHODS})
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def names_of(method):
    """Return the names that a page needs: options as users write them, and loss terms."""
    return {
        "option": list(option_names(getattr(method, "Config", Config))),
        "loss term": list(getattr(method, "terms", Baseline.terms)),
    }


def lacking(page, names):
    """Return the names that no code span of the page contains as a whole word."""
    spans = "\n".join(CODE.findall(page))
    return [n for n in names if not re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", spans)]


@pytest.mark.parametrize("name", METHODS)
def test_the_page_names_options_and_terms(name):
    path = PAGES / f"{name}.md"
    assert path.is_file(), f"{path} is missing"
    page = path.read_text(encoding="utf-8")
    assert f"\n# {name}\n" in page
    assert f"protofl run {name}" in page
    kinds = names_of(REGISTRY.load("method", name))
    options = kinds.pop("option")
    assert f"<!-- generated: options {name} -->" in page or not options
    missing = {kind: lacking(page, names) for kind, names in kinds.items()}
    assert not any(missing.values()), f"{path} lacks {missing}"


def test_the_page_of_hostile_clients_names_defences_and_attacks():
    """Check their options too, as no other page names them."""
    page = (DOCS / "how-to/simulate-attacks.md").read_text(encoding="utf-8")
    transforms = [
        p.name for p in REGISTRY.plugins("payload-transform") if p.distribution == "protofl"
    ]
    attacks = [n for n in transforms if hasattr(REGISTRY.load("payload-transform", n), "attack")]
    assert len(DONORS) >= 5 and len(attacks) >= 7
    for kind, names in (("method", DONORS), ("payload-transform", attacks)):
        for name in names:
            config = getattr(REGISTRY.load(kind, name), "Config", Config)
            assert not lacking(page, [name, *option_names(config)]), name


def test_every_page_is_of_a_method():
    assert {path.stem for path in PAGES.glob("*.md")} == {*METHODS, "index"}


def test_a_name_that_a_page_lacks_is_noticed():
    page = "# x\nnames mu, has `mu_2`, `lambda`\n\n```\nprotofl run x --set tau=1\n```\n`head/*`\n"
    assert lacking(page, ["lambda", "tau", "head/*"]) == []
    assert lacking(page, ["mu", "names", "model/*"]) == ["mu", "names", "model/*"]


def test_an_empty_page_lacks_every_name():
    for name in METHODS:
        kinds = names_of(REGISTRY.load("method", name))
        assert kinds["loss term"], name
        everything = [n for names in kinds.values() for n in names]
        assert lacking("# nothing\n", everything) == everything
