"""Tests of ``protofl report``: the file, its name, and refusals."""

from __future__ import annotations

import re
import shutil

import pytest


@pytest.fixture(scope="module")
def made(tmp_path_factory, data_dir, few):
    """Run two rounds of fedproto; return the run folder."""
    import protofl as pf

    folder = tmp_path_factory.mktemp("made") / "a run"
    given = {"models": "cnn4", "clients": 3, "rounds": 2, "batch_size": 64, "feature_dim": 16}
    pf.run(
        "fedproto",
        dataset=few,
        data_dir=data_dir,
        backend="local",
        dry_run=False,
        out=folder,
        progress=False,
        **given,
    )
    return folder


def test_a_page_has_the_name_of_its_run(cli, made, tmp_path):
    found = cli("report", made)
    assert found.exit_code == 0, found.output
    assert re.search(r"report: a-run\.html \(\d+ kB; open it in a browser\)", found.output)
    text = (tmp_path / "a-run.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "<h1>fedproto on few</h1>" in text


def test_several_have_one_page(cli, made, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(made, tmp_path / "runs" / name)
    found = cli("report", tmp_path / "runs", "--title", "Mine & yours")
    assert found.exit_code == 0, found.output
    assert "<h1>Mine &amp; yours</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_is_there_is_kept(cli, made, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("precious")
    found = cli("report", made, "--out", page)
    assert found.exit_code == 2 and "exists already" in found.stderr
    assert page.read_text() == "precious"
    assert cli("report", made, "--out", page, "--force").exit_code == 0
    assert "<h1>" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], ["nowhere is not a run folder (it has no config.json)", "no such folder"]),
        (["."], [". is not a run folder", "it holds no runs"]),
        ([], ["missing argument"]),
        ([".", "--out", "page.pdf"], ["--out page.pdf is not an HTML file", "ends in .html"]),
        ([".", "--out", "no/where.html"], ["its folder does not exist"]),
    ],
)
def test_what_is_no_run_is_named(cli, words, says):
    found = cli("report", *words)
    assert found.exit_code == 2
    for part in says:
        assert part in found.stderr
