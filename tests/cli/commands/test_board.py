"""Tests of ``protofl board``: of the committed benchmark, and of published folders."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import protofl as pf
from protofl_workbench.publishing.badges import COLOURS, badge
from protofl_workbench.publishing.leaderboard import leaderboard
from protofl_workbench.reproductions.benchmark.benchmark_records import read_records
from protofl_workbench.reproductions.benchmark.standings import setting_of

BENCHMARK = Path(__file__).parents[3] / "docs/reference/benchmark"


@pytest.mark.slow
def test_the_committed_records_have_the_standings_of_the_benchmark():
    found = {one.name: one for one in leaderboard([BENCHMARK]).settings}
    records = read_records(BENCHMARK)
    assert {*found} == {record["setting"] for record in records}
    expected = setting_of(
        "python-docs", [record for record in records if record["setting"] == "python-docs"]
    )
    ours = found["python-docs"].setting
    assert [s.method for s in ours.standings] == [s.method for s in expected.standings]
    assert [s.groups for s in ours.standings] == [s.groups for s in expected.standings]
    assert ours.refused == expected.refused


def test_unequal_settings_are_not_compared(tmp_path):
    for name, change in (("a", {}), ("b", {"rounds": 9}), ("c", {})):
        path = tmp_path / name / "python-docs/local.json"
        path.parent.mkdir(parents=True)
        record = json.loads((BENCHMARK / "python-docs/local.json").read_text())
        record["options"] |= change
        record["data"] = "f" * 16 if name == "c" else record["data"]
        path.write_text(json.dumps(record))
    names = [one.name for one in leaderboard([tmp_path]).settings]
    assert names == ["python-docs", "python-docs (2)", "python-docs (3)"]


def test_nothing_to_show_is_refused(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    found = cli("board", tmp_path / "empty", "--out", tmp_path / "out")
    assert found.exit_code == 2 and "no published folder" in found.stderr
    (tmp_path / "empty/x.json").write_text("{")
    found = cli("board", tmp_path / "empty", "--out", tmp_path / "out")
    assert found.exit_code == 2 and "x.json is damaged" in found.stderr
    found = cli("board", BENCHMARK, "--out", tmp_path, "--force")
    assert found.exit_code == 2 and "exists already" in found.stderr
    assert (tmp_path / "empty/x.json").exists()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_badge_is_svg_with_its_text(colour):
    root = ElementTree.fromstring(badge("a <b> & c", "rank 3 of 25", colour))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts == ["a <b> & c", "rank 3 of 25"]
    assert root.get("aria-label") == "a <b> & c: rank 3 of 25"
    width = float(root.get("viewBox").split()[2])
    for element in root.iter():
        if element.tag.endswith("text"):
            half = float(element.get("textLength")) / 2
            assert 0 < float(element.get("x")) - half and float(element.get("x")) + half < width


@pytest.mark.slow
def test_the_board_of_the_committed_benchmark(cli, tmp_path):
    out = tmp_path / "site"
    found = cli("board", BENCHMARK, "--out", out)
    assert found.exit_code == 0, found.output
    values = json.loads((out / "board.json").read_text())
    settings = {one["name"]: one for one in values["settings"]}
    # One table for each setting of the benchmark, although some methods have nets of their own.
    assert [*settings] == sorted({path.parent.name for path in BENCHMARK.glob("*/local.json")})
    page = (BENCHMARK.parent / "benchmark.md").read_text(encoding="utf-8")
    for name, setting in settings.items():
        ranked = [row for row in setting["rows"] if row["rank"]]
        assert ranked and [row["rank"] for row in ranked] == [*range(1, len(ranked) + 1)]
        place = page.index(f"### {name}")
        for row in ranked:  # the page of the benchmark has the same ranks and groups
            line = re.search(rf"^\| {row['method']} \|.*$", page[place:], re.MULTILINE)[0]
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert [cells[1], cells[-2], cells[-1]] == [
                f"{100 * row['accuracy']:.1f}", str(row["rank"]), row["groups"]
            ]  # fmt: skip
    sources = (out / "methods" / "depthfl.html").read_text(encoding="utf-8")
    assert "models=depths:cnn4@3" in sources
    assert settings["mnist-equal"]["options"]["models"] == "cnn4"
    text = (out / "index.html").read_text(encoding="utf-8")
    assert text.count("<table data-sort>") == 1 + len(settings)  # the first is over settings
    assert "Do not fit this setting" in text
    for setting in values["settings"]:
        for row in setting["rows"]:
            assert f'href="{row["page"]}"' in text
            assert (out / row["page"]).is_file()
            ElementTree.parse(out / row["badge"])
    for path in out.rglob("*.html"):  # links lead to files of the board, or to a paper
        for link in re.findall(r'(?:href|src)="([^"#][^"]*)"', path.read_text(encoding="utf-8")):
            if not link.startswith(("data:", "https://arxiv.org/", "https://doi.org/")):
                assert (path.parent / link).is_file(), (path, link)
    found = cli("board", BENCHMARK, "--out", out, "--force", "--json")
    assert found.exit_code == 0 and json.loads(found.stdout) == values


@pytest.fixture(scope="module")
def published(tmp_path_factory, data_dir, few):
    """Publish two folders of one setting: local and fedproto with seeds 0 and 1, and seed 1."""
    home = tmp_path_factory.mktemp("published")
    options = {"models": "cnn4", "clients": 3, "rounds": 2, "batch_size": 64, "feature_dim": 16}
    options |= {"backend": "local", "dry_run": False, "progress": False, "dataset": few}
    for folder, method, seed, trials in (
        ("one", "local", 0, 2), ("one", "fedproto", 0, 2), ("two", "fedproto", 1, 2)
    ):  # fmt: skip
        out = home / "runs" / folder / method
        pf.run(method, out=out, seed=seed, trials=trials, data_dir=data_dir, **options)
    for folder in ("one", "two"):
        pf.publish(home / "runs" / folder, home / "all" / folder, figures=["none"])
    return home / "all"


@pytest.mark.slow
def test_the_board_of_published_folders(cli, published, tmp_path):
    found = cli("board", published, "--out", tmp_path / "site", "--json")
    assert found.exit_code == 0, found.output
    values = json.loads(found.stdout)
    (setting,) = values["settings"]
    assert setting["chosen_round"] == "last"
    rows = {row["method"]: row for row in setting["rows"]}
    assert rows.keys() == {"local", "fedproto"}
    # Seed 1 is in both folders, and counts once; fedproto has seed 2 too, which local lacks.
    assert rows["fedproto"]["seeds"] == 3 and rows["fedproto"]["sources"] == ["one", "two"]
    assert any("seed 1 of fedproto is there already" in note for note in values["notes"])
    run = pf.load_run(published / "one/runs/local")
    final = [run.rows_of(trial)[-1].test_accuracy for trial in run.trials]
    assert rows["local"]["accuracy"] == pytest.approx(sum(final) / 2)


@pytest.mark.slow
def test_a_changed_folder_is_refused(cli, published, tmp_path):
    copy = Path(shutil.copytree(published, tmp_path / "all"))
    (copy / "two/README.md").write_text("better")
    found = cli("board", copy, "--out", tmp_path / "site")
    assert found.exit_code == 1 and "changed: README.md" in found.stderr
    assert not (tmp_path / "site").exists()
