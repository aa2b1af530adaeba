"""Tests of ``protofl reproduce`` for a benchmark, also with a method of an example package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from installing import write_dist_info
from typer.testing import CliRunner

from protofl_cli.app import app

EXAMPLE = Path(__file__).parents[3] / "examples" / "protofl-proto-nce"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Install the example package with the method proto-nce, and work in an empty folder."""
    write_dist_info(EXAMPLE, tmp_path / "site")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("protofl_proto_nce", None)


def invoke(*words):
    return CliRunner().invoke(app, ["reproduce", *words])


@pytest.mark.slow
@pytest.mark.usefixtures("example")
def test_a_row_is_added_by_another_package_with_one_command(tmp_path):
    words = ["benchmark/regimes", "--add", "proto-nce", "--scale", "smoke"]
    small = ["--columns", "four-b05-n30", "--at-once", "0", "--out", "page.md"]
    result = invoke(*words, *small)
    assert result.exit_code == 0, result.output
    assert "proto-nce" in result.output and "lambda=" in result.output
    record = json.loads(Path("page/four-b05-n30/proto-nce.json").read_text(encoding="utf-8"))
    assert record["plugin"]["distribution"] == "protofl-proto-nce"
    assert [c["weight"] for c in record["search"]] == [None, 0.3]
    assert {p.stem for p in Path("page/four-b05-n30").glob("*.json")} == {"local", "proto-nce"}
    page = Path("page.md").read_text(encoding="utf-8")
    assert "| proto-nce |" in page and "protofl-proto-nce" in page
    again = invoke(*words, *small, "--no-run", "--force")
    assert again.exit_code == 0 and Path("page.md").read_text(encoding="utf-8") == page


def test_add_needs_a_benchmark_and_an_installed_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("fedtgp/table-10", "--add", "fedproto")
    assert result.exit_code == 2 and "is not a benchmark" in result.output
    result = invoke("benchmark/regimes", "--add", "fedprotto", "--scale", "smoke")
    assert result.exit_code == 2 and "fedproto" in result.output


def test_a_benchmark_is_written_as_a_page_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("benchmark/regimes", "--scale", "smoke", "--out", "table.csv")
    assert result.exit_code == 2 and "FILE.md" in result.output
