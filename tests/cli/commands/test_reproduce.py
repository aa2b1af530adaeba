"""Tests of ``protofl reproduce``: a table from its file to the screen, with old and new runs."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from written_records import seal

import protofl as pf
from protofl_workbench.reproductions.cells import Change
from protofl_workbench.reproductions.finding import collections
from protofl_workbench.reproductions.reproduction import Reproduction
from protofl_workbench.reproductions.reproduction_pictures import draw
from protofl_workbench.reproductions.reproduction_plan import plan_reproduction

REPRODUCTION = """
title = "Accuracy (%) on few images"
paper = "Ours"
place = "Table 1"
kind = "KIND"
figure = "best"
chosen = ["the seed"]

[options]
models = "cnn4"
dataset = "digits"
clients = 2
rounds = 2
batch-size = 60
backend = "local"

[columns]
practical = { label = "Practical", partition = "dirichlet" }

[published]
local = "50.0"
fedproto = "60.00±1.25"
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory, data_dir, few):
    """Reproduce a reproduction; return its folder, command line options and result."""
    folder = tmp_path_factory.mktemp("reproduction")
    for kind in ("table", "curves", "bars"):
        text = REPRODUCTION.replace("KIND", kind)
        text = text.replace('"best"', '"series"') if kind == "curves" else text
        (folder / f"{kind}.toml").write_text(text, encoding="utf-8")
    words = ["--runs", folder / "runs", "--dataset", f"digits={few}", "--data-dir", data_dir]
    result = pf.reproduce(
        str(folder / "table.toml"),
        runs=folder / "runs",
        datasets={"digits": few},
        data_dir=data_dir,
        at_once=0,
    )
    return folder, [str(word) for word in words], result


def test_every_cell_is_a_run(done):
    _, _, result = done
    assert {entry.state for entry in result.entries.values()} == {"done"}
    for row in ("local", "fedproto"):
        entry = result[row, "practical"]
        run = pf.load_run(entry.folder)
        assert run.config["method"] == row
        best = max(line["test_accuracy"] for line in run.rows)
        assert entry.mean == pytest.approx(100 * best)
        assert entry.difference == pytest.approx(100 * best - entry.published.mean)


def test_the_screen_shows_ours_and_the_published(done, cli):
    folder, words, result = done
    shown = cli("reproduce", folder / "table.toml", "--no-run", *words)
    assert shown.exit_code == 0, shown.output
    entry = result["fedproto", "practical"]
    assert entry.ours in shown.output and "60.00±1.25" in shown.output
    assert entry.apart in shown.output
    assert "best round on test samples" in shown.output and "· the seed" in shown.output
    assert "2 rounds" in shown.output and "protofl's splits of seed 0" in shown.output


@pytest.mark.parametrize("form", ["screen", "md", "csv", "json", "png"])
def test_every_format_says_that_the_data_are_others(done, cli, few, tmp_path, monkeypatch, form):
    folder, words, result = done
    drawn = []
    monkeypatch.setattr(
        "protofl_workbench.reproductions.reproduction_pictures.save",
        lambda figure, file: drawn.append(figure),
    )
    out = [] if form == "screen" else ["--out", tmp_path / f"x.{form}"]
    shown = cli("reproduce", folder / "table.toml", "--no-run", *out, *words)
    assert shown.exit_code == 0, shown.output
    name = f"npz:{Path(str(few).partition(':')[2]).name}"
    said = f"not the published conditions: data {name} in place of digits"
    if form == "screen":
        text = " ".join(shown.output.split())
    elif form == "png":
        text = drawn[0].get_supxlabel().replace("\n", " ")
    else:
        text = (tmp_path / f"x.{form}").read_text("utf-8").replace(r"\_", "_")
    assert said[4:] in text  # with or without a capital letter
    mean = sum(entry.difference for entry in result.entries.values()) / 2
    sign = "below" if mean < 0 else "above"
    if form not in ("csv", "png"):
        assert f"{abs(mean):.2f} points {sign}" in text


