"""Tests of replays: the server's results from recorded uploads, compared with real runs."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from runtime_toys import install, train

import protofl as pf
from protofl_workbench.replaying.replayed_server import is_same

ROUNDS, TAU, OTHER = 3, 0.5, 0.05
ADDED = ("download_payload", "upload_payload", "server_aggregate")
SET = {"S": 5, "tau": TAU}
OPTIONS = {"rounds": ROUNDS, "record_uploads": True, "trials": 2, "participation": 0.75}


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        out = tmp_path_factory.mktemp("replaying") / "run"
        options = OPTIONS | {"set": SET, "observe": "features", "observe_every": 2}
        return train("fedtgp", out, **options).folder


@pytest.mark.parametrize("trial", [0, 1])
def test_own_options_give_what_the_run_knew(toys, run, trial):
    found = pf.replay(run, trial=trial, keep_global_state=True)
    assert found.differs == ""
    assert found.compared[0] == ROUNDS
    assert found.compared[1] >= 1
    kept = pf.load_run(run).global_state("last", trial)
    assert is_same(kept, found.own.rounds[-1].global_state)
    rows = pf.load_run(run).rows_of(trial)
    margins = [r.figures["prototype_margin"] for r in found.own.rounds]
    assert margins == [row["extra"]["prototype_margin"] for row in rows]


def test_the_first_round_is_a_real_run_s(toys, run, tmp_path):
    """Round 0 with another τ is bit-identical. Then clients get other global state and differ."""
    given = OPTIONS | {"trials": 1, "keep": "last"}
    found = pf.replay(run, set={"tau": OTHER}, keep_global_state=True)
    (other,) = found.others
    assert other.label == f"tau={OTHER}"
    assert not is_same(other.rounds[0].global_state, found.own.rounds[0].global_state)
    for rounds, same in ((1, True), (2, False)):
        real = train(
            "fedtgp", tmp_path / str(rounds), **given | {"rounds": rounds}, set=SET | {"tau": OTHER}
        )
        known = pf.load_run(real.folder).global_state("last")
        assert is_same(known, other.rounds[rounds - 1].global_state) is same


def test_a_grid(toys, run):
    found = pf.replay(run, grid={"tau": [TAU, OTHER], "S": [1, 5]}, set={"server_lr": 0.1})
    labels = [each.label for each in found.others]
    assert labels == [f"server_lr=0.1, tau={t}, S={s}" for t in (TAU, OTHER) for s in (1, 5)]
    same = {each.label: each.first_other is None for each in found.others}
    assert same == {label: "tau=0.5, S=5" in label for label in labels}  # server_lr is lr, 0.1


@pytest.mark.parametrize(
    ("option", "alike"),
    [({"tau": OTHER}, True), ({"processor": False}, False), ({"send_initial": False}, False)],
)
def test_what_clients_get_in_the_first_round_is_looked_at(toys, run, option, alike):
    (other,) = pf.replay(run, set=option, rounds=1).others
    assert other.first_sent is alike


def test_what_concerns_clients_changes_nothing(toys, run):
    (other,) = pf.replay(run, set={"lambda": 7}).others
    assert other.first_other is None
    assert all(r.same and r.figures["moved"] == 0 for r in other.rounds)


def test_figures(toys, run):
    """They equal slow loops. The accuracy of features exists only in observed rounds."""
    found = pf.replay(run, set={"tau": OTHER}, keep_global_state=True)
    observed = pf.load_run(run).observed
    for each in (found.own, *found.others):
        for r in each.rounds:
            assert ("nearest_prototype_accuracy" in r.figures) == (r.round in observed.rounds())
        last = each.rounds[-1]
        rows, classes = last.global_state["prototypes"].double(), last.global_state["classes"]
        features = observed.features()
        right = 0
        for x, label in zip(features.rows, features.labels, strict=True):
            apart = [float((torch.from_numpy(x).double() - p).norm()) for p in rows]
            right += int(classes[apart.index(min(apart))]) == label
        wanted = right / len(features.rows)
        assert last.figures["nearest_prototype_accuracy"] == pytest.approx(wanted)
        own = found.own.rounds[-1].global_state["prototypes"]
        moved = (last.global_state["prototypes"] - own).norm() / own.norm()
        assert last.figures["moved"] == pytest.approx(float(moved), abs=1e-6)
        nearest = [min(float((p - q).norm()) for q in rows if q is not p) for p in rows]
        margin = sum(
            min(float((rows[a] - rows[b]).norm()) for b in range(len(rows)) if a != b)
            for a in range(len(rows))
        ) / len(rows)
        assert nearest
        assert last.figures["mean_class_margin"] == pytest.approx(margin, rel=1e-4)


def test_another_server_hook(toys, run):
    (other,) = pf.replay(run, use={"server_aggregate": "coordinate-median"}).others
    assert other.label == "server_aggregate=coordinate-median"
    assert other.first_other == 0


def test_attacks_and_defences_are_replayed(toys, tmp_path):
    """Uploads are recorded as received; the attack forges them later, after payload validation."""
    given = {"malicious": 0.5, "with": "alie", "use": {"server_aggregate": "coordinate-median"}}
    out = train("fedproto", tmp_path / "run", rounds=2, record_uploads=True, **given).folder
    found = pf.replay(out, use={"server_aggregate": "fedproto"})
    assert (found.differs, found.compared[0]) == ("", 2)
    assert found.others[0].first_other == 0


@pytest.mark.parametrize(
    "given",
    [
        {"with": ["quantise", "top-k"]},
        {"devices": "uniform", "participation": 0.5, "over_select": 0.5},
        {"add": [f"{hook}=lg-fedavg" for hook in ADDED]},
    ],
    ids=["encoded", "absent", "added"],
)
def test_uploads_of_all_kinds(toys, tmp_path, given):
    out = train("fedproto", tmp_path / "run", rounds=3, record_uploads=True, **given).folder
    found = pf.replay(out)
    assert (found.differs, len(found.own.rounds)) == ("", 3)


def test_a_run_that_goes_on(toys, tmp_path):
    """A run that was extended has recorded the uploads of all its rounds."""
    given = OPTIONS | {"trials": 1, "set": SET}
    train("fedtgp", tmp_path / "run", **given | {"rounds": 1})
    train("fedtgp", tmp_path / "run", resume=True, rounds=ROUNDS)
    found = pf.replay(tmp_path / "run")
    assert (found.differs, len(found.own.rounds)) == ("", ROUNDS)


def test_a_replay_that_is_not_the_run(toys, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run/metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["extra"]["prototype_margin"] += 1e-6
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "prototype_margin of round 1 is" in pf.replay(tmp_path / "run").differs


def test_other_versions_are_told(toys, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run/config.json"
    values = json.loads(file.read_text())
    values["versions"]["torch"] = "1.0"
    file.write_text(json.dumps(values))
    assert any("but was 1.0 in the run" in note for note in pf.replay(tmp_path / "run").notes)


def test_on_a_machine_that_lacks_what_the_run_had(toys, tmp_path):
    """A replay needs neither the run's device nor the file of ``--sampling list``."""
    (tmp_path / "lists.txt").write_text("0 1 2\n3\n")
    given = {"sampling": f"list:{tmp_path / 'lists.txt'}", "record_uploads": True}
    out = train("fedproto", tmp_path / "run", **given).folder
    (tmp_path / "lists.txt").unlink()
    config = (out / "config.json").read_text()
    (out / "config.json").write_text(config.replace('"device": "cpu"', '"device": "cuda:77"'))
    found = pf.replay(out)
    assert (found.differs, found.compared[0]) == ("", 2)
    assert found.notes == ["device is cpu, but was cuda:77 in the run: numbers may differ"]


