"""Tests of ``protofl reproduce`` if training diverges: finished rounds are shown and marked."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

import protofl as pf
from protofl_workbench.reproductions.reproduction_pictures import figures_of
from protofl_workbench.reproductions.reproduction_texts import as_text

METHOD = '''
import protofl as pf
from torch import nan, tensor
from torch.nn.functional import cross_entropy

begun = []


class Config(pf.Config):
    nth: int = 1


class Fickle:
    """Sends NaN in round 2 of the nth trial that is begun in this process."""

    Config = Config
    terms = {"ce": "cross-entropy"}
    uploads = downloads = {"x": "a number"}

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def setup_server(self, server):
        begun.append(1)

    @pf.hookimpl
    def upload_payload(self, client):
        now = client.round == 2 and len(begun) >= client.config.nth
        return pf.Payload(x=tensor([nan if now else 1.0]))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        return {"x": next(iter(uploads.values()))["x"]}

    @pf.hookimpl
    def download_payload(self, server, client_id):
        return pf.Payload(server.global_state)
'''

REPRODUCTION = """
title = "Accuracy (%) on few images"
paper = "Ours"
place = "Table 1"
kind = "KIND"
figure = "FIGURE"

[options]
models = "cnn4"
dataset = "digits"
clients = 2
rounds = 4
batch-size = 60
backend = "local"
dry-run = false

[columns]
a = { label = "A" }

[published]
fickle = "50.0"
local = "60.0"

