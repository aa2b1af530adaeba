"""Tests of papers: the BibTeX reader, and the papers that our packages declare."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl_workbench.publishing.papers import (
    FILE,
    bibliography,
    cited,
    declared,
    own_paper,
    papers_of,
    read_bibtex,
)
from protofl_workbench.publishing.publication import WITHOUT_PAPER

ROOT = Path(__file__).parents[3]
OURS = declared(ROOT / "plugins/protofl_plugins" / FILE)
REQUIRED = {
    "inproceedings": {"title", "booktitle", "year"},
    "article": {"title", "journal", "year"},
    "techreport": {"title", "institution", "year"},
    "misc": {"title"},
}
"""Fields without which BibTeX's styles warn."""


def test_every_method_data_set_and_group_has_a_paper():
    """Those without are named in the code: baselines and forms of files."""
    plugins = [
        (p.kind, p.name)
        for p in Registry().plugins()
        if p.kind in ("method", "dataset", "model-group") and p.distribution == "protofl"
    ]
    found = papers_of(Registry(), plugins)
    assert {label for label, papers in found.items() if not papers} == WITHOUT_PAPER - {
        "dataset/sites"
    }  # of protofl-flower


def test_every_paper_belongs_to_a_plugin():
    known = {plugin.label for plugin in Registry().plugins()}
    for paper in OURS:
        assert paper.plugins and {*paper.plugins} <= known, paper.key


def test_entries_are_complete_and_have_unique_keys():
    assert len({paper.key for paper in OURS}) == len(OURS) > 80
    for paper in OURS:
        assert REQUIRED[paper.kind] <= paper.fields.keys(), paper.key
        if "eprint" in paper.fields:
            assert re.fullmatch(r"\d{4}\.\d{5}", paper.fields["eprint"]), paper.key
            assert paper.fields["archiveprefix"] == "arXiv"
        assert re.fullmatch(r"(19|20)\d\d", paper.fields.get("year", "2000")), paper.key


METHODS = [p for paper in OURS for p in paper.plugins if p.startswith("method/")]


@pytest.mark.parametrize("label", sorted(METHODS))
def test_a_method_cites_the_paper_of_its_docstring(label):
    """The first author, the title and the arXiv number are those of the docstring."""
    name = label.partition("/")[2]
    method = Registry().load("method", name)
    own = inspect.getdoc(method) or ""  # in a module of several methods, each class cites its paper
    text = own if "\n\n" in own else sys.modules[method.__module__].__doc__ or own
    (paper,) = papers_of(Registry(), [("method", name)])[label]
    derived = cited(name, text)
    if derived is None:  # a title without an author
        title = re.sub("[{}]", "", paper.fields["title"])
        assert f'"{title}"' in re.sub(r"\s+", " ", text)
        return
    titles = [re.sub(r"[^a-z0-9]", "", p.fields["title"].lower()) for p in (paper, derived)]
    assert titles[0] == titles[1]
    first = [p.fields["author"].partition(" and ")[0].partition(",")[0] for p in (paper, derived)]
    assert first[0] == first[1]
    assert paper.fields["year"] == derived.fields["year"]
    if number := derived.fields.get("eprint"):
        assert paper.fields["eprint"] == number


def test_a_method_without_an_entry_has_the_paper_of_its_docstring(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        '"""Mine.\n\nMüller et al., "A {New}\nMethod", AAAI 2023 (arXiv 2212.01197), Eq. 3.\n"""\n'
        'class Mine:\n    """Mine."""\n',
        encoding="utf-8",
    )
    found = SimpleNamespace(target=f"{file}:Mine")
    registry = SimpleNamespace(find=lambda kind, name: found)
    (paper,) = papers_of(registry, [("method", "mine")])["method/mine"]
    assert paper.fields["title"] == "{A {New} Method}"
    assert paper.fields["author"] == "Müller and others"
    assert paper.fields["booktitle"] == "AAAI" and paper.fields["year"] == "2023"
    assert paper.fields["eprint"] == "2212.01197"
    assert read_bibtex(bibliography([paper]), "x.bib")[0].fields == paper.fields
    assert cited("mine", "Cites nothing, 2023.") is None


def test_a_bibliography_can_be_read_again():
    text = bibliography([*OURS, own_paper("1.0.0"), OURS[0]])
    again = read_bibtex(text, "papers.bib")
    assert [paper.key for paper in again] == sorted({*(p.key for p in OURS), "protofl"})
    assert not any("protofl" in paper.fields for paper in again)
    fields = {paper.key: paper.fields for paper in again}
    for paper in OURS:
        assert fields[paper.key].items() == {
            (k, v) for k, v in paper.fields.items() if k != "protofl"
        }


def test_values_have_braces_quotes_or_digits():
    text = """
    % a comment about a@b.org
    @comment{x, title = {no}}
    @Article{key, TITLE = "A {"}quoted{"} title", year = 2020,
      author = {{The Team} and M{\\"u}ller, Ann},}
    """
    (paper,) = read_bibtex(text, "x.bib")
    assert paper.kind == "article" and paper.fields["year"] == "2020"
    assert paper.fields["title"] == 'A {"}quoted{"} title'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("@article{key, title = {open", "the value is not closed"),
        ("@article{key, title = word}", "in braces or quotes"),
        ("@article{key, title = {x}", "is not closed"),
        ("\n@article key", "line 2 is not a BibTeX entry"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(text, says):
    with pytest.raises(pf.UsageError, match=re.escape(says)) as found:
        read_bibtex(text, "x.bib")
    assert "x.bib" in str(found.value)