# --- refused replays ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"set": {"tao": 1}}, "unknown option of fedtgp 'tao'"),
        ({"set": {"tau": -1}}, "tau"),
        ({"set": {"variant": "official"}}, "a run records the options of its variant"),
        ({"use": {"local_loss": "fedproto"}}, "runs hooks of the server only"),
        ({"grid": {"tau": range(1, 300)}}, "at most 200 settings, got 299"),
        ({"trial": 2}, "no uploads of round 0 of trial 2"),
    ],
)
def test_what_a_replay_cannot_do(toys, run, options, what):
    with pytest.raises(pf.UsageError) as caught:
        pf.replay(run, **options)
    assert what in caught.value.what


def test_uploads_that_were_not_kept_from_the_beginning(toys, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    journal = tmp_path / "run/uploads/journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(pf.UsageError, match="has no uploads of round 0") as caught:
        pf.replay(tmp_path / "run")
    assert "it has uploads from round 1 on" in caught.value.near
    journal.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    assert len(pf.replay(tmp_path / "run").own.rounds) == 1


def test_damaged_uploads(toys, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run/uploads/t0-r1.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(pf.UsageError, match=r"t0-r1\.safetensors is cut"):
        pf.replay(tmp_path / "run")


def test_every_round_is_a_real_run_s_where_clients_do_not_listen(toys, tmp_path):
    """With λ = 0 no upload depends on τ, so the replay is bit-identical in all rounds."""
    given = OPTIONS | {"trials": 1}
    deaf = SET | {"lambda": 0}
    train("fedtgp", tmp_path / "run", **given, set=deaf)
    real = train("fedtgp", tmp_path / "other", **given, set=deaf | {"tau": OTHER})
    (other,) = pf.replay(tmp_path / "run", set={"tau": OTHER}, keep_global_state=True).others
    assert other.first_other == 0
    assert is_same(pf.load_run(real.folder).global_state("last"), other.rounds[-1].global_state)
    margins = [row["extra"]["prototype_margin"] for row in real.record]
    assert [r.figures["prototype_margin"] for r in other.rounds] == margins
