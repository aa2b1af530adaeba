"""Run the examples of docstrings, the lines that begin with ``>>>``, beside three small runs."""

from __future__ import annotations

import doctest
import importlib
import re
import shutil

import pytest
from doc_pages import ROOT

import protofl as pf

SLOW = {"publish", "report", "sweep", "verify"}
"""Examples that take more than two seconds."""
TINY = {"models": "mlp", "dataset": "wine", "rounds": 2}


def examples():
    """Return a parameter for each docstring that has examples."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for path in sorted(ROOT.glob("*/protofl*/**/*.py")):
        if not re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), re.MULTILINE):
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts[1:]))
        for example in finder.find(module, globs={"pf": pf}):
            if example.examples:
                name = example.name.rpartition(".")[2]
                marks = [pytest.mark.slow] if name in SLOW else []
                yield pytest.param(example, id=name, marks=marks)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder of runs that the examples read."""
    folder = tmp_path_factory.mktemp("examples") / "runs"
    pf.run("fedproto", **TINY, observe=("prototypes",), out=folder / "first")
    for method in ("fedproto", "fedtgp"):
        pf.run(method, **TINY, out=folder / method)
    return folder


@pytest.mark.parametrize("example", [*examples()])
def test_example(example, runs, tmp_path, monkeypatch):
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    said = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=flags).run(example, out=said.append)
    assert result.failed == 0, "".join(said)
    assert "+SKIP" not in example.docstring