def test_what_is_there_is_not_repeated(done, cli):
    folder, words, result = done
    files = lambda: {p: p.stat().st_mtime_ns for p in (folder / "runs").glob("*/*.json*")}  # noqa: E731
    before = files()
    assert len(before) == 2 * 5
    shown = cli("reproduce", folder / "table.toml", "--at-once", "0", *words)
    assert shown.exit_code == 0, shown.output
    assert files() == before
    more = cli("reproduce", folder / "table.toml", "--rounds", "3", "--no-run", *words)
    assert "2 of 3 rounds are done (local, Practical, fedproto, Practical)" in more.output
    fewer = cli("reproduce", folder / "table.toml", "--rounds", "1", "--no-run", *words)
    assert "1 round in place of 2" in " ".join(fewer.output.split())
    run = pf.load_run(result["local", "practical"].folder)
    assert f"{100 * run.rows[0]['test_accuracy']:.1f}" in fewer.output


@pytest.mark.parametrize("rounds", [(), ("--rounds", "2")])
def test_a_run_that_was_killed_before_its_end_is_finished(done, cli, tmp_path, rounds):
    """As if it had been killed between its last round and its summary."""
    folder, words, result = done
    copy = shutil.copytree(folder, tmp_path / "reproduction")
    words = [str(copy / "runs") if word == str(folder / "runs") else word for word in words]
    run = copy / "runs" / Path(result["local", "practical"].folder).name
    (run / "summary.json").unlink()
    seal(run, finished=None)
    assert pf.load_run(run).state == "unfinished"
    shown = cli("reproduce", copy / "table.toml", "--at-once", "0", *rounds, *words)
    assert shown.exit_code == 0, shown.output
    assert pf.load_run(run).state == "finished" and pf.load_run(run).summary


@pytest.mark.slow
def test_a_plan_starts_nothing(done, cli):
    folder, words, _ = done
    shown = cli("reproduce", folder / "table.toml", "--plan", "--rounds", "3", *words)
    assert shown.exit_code == 0, shown.output
    assert re.search(r"local, practical +1 +2 of 3", shown.output)
    assert "2, 0 of them finished" in shown.output and "in one process on cpu" in shown.output
    assert pf.load_run(folder / "runs" / next((folder / "runs").glob("local*"))).rounds_done == 2


def test_a_run_with_another_seed_is_not_the_one_that_is_wanted(done, few, data_dir):
    folder, _, _ = done
    how = {"runs": folder / "runs", "datasets": {"digits": few}, "data_dir": data_dir}
    found = pf.reproduce(str(folder / "table.toml"), start=False, seed=7, **how)
    assert {(entry.state, entry.why) for entry in found.entries.values()} == {("not run", "")}
    change = Change(datasets=how["datasets"], options={"data_dir": data_dir, "seed": 7})
    planned = plan_reproduction(found.reproduction, change, how["runs"], measure=False)
    assert [run.done for run in planned.runs] == [0, 0]


TRACKER = """
import protofl as pf

class Noting:
    class Config(pf.Config):
        word: str = "none"

    @pf.hookimpl
    def open_run(self, run, config):
        (run.folder / "noted.txt").write_text(f"{run.group} {config.word}")

    @pf.hookimpl
    def log_round(self, opened, run, row, config):
        pass
"""


@pytest.mark.slow
def test_trackers_follow_its_runs_under_its_name(done, cli, tmp_path):
    """Trackers are not part of a run's identity: without them, the same run is found again."""
    folder, words, _ = done
    (tmp_path / "noting.py").write_text(TRACKER, encoding="utf-8")
    runs, tracked = tmp_path / "runs", ["--track", f"{tmp_path}/noting.py:Noting"]
    how = ["--only", "local", "--at-once", "0", *words[2:], "--runs", runs, "--rounds", "1"]
    reproduction = folder / "table.toml"
    shown = cli("reproduce", reproduction, *how, *tracked, "--set", "noting.word=hello")
    assert shown.exit_code == 0, shown.output
    (run,) = runs.glob("local*")
    assert (run / "noted.txt").read_text("utf-8") == "table hello"
    again = cli("reproduce", reproduction, "--no-run", "--format", "json", *how)
    assert json.loads(again.stdout)["cells"][0]["state"] == "done"


def test_files(done, cli, tmp_path):
    folder, words, result = done
    for form in ("md", "csv", "json"):
        out = tmp_path / f"table.{form}"
        shown = cli("reproduce", folder / "table.toml", "--no-run", "--out", out, *words)
        assert shown.exit_code == 0 and out.stat().st_size > 100, shown.output
    again = cli("reproduce", folder / "table.toml", "--no-run", "--out", out, *words)
    assert again.exit_code == 2 and "exists already" in again.output
    printed = cli("reproduce", folder / "table.toml", "--no-run", "--format", "json", *words)
    cells = json.loads(printed.stdout)["cells"]
    assert cells[1]["ours"] == pytest.approx(result["fedproto", "practical"].mean)