[rows]
fickle = { label = "Fickle", method = "METHOD" }
"""


@pytest.fixture(scope="module")
def reproductions(tmp_path_factory, few, data_dir):
    """Return an object that writes and reproduces reproductions with a diverging method."""

    class Reproductions:
        folder = tmp_path_factory.mktemp("broken")

        def write(self, kind="table", figure="best", nth=1):
            name = f"fickle{nth}"
            (self.folder / f"{name}.py").write_text(METHOD, encoding="utf-8")
            method = f'{self.folder / name}.py:Fickle", set = {{ nth = {nth} }}, note = "'
            text = REPRODUCTION.replace("KIND", kind).replace("FIGURE", figure)
            text = text.replace("METHOD", method)
            path = self.folder / f"{kind}{nth}.toml"
            path.write_text(text, encoding="utf-8")
            return path

        def words(self, runs="runs"):
            words = ["--runs", self.folder / runs, "--dataset", f"digits={few}"]
            return [*map(str, words), "--data-dir", str(data_dir), "--at-once", "0"]

        def do(self, path, runs="runs", **how):
            how = {"datasets": {"digits": few}, "data_dir": data_dir, "at_once": 0, **how}
            return pf.reproduce(str(path), runs=self.folder / runs, **how)

    pf.trust_code(Reproductions.folder)
    return Reproductions()


@pytest.fixture(scope="module")
def broken(reproductions):
    return reproductions.do(reproductions.write())


@pytest.mark.slow
def test_the_best_of_the_rounds_that_were_finished(broken):
    entry = broken["fickle", "a"]
    rows = pf.load_run(entry.folder).rows
    assert len(rows) == 2 and entry.state == "broken off"
    assert entry.mean == pytest.approx(100 * max(row["test_accuracy"] for row in rows))
    assert entry.partial == "2 of 4 rounds, diverged"
    assert "'x' with NaN or infinity in round 3" in entry.why
    assert broken["local", "a"].state == "done" and not broken["local", "a"].partial


@pytest.mark.slow
def test_it_is_marked_wherever_it_is_shown(broken, reproductions, cli):
    mean = f"{broken['fickle', 'a'].mean:.1f}"
    marked = f"{mean} (2 of 4 rounds, diverged)"
    note = "'x' with NaN or infinity in round 3"
    text = as_text(broken, "md")
    assert marked in text and note in text
    first = next(csv.DictReader(as_text(broken, "csv").splitlines()))
    cell = json.loads(as_text(broken, "json"))["cells"][0]
    for record in (first, cell):
        assert (record["state"], record["partial"]) == ("broken off", "2 of 4 rounds, diverged")
        assert note in record["why"]
    shown = cli("reproduce", reproductions.write(), "--no-run", *reproductions.words())
    assert shown.exit_code == 1
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    place = lines.index(next(line for line in lines if line.startswith(f"Fickle {mean}")))
    assert lines[place + 1 : place + 3] == ["(2 of 4 rounds,", "diverged)"]


@pytest.mark.slow
def test_it_is_done_again_only_where_that_is_asked_for(broken, reproductions, cli):
    folder, reproduction = broken["fickle", "a"].folder, reproductions.write()
    times = lambda: [p.stat().st_mtime_ns for p in folder.glob("*.json*")]  # noqa: E731
    before = times()
    shown = cli("reproduce", reproduction, *reproductions.words())
    assert shown.exit_code == 1 and times() == before
    assert "in round 3 (in an earlier run; --again repeats it)" in " ".join(shown.output.split())
    planned = cli("reproduce", reproduction, "--plan", *reproductions.words())
    assert "2 of 4, diverged" in planned.output
    again = cli("reproduce", reproduction, "--again", *reproductions.words())
    assert again.exit_code == 1 and times() != before and "in an earlier run" not in again.output


def test_runs_that_are_not_reused_are_told(broken, reproductions):
    runs = reproductions.folder / "edited"
    shutil.copytree(reproductions.folder / "runs", runs)
    folder = runs / broken["local", "a"].folder.name
    for file in (folder / "config.json", *(folder / "checkpoint").glob("config*.json")):
        values = json.loads(file.read_text())
        values["plugins"][0]["code"] = "0" * 12
        file.write_text(json.dumps(values))
    entry = reproductions.do(reproductions.write(), runs="edited", start=False)["local", "a"]
    assert entry.state == "not run"
    assert entry.why == f"{folder} is not reused: the code of method local has changed"


@pytest.mark.slow
def test_other_code_or_another_machine_may_not_diverge(reproductions, monkeypatch):
    reproduction = reproductions.write(nth=50)
    (module := reproductions.folder / "fickle50.py").write_text(
        METHOD.replace("len(begun) >=", "50 >="), "utf-8"
    )
    assert reproductions.do(reproduction, "other")["fickle", "a"].state == "broken off"
    with monkeypatch.context() as patch:
        patch.setattr("protofl.records.failure.versions", lambda: {"torch": "9.9"})
        assert "in an earlier run" not in reproductions.do(reproduction, "other")["fickle", "a"].why
    module.write_text(METHOD, "utf-8")
    assert reproductions.do(reproduction, "other")["fickle", "a"].state == "done"


@pytest.mark.slow
def test_whole_trials_are_not_averaged_with_one_that_broke_off(reproductions):
    result = reproductions.do(reproductions.write("curves", "series", nth=2), "trials", trials=3)
    entry = result["fickle", "a"]
    rows = pf.load_run(entry.folder).rows
    assert entry.partial == "1 of 3 trials, the next diverged after 2 of 4 rounds"
    assert entry.values == (pytest.approx(100 * rows[3]["test_accuracy"]),)
    drawn = dict(figures_of(result))["a"]
    (axes,) = drawn.axes

    words = [
        text.get_text().replace("\n", " ") for each in drawn.legends for text in each.get_texts()
    ]
    assert "Fickle (1 of 3 trials, the next diverged after 2 of 4 rounds)" in words
    lengths = [len(line.get_xdata()) for line in axes.lines]
    assert lengths.count(2) == 1 and lengths.count(4) == 2, "the broken trial is apart"


def test_failed_is_said_where_nothing_was_finished(reproductions):
    path = reproductions.write(nth=3)
    module = reproductions.folder / "fickle3.py"
    module.write_text(
        METHOD.replace("client.round == 2 and", "").replace("nth: int = 1", "nth: int = 0")
    )
    path.write_text(path.read_text("utf-8").replace("nth = 3", "nth = 0"), "utf-8")
    result = reproductions.do(path, "nothing", only=["fickle"])
    assert result["fickle", "a"].state == "failed" and result["fickle", "a"].ours == ""
    assert "| failed / 50.0 |" in as_text(result, "md")
