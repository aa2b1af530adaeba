"""Tests of runs that continue with more rounds or trials, and of kept weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from interrupted_runs import Killed, Remembering, interrupted
from runtime_toys import DATA, install, train, without_times
from slowness import quick

import protofl as pf
from protofl.records.checkpoint import Checkpoint, Commit
from protofl.records.run_folder import RunFolder
from protofl.system.files import checksums

pytestmark = pytest.mark.always


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)


def more(folder, **options):
    given = {"data_dir": DATA, "backend": "local", "progress": False, **options}
    return pf.run(out=folder, resume=True, **given)


def rows_of(result):
    """Return the record, sorted by trial and round."""
    rows = without_times(result.record)
    return sorted(rows, key=lambda row: (row["trial"], row["round"]))


def weights_of(result):
    """Return the bytes of all files of the last commit and of kept rounds."""
    folder = RunFolder.reopen(result.folder, extend=True)
    found = {}
    checkpoint = folder._checkpoint
    commits = {title: checkpoint.kept(title) for title in checkpoint.last.kept}
    for title, commit in {"now": checkpoint.last, **commits}.items():
        clients = {c: file for c, (file, _) in commit.client_files.items()}
        found[title] = {
            who: (result.folder / "checkpoint" / file).read_bytes()
            for who, file in {"server": commit.server, **clients}.items()
        }
    return found


def config_of(result):
    return json.loads((result.folder / "config.json").read_text())


def same(one, two):
    assert rows_of(one) == rows_of(two)
    assert one.summary == two.summary
    assert one.client_accuracies == two.client_accuracies
    assert config_of(one) == config_of(two)
    left, right = weights_of(one), weights_of(two)
    assert left.keys() == right.keys()
    assert left == right, "weights differ"


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    "options",
    quick(
        [
            {},
            {"eval_every": 3},  # the short run evaluates its 4th round only because it is the last
            {"eval_every": 4, "checkpoint_every": 3},
            {"participation": 0.5, "keep": "last"},
        ],
        {"eval_every": 4, "checkpoint_every": 3},
    ),
    ids=str,
)
def test_a_finished_run_goes_on(tmp_path, options):
    at_once = train(Remembering, tmp_path / "once", rounds=7, **options)
    train(Remembering, tmp_path / "run", rounds=4, **options)
    same(more(tmp_path / "run", rounds=7), at_once)
    assert more(tmp_path / "run").record  # the run is finished


@pytest.mark.slow
@pytest.mark.always
def test_an_interrupted_run_goes_on_with_more(tmp_path):
    at_once = train(Remembering, tmp_path / "once", rounds=6)
    interrupted(Remembering, tmp_path / "run", at=(0, 2), rounds=4)
    same(more(tmp_path / "run", rounds=6), at_once)


@pytest.mark.slow
def test_it_may_be_asked_for_less_than_it_was_begun_with(tmp_path):
    for every, at in ((1, 3), (2, 3)):
        out = tmp_path / f"every{every}"
        at_once = train(Remembering, out / "once", rounds=3, eval_every=every)
        interrupted(Remembering, out / "run", at=(0, at), rounds=9, eval_every=every)
        same(more(out / "run", rounds=3), at_once)


@pytest.mark.slow
def test_more_trials(tmp_path):
    at_once = train(Remembering, tmp_path / "once", rounds=2, trials=3)
    train(Remembering, tmp_path / "run", rounds=2)
    same(more(tmp_path / "run", trials=3), at_once)


@pytest.mark.slow
def test_more_rounds_of_several_trials(tmp_path):
    at_once = train(Remembering, tmp_path / "once", rounds=4, trials=3)
    train(Remembering, tmp_path / "run", rounds=2, trials=2)
    same(more(tmp_path / "run", rounds=4, trials=3), at_once)
    order = [(row["trial"], row["round"]) for row in more(tmp_path / "run").record]
    assert order[:6] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "at",
    [
        (0, 3),
        *(pytest.param(at, marks=pytest.mark.slow) for at in ((0, 2), (1, 2), (1, 3), (2, 0))),
    ],
)
def test_what_goes_on_may_be_interrupted(tmp_path, at):
    at_once = train(Remembering, tmp_path / "once", rounds=4, trials=3)
    train(Remembering, tmp_path / "run", rounds=2, trials=2)

    def stop(event):
        if event == pf.events.RoundStarted(*at):
            raise Killed

    with pytest.raises(Killed):
        more(tmp_path / "run", rounds=4, trials=3, progress=stop)
    same(more(tmp_path / "run"), at_once)


@pytest.mark.slow
@pytest.mark.always
def test_it_may_be_killed_while_it_begins_to_go_on(tmp_path, monkeypatch):
    at_once = train(Remembering, tmp_path / "once", rounds=4)
    train(Remembering, tmp_path / "run", rounds=2)
    write, restate = Checkpoint.restate, RunFolder.extend

    def killed_behind(self, config):
        def stop(*args):
            write(*args)
            raise Killed

        monkeypatch.setattr(Checkpoint, "restate", stop)
        restate(self, config)

    monkeypatch.setattr(RunFolder, "extend", killed_behind)
    with pytest.raises(Killed):
        more(tmp_path / "run", rounds=4)
    monkeypatch.undo()
    install(monkeypatch)
    assert config_of(at_once)["rounds"] == 4
    same(more(tmp_path / "run"), at_once)


class Counts(Remembering):
    """Depends on the total number of rounds."""

    @pf.hookimpl
    def before_training(self, client):
        return {"drift": 1 / client.rounds}

    @pf.hookimpl
    def after_training(self, client):
        client.state["drift"] = 0.5


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (
            {"trials": 2, "keep": "current"},
            {
                "--rounds 2: the run has 3 already": {"rounds": 2},
                "--trials 1: the run has begun 2 already": {"trials": 1},
                "trial 0 was not kept": {"rounds": 5},
                "--lr 0.5 differs from the run's 0.1": {"rounds": 5, "lr": 0.5},
            },
        ),
        ({"checkpoint_every": 0}, {"the run has no checkpoint to go on from": {"rounds": 5}}),
        (
            {"trials": 2, "eval_every": 2},
            {"trial 0 was evaluated in its last round": {"rounds": 5}},
        ),
        ({"lr_schedule": "cosine"}, {"the learning rate falls over the 3 rounds": {"rounds": 5}}),
    ],
    ids=["as usual", "no checkpoint", "evaluated", "schedule"],
)
def test_what_is_refused(tmp_path, options, refused):
    train(Remembering, tmp_path / "run", rounds=3, **options)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    for words, asked in refused.items():
        with pytest.raises(pf.UsageError) as caught:
            more(tmp_path / "run", **asked)
        assert words in str(caught.value)
    after = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert {p.name: b for p, b in after.items()} == {p.name: b for p, b in before.items()}


@pytest.mark.slow
def test_a_method_that_depends_on_the_number_of_rounds(tmp_path):
    train(Counts, tmp_path / "run", rounds=2, dry_run=True)
    with pytest.raises(pf.UsageError, match="depends on the number of rounds"):
        more(tmp_path / "run", rounds=3)
    at_once = train(Counts, tmp_path / "once", rounds=2, trials=2, dry_run=True)
    same(more(tmp_path / "run", trials=2), at_once)


# --- kept weights ---------------------------------------------------------------------------------


def scored(row):
    return row["test_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_the_weights_of_the_best_round(tmp_path, every):
    """They equal the weights of a run that ends with the best round."""
    options = {"rounds": 4, "trials": 2, "lr": 0.5, "checkpoint_every": every}
    whole = train(Remembering, tmp_path / "whole", **options)
    for trial in range(2):
        best = whole.summary["trials"][trial]["best_round"]
        short = train(Remembering, tmp_path / f"{trial}", rounds=best + 1, lr=0.5, seed=trial)
        assert weights_of(whole)[f"best-t{trial}"] == weights_of(short)["now"]
    long = train(Remembering, tmp_path / "long", rounds=4, lr=0.5)
    assert weights_of(whole)["last-t0"] == weights_of(long)["now"]


@pytest.mark.parametrize(("keep", "names"), [("last", {"now", "last-t0"}), ("current", {"now"})])
def test_less_may_be_kept(tmp_path, keep, names):
    found = train(Remembering, tmp_path / "run", rounds=3, trials=2, keep=keep)
    assert weights_of(found).keys() == names


def test_only_what_is_kept_lies_there(tmp_path):
    """The folder has only files named by the last two commits and the kept rounds."""
    found = train(Remembering, tmp_path / "run", rounds=5, trials=2, participation=0.5)
    folder = found.folder / "checkpoint"
    named = {"manifest.json", "before.json"}
    for name in [*named, *(p.name for p in folder.glob("kept-*.json"))]:
        values = json.loads((folder / name).read_text())
        clients = json.loads((folder / values["clients"]).read_text())
        named |= {*values["checks"], *(name for name, *_ in clients.values())}
    assert {p.name for p in folder.iterdir()} == named
    kept = {p.name for p in folder.glob("kept-*.json")}
    now = json.loads((folder / "manifest.json").read_text())
    before = json.loads((folder / "before.json").read_text())
    assert kept == {n for n in (*now["checks"], *before["checks"]) if n.startswith("kept-")}


@pytest.mark.slow
def test_damage_to_what_is_kept_is_told_and_the_run_goes_on(tmp_path):
    at_once = train(Remembering, tmp_path / "once", rounds=4)
    train(Remembering, tmp_path / "run", rounds=2, trials=1)
    folder = tmp_path / "run/checkpoint"
    (kept,) = folder.glob("kept-t0-*.json")
    kept.write_text("{}")
    notes = []
    found = more(tmp_path / "run", rounds=4, progress=lambda event: notes.append(str(event)))
    assert any("best-t0 is lost" in note for note in notes)
    assert rows_of(found) == rows_of(at_once)


def test_every_client_s_accuracy_is_in_the_record(tmp_path):
    found = train(Remembering, tmp_path / "run", rounds=3, eval_every=2)
    first, second, last = found.record
    assert "client_accuracies" not in first
    for row in (second, last):
        each = row["client_accuracies"]
        assert list(each) == ["0", "1", "2", "3"]
        assert sum(each.values()) / 4 == pytest.approx(row["client_test_accuracy"])
    assert {str(c): a for c, a in found.client_accuracies[0].items()} == last["client_accuracies"]
    again = more(tmp_path / "run")
    assert again.client_accuracies == found.client_accuracies
    part = train(
        Remembering, tmp_path / "part", rounds=2, participation=0.5, eval_clients="participants"
    )
    assert all(len(row["client_accuracies"]) == 2 for row in part.record)
    shutil.rmtree(tmp_path / "part")


@pytest.mark.slow
@pytest.mark.always
def test_kept_weights_are_read(tmp_path):
    found = train(Remembering, tmp_path / "run", rounds=4, trials=2, lr=0.5)
    for trial in range(2):
        best = pf.read_weights(found.folder, "best", trial)
        assert (best.trial, best.round) == (trial, found.summary["trials"][trial]["best_round"])
        assert pf.read_weights(found.folder, "last", trial).round == 3
    short = train(Remembering, tmp_path / "short", rounds=best.round + 1, lr=0.5, seed=1)
    same_round = pf.read_weights(short.folder, "last")
    assert best.clients.keys() == same_round.clients.keys() == {0, 1, 2, 3}
    for client, tensors in best.clients.items():
        assert any(name.startswith("model/") for name in tensors)
        for name, tensor in tensors.items():
            assert tensor.equal(same_round.clients[client][name])
    assert best.server["global_state/drift"].equal(same_round.server["global_state/drift"])
    with pytest.raises(pf.UsageError, match="has not kept best-t5") as caught:
        pf.read_weights(found.folder, "best", 5)
    assert "it has kept: best-t0, best-t1, last-t0, last-t1" in str(caught.value)


def test_a_commit_is_the_same_bytes_whatever_the_order_of_its_files():
    """Run folders are compared by bytes, and the order of sets differs between processes."""
    checks = {name: checksums.Check(number) for number, name in enumerate("abc")}
    one = Commit(server="a", config="b", kept={"best-t0": "c"}, files=checks)
    assert one.text == replace(one, files=dict(reversed(checks.items()))).text
