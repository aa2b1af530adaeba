"""Tests of the notebooks in examples/: stored without outputs, open in Colab, and run whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))
COLAB = "https://colab.research.google.com/github/protofl/protofl/blob/main/examples/{}.ipynb"
PAGE = (EXAMPLES.parent / "docs/tutorials/notebooks.md").read_text(encoding="utf-8")


def source(cell):
    return "".join(cell["source"])


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_opens_in_colab_and_is_stored_without_outputs(name):
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown" and source(cells[0]).startswith("# ")
    assert COLAB.format(name) in source(cells[0]) and COLAB.format(name) in PAGE
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert "%pip install -q protofl" in source(code[0]) and 'find_spec("protofl")' in source(
        code[0]
    )
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Return a function that runs a notebook and returns its texts and its number of pictures."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(tmp_path / "data"))

    def run(name):
        book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
        nbformat.validate(book)
        place = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(book, timeout=900, kernel_name="python3", resources=place).execute()
        outputs = [out for cell in book.cells for out in cell.get("outputs", ())]
        data = [out.get("data", {}) for out in outputs]
        texts = [out.get("text", "") for out in outputs]
        texts += [one.get("text/markdown", "") for one in data]
        assert not any("Warning" in text for text in texts), texts
        return "".join(texts), sum("image/png" in one for one in data)

    return run


def quiet(test):
    """Mark a test that runs a notebook: slow, with the warnings of Jupyter's own packages."""
    for warning in ("DeprecationWarning", "pytest.PytestUnraisableExceptionWarning"):
        test = pytest.mark.filterwarnings(f"ignore::{warning}")(test)
    return pytest.mark.slow(test)


def test_all_notebooks_are_run_here():
    assert NAMES == ["first_run", "look_at_a_run", "own_data", "own_method", "table_of_a_paper"]


@quiet
def test_first_run(execute, tmp_path):
    said, pictures = execute("first_run")
    assert pictures == 3
    assert "majority guess" in said and "| fedproto | 1 |" in said
    assert (tmp_path / "report.html").stat().st_size > 10_000


@quiet
def test_look_at_a_run(execute, tmp_path):
    said, pictures = execute("look_at_a_run")
    assert pictures == 4  # the split, the curve, the traffic, the confusion
    (line,) = (line for line in said.splitlines() if ", recorded " in line)
    found, recorded = (words.rpartition(" ")[2] for words in line.split(", "))
    assert found == recorded
    assert (tmp_path / "report.html").stat().st_size > 10_000


@quiet
def test_own_method(execute):
    said, pictures = execute("own_method")
    assert pictures == 1
    assert "| Pulled | 3 |" in said and "| alone | 3 |" in said
    off, on = (line for line in said.splitlines() if line.startswith("pull "))
    assert "'pull': 0.0}" in off and "'pull': 0.0}" not in on


@quiet
def test_own_data(execute):
    said, pictures = execute("own_data")
    assert pictures == 1
    assert said.count(" training rows, accuracy ") == 4 and said.count(" rows, accuracy ") == 8
    shares = dict(line.rsplit(" ", 1) for line in said.splitlines() if line.startswith("accuracy "))
    assert float(shares["accuracy"].rstrip("%")) > 70


@quiet
def test_table_of_a_paper(execute):
    said, pictures = execute("table_of_a_paper")
    assert pictures == 1
    assert "Not the published conditions" in said and "points below the published figures" in said
    (line,) = (line for line in said.splitlines() if line.startswith("fedtgp     ours"))
    assert "published 99.56±0.03" in line