@pytest.mark.parametrize("kind", ["curves", "bars"])
def test_pictures(done, cli, tmp_path, kind):
    folder, words, _ = done
    out = tmp_path / f"{kind}.png"
    shown = cli("reproduce", folder / f"{kind}.toml", "--no-run", "--out", out, *words)
    assert shown.exit_code == 0, shown.output
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "no reproduction is given"),
        (["fedtgp/table-99"], "unknown reproduction 'fedtgp/table-99'"),
        (["nowhere.toml"], "nowhere.toml cannot be read"),
        (["fedtgp/table-1", "--scale", "small"], "unknown scale of fedtgp/table-1 'small'"),
        (["fedtgp/table-1", "--dataset", "mnist=digits"], "unknown data set of fedtgp/table-1"),
        (["fedtgp/table-1", "--out", "t.xls"], "--out t.xls: unknown format"),
        (
            ["fedktl/table-8", "--file", "stylegan-xl=x.pkl"],
            "a file is needed and not given: stable-diffusion",
        ),
        (
            ["fedktl/table-1", "--only", "fml,fedktl", "--file", "stylegan-xl=x.pkl"],
            "generator stylegan-xl: repo is not given",
        ),
        (
            ["fedktl/table-1", "--file", "stylegan=x.pkl"],
            "unknown file of fedktl/table-1 in --file",
        ),
        (["fedtgp/table-5", "--out", "t.png"], "fedtgp/table-5 is an account"),
        (
            ["fedtgp/table-1", "--no-run", "--dataset", "cifar10=npz:no.npz", "--only", "fml"],
            "",
        ),
        (["fedtgp/table-1", "--dataset", "cifar10=npz:no.npz", "--only", "fml"], "no.npz"),
    ],
)
def test_mistakes_before_anything_starts(cli, words, what, tmp_path):
    shown = cli("reproduce", *words, "--runs", tmp_path / "runs") if words else cli("reproduce")
    assert shown.exit_code == (2 if what else 0), shown.output
    assert what in " ".join(shown.output.split())
    assert not (tmp_path / "runs").exists()


def test_list(cli):
    shown = cli("reproduce", "--list", "fedtgp/table")
    assert shown.exit_code == 0
    for name in collections()["fedtgp"].names():
        assert (name in shown.output) == ("table" in name)
    assert "scales: paper, fast, hour, smoke" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 100
    assert len(shown.output.splitlines()) < 3 * len(collections()["fedtgp"].names())


def test_a_reproduction_s_file_is_checked(cli, done, tmp_path):
    folder, _, _ = done
    bad = tmp_path / "bad.toml"
    bad.write_text((folder / "table.toml").read_text("utf-8").replace("cnn4", "cnn5"), "utf-8")
    shown = cli("check", bad)
    assert shown.exit_code == 1
    assert f"not installed · {bad}" in "".join(shown.output.split("\n")).replace("  ", " ")
    checks = json.loads(cli("check", bad, "--json").output)["checks"]
    failed = {one["check"]: one["why"] for one in checks if one["outcome"] == "failed"}
    assert "not installed: the model-group 'cnn5'" in failed["its_plugins_are_installed"]


def test_a_reproduction_is_data():
    reproduction = pf.reproduction("fedtgp/table-10")
    assert isinstance(reproduction, Reproduction)
    assert reproduction.published["fedtgp", "practical"] == "97.58±0.05"
    assert [*reproduction.columns] == ["pathological", "practical"]
    assert len({row for row, _ in reproduction.published}) == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for c, found in collections().items() for n in found.names() if c != "benchmark"]
)
def test_smoke(name, tmp_path_factory, data_dir):
    """Every reproduction runs at its smallest scale; shared runs are trained once.

    One round is enough: the dry run of every run has two.
    """
    folder = tmp_path_factory.getbasetemp()
    runs = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "smoke-runs"
    out = pf.reproduce(
        name, scale="smoke", rounds=1, runs=runs, at_once=0, backend="local", data_dir=data_dir
    )
    states = {entry.state for entry in out.entries.values()}
    read_only = {"not run"} if out.reproduction.kind == "account" else set()
    assert states <= {"done", "empty", "not reached"} | read_only, out.notes
    if out.reproduction.kind in ("curves", "bars", "pictures"):
        assert draw(out, tmp_path_factory.mktemp("drawn") / "picture.png")
