"""Test that the notebook in examples/ runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/look_at_a_run.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(tmp_path / "data"))
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    assert not any(cell.get("outputs") for cell in book.cells)  # stored without outputs
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=900, kernel_name="python3", resources=place).execute()
    outputs = [out for cell in book.cells for out in cell.get("outputs", ())]
    shown = [out for out in outputs if "image/png" in out.get("data", {})]
    assert len(shown) == 4  # the split, the curve, the traffic, the confusion
    said = "".join(out.get("text", "") for out in outputs)
    (line,) = (line for line in said.splitlines() if ", recorded " in line)
    found, recorded = (words.rpartition(" ")[2] for words in line.split(", "))
    assert found == recorded
    assert (tmp_path / "report.html").stat().st_size > 10_000
