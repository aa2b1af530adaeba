"""Tests of --observe: correct data, recovery after kills, and no other change to the run."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from runtime_toys import install, make_plan, train, without_times

import protofl as pf
from protofl.federation.round.observer import check_observing
from protofl.system.files import series
from protofl.testing import toy as toyfed
from protofl_workbench.recorded.observed import Observed

ROUNDS = 4
OPTIONS = {"rounds": ROUNDS, "participation": 0.75, "partition": "dirichlet"}
OBSERVE = {"observe": "prototypes,features", "observe_samples": 4, "record_uploads": True}


class Killed(BaseException):
    """Simulates a signal that ends the process at once."""


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        folder = tmp_path_factory.mktemp("observing")
        plain = train("fedproto", folder / "plain", **OPTIONS)
        return plain, train("fedproto", folder / "whole", **OPTIONS, **OBSERVE)


@pytest.fixture(scope="module")
def plain(runs):
    return runs[0]


@pytest.fixture(scope="module")
def whole(runs):
    return runs[1]


@pytest.fixture(scope="module")
def watched():
    """Return the run as a toy that keeps its jobs and replies, and the global states by round."""
    toy = toyfed.Toy(make_plan("fedproto", **OPTIONS))
    known = []
    for _ in range(ROUNDS):
        toy.rounds(1)
        known.append(pf.Payload(toy.server.global_state))
    return toy, known


def files_of(folder, *names):
    """Return {path: bytes} of the files in these folders of a run."""
    paths = [p for name in names for p in (folder / name).rglob("*") if p.is_file()]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}


# --- nothing else changes -------------------------------------------------------------------------


@pytest.mark.slow
def test_on_and_off_are_one_run(plain, whole):
    assert without_times(whole.record) == without_times(plain.record)
    weights = [
        {name: data for name, data in files_of(run.folder, "checkpoint").items() if "-t0-" in name}
        for run in (plain, whole)
    ]
    assert {n: d for n, d in weights[0].items() if n.endswith(".safetensors")} == {
        n: d for n, d in weights[1].items() if n.endswith(".safetensors")
    }
    assert not (plain.folder / "observed").exists()
    assert not (plain.folder / "uploads").exists()


@pytest.mark.slow
def test_every_host_observes_the_same(toys, whole, tmp_path):
    given = {**OPTIONS, **OBSERVE, "backend": "process", "workers": 2}
    other = train("fedproto", tmp_path / "run", **given)
    names = ("observed", "uploads")
    assert files_of(other.folder, *names) == files_of(whole.folder, *names)


# --- correct data ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_prototypes(whole, watched):
    toy, known = watched
    found = Observed(whole.folder)
    assert found.rounds() == [*range(ROUNDS)]
    for round in range(ROUNDS):
        seen = found.prototypes(round)
        blobs = toy.pool.uploads(round)
        assert seen.who == sorted(blobs)
        dense, there = seen.table()
        for place, client in enumerate(seen.who):
            sent = pf.Payload.from_bytes(blobs[client])
            assert there[place].nonzero()[0].tolist() == sent["classes"].tolist()
            assert np.array_equal(dense[place][there[place]], sent["prototypes"].numpy())
            assert seen.architecture_of(client) == f"dense{(8, 5)[client % 2]}"
        rows, classes = seen.server["prototypes"]
        assert np.array_equal(rows, known[round]["prototypes"].numpy())
        assert np.array_equal(classes, known[round]["classes"].numpy())


def test_features(whole):
    """Features are of the same drawn test samples in every round, from the evaluated model."""
    found = Observed(whole.folder)
    kept = pf.read_weights(whole.folder, "last")
    plan = make_plan("fedproto", **OPTIONS)
    seen = found.features()
    for client in range(4):
        model = plan.initial_model(client, 0).eval()
        if client in kept.clients:
            pf.models.load_weights(model, kept.clients[client], "model")
        own = seen.clients == client
        test = plan.samples(plan.split(0).test(client), channels_last=False)
        assert own.sum() == min(4, len(test))
        with torch.no_grad():
            every = model.features(test.inputs()).numpy()
        for row, label in zip(seen.rows[own], seen.labels[own], strict=True):
            like = np.isclose(every, row, atol=1e-6).all(1)
            assert like.any()
            assert (test.y.numpy()[like] == label).any()
    first = found.features(0)
    assert np.array_equal(first.labels, seen.labels)
    assert not np.array_equal(first.rows, seen.rows)


def test_images(tmp_path):
    """They are the images sent to clients, as uint8: 0 and 255 are the data's min and max."""
    images = toyfed.make_images(toyfed.MIXED)
    y = images.y.numpy()
    np.savez(tmp_path / "toy.npz", x_train=images.x.permute(0, 2, 3, 1).numpy(), y_train=y)
    given = {"models": "cnn4", "dataset": f"npz:{tmp_path / 'toy.npz'}", "clients": 2}
    given |= {"partition": "iid", "data_dir": tmp_path, "backend": "local", "dry_run": False}
    fast = {"E_S": 1, "hidden": 8}
    out = tmp_path / "run"
    pf.run("fedktl", **given, rounds=1, feature_dim=8, set=fast, observe="images", out=out)
    seen = Observed(out).images()
    sent = pf.read_weights(out, "last").server["global_state/images"]
    assert seen.images.dtype == np.uint8
    low, high = images.x.min().item(), images.x.max().item()
    there = seen.images * ((high - low) / 255) + low
    assert np.abs(there - sent.numpy()).max() <= (high - low) / 510 + 1e-4
    assert seen.classes.tolist() == sorted({*y.tolist()})
    assert Observed(out).kinds() == ["images"]


@pytest.mark.parametrize(
    ("every", "evaluated", "rounds", "featured"),
    [
        pytest.param(2, 1, [1, 3, 4], [1, 3, 4], marks=pytest.mark.slow),
        (3, 2, [2, 4], [4]),
        pytest.param(9, 1, [4], [4], marks=pytest.mark.slow),
    ],
)
def test_some_rounds(toys, tmp_path, every, evaluated, rounds, featured):
    given = {"rounds": 5, "observe_every": every, "eval_every": evaluated, "dry_run": False}
    out = train("fedproto", tmp_path / "run", observe="prototypes,features", **given).folder
    found = Observed(out)
    assert found.rounds() == rounds
    assert [r for r in rounds if "features" in found.kinds(r)] == featured


# --- kills, resumes, damage -----------------------------------------------------------------------


@pytest.mark.always
@pytest.mark.parametrize(
    "late", [pytest.param(False, marks=pytest.mark.slow), True], ids=["before", "after"]
)
@pytest.mark.parametrize("place", ["write_tensors", "append"])
def test_a_kill_while_a_round_is_kept(toys, whole, tmp_path, monkeypatch, place, late):
    original, calls = getattr(series, place), []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == 4 and not late:
            raise Killed
        found = original(*arguments)
        if len(calls) == 4:
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(series, place, call)
        with pytest.raises(Killed):
            train("fedproto", tmp_path / "run", **OPTIONS, **OBSERVE)
    assert Observed(tmp_path / "run").rounds()[:1] == [0]  # readable after the kill
    train("fedproto", tmp_path / "run", resume=True)
    names = ("observed", "uploads")
    assert files_of(tmp_path / "run", *names) == files_of(whole.folder, *names)


@pytest.mark.parametrize("every", [1, 3])
def test_rounds_that_are_done_again(toys, whole, tmp_path, every):
    """Observations of rounds after the last commit are not kept twice."""

    def stop(event):
        if event == pf.events.RoundStarted(0, 2):
            raise Killed

    given = OPTIONS | OBSERVE | {"checkpoint_every": every, "keep": "last"}
    with pytest.raises(Killed):
        train("fedproto", tmp_path / "run", progress=stop, **given)
    journal = tmp_path / "run/observed/journal.jsonl"
    journal.write_text(journal.read_text() + '{"trial": 0, "rou')  # a half-written line
    (tmp_path / "run/observed/t0-r9.safetensors.part").write_bytes(b"half")
    train("fedproto", tmp_path / "run", resume=True)
    names = ("observed", "uploads")
    assert files_of(tmp_path / "run", *names) == files_of(whole.folder, *names)


@pytest.mark.slow
@pytest.mark.always
def test_a_run_that_goes_on_with_more_rounds(toys, whole, tmp_path):
    train("fedproto", tmp_path / "run", **OPTIONS | {"rounds": 2}, **OBSERVE)
    train("fedproto", tmp_path / "run", resume=True, rounds=ROUNDS)
    names = ("observed", "uploads")
    assert files_of(tmp_path / "run", *names) == files_of(whole.folder, *names)


def test_damage_is_told(toys, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole.folder, run)
    file = run / "observed/t0-r1.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(pf.UsageError, match=r"t0-r1\.safetensors is damaged"):
        Observed(run).prototypes(1)
    assert len(Observed(run).prototypes(2).rows)
    lines = []

    def note(event):
        lines.extend([event.text] if isinstance(event, pf.events.Note) else [])

    train("fedproto", run, resume=True, rounds=ROUNDS + 1, progress=note)
    assert any("observed/t0-r1.safetensors is damaged" in line for line in lines)
    assert Observed(run).rounds() == [0, 2, 3, 4]


def test_a_line_that_is_damaged(whole, tmp_path):
    shutil.copytree(whole.folder / "observed", tmp_path / "observed")
    journal = tmp_path / "observed/journal.jsonl"
    first, *others = journal.read_text().splitlines()
    journal.write_text("\n".join([first, others[0][:-9], *others[1:]]) + "\n")
    with pytest.raises(pf.UsageError, match=r"journal\.jsonl, line 2, is damaged"):
        Observed(tmp_path).rounds()


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"trial":' * 100_000,
        '{"trial": 1e400, "round": 0, "file": "x", "size": 1, "crc32": 1}',
        '{"trial": 0, "round": -1, "file": "x", "size": 1, "crc32": 1}',
        '{"trial": 0, "round": 0, "file": 7, "size": 1, "crc32": 1}',
        '{"trial": 0, "round": 0, "file": "x", "size": NaN, "crc32": 1}',
        "[]",
        "null",
        "\x00",
    ],
)
def test_a_line_that_is_nonsense(whole, tmp_path, line):
    shutil.copytree(whole.folder / "uploads", tmp_path / "observed")
    journal = tmp_path / "observed/journal.jsonl"
    journal.write_text(journal.read_text() + line + "\n")
    with pytest.raises(pf.UsageError, match=r"journal\.jsonl, line \d+, is damaged"):
        Observed(tmp_path).rounds()


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd"])
def test_a_name_that_leads_elsewhere(whole, tmp_path, name):
    shutil.copytree(whole.folder / "observed", tmp_path / "observed")
    journal = tmp_path / "observed/journal.jsonl"
    values = json.loads(journal.read_text().splitlines()[0]) | {"file": name}
    journal.write_text(json.dumps(values) + "\n")
    with pytest.raises(pf.UsageError, match="line 1"):
        Observed(tmp_path).rounds()


# --- size and limit -------------------------------------------------------------------------------


def sizes_of(folder):
    """Return the number of bytes of the observations and of the uploads."""
    names = ("observed", "uploads")
    files = files_of(folder, *names)
    return [sum(len(d) for f, d in files.items() if f.startswith(name)) for name in names]


@pytest.mark.parametrize(
    "method", ["fedproto", "fedavg", pytest.param("fedpkd", marks=pytest.mark.slow)]
)
def test_the_first_files_tell_the_size_of_all(toys, tmp_path, method):
    lines = []

    def note(event):
        lines.extend([event.text] if isinstance(event, pf.events.Note) else [])

    what = "prototypes,features" if method != "fedavg" else "features"
    given = {
        "rounds": 3,
        "feature_dim": 400,
        "observe": what,
        "record_uploads": True,
        "dry_run": True,
    }
    given |= {"models": "toy1"} if method == "fedavg" else {}
    given |= {"public": 24, "set": {"server_model": "dense8"}} if method == "fedpkd" else {}
    found = train(method, tmp_path / "run", progress=note, **given)
    (line,) = (line for line in lines if "observations will use" in line)
    number, unit, *_ = line.partition("about ")[2].split()
    said = float(number) * {"kB": 1e3, "MB": 1e6}[unit]
    assert said == pytest.approx(sum(sizes_of(found.folder)), rel=0.05, abs=4000)


@pytest.mark.slow
def test_features_count_in_evaluated_rounds_only(toys, tmp_path):
    given = {"rounds": 40, "observe": "features", "eval_every": 20}
    assert len(Observed(train("local", tmp_path / "run", **given).folder).rounds()) == 2


# --- refused options ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "observe", "what"),
    [
        ("local", "prototypes", "clients of local don't send prototypes"),
        ("fedproto", "images", "the server of fedproto makes no images"),
    ],
)
def test_what_a_run_cannot_show(method, observe, what):
    with pytest.raises(pf.UsageError, match=what):
        check_observing(make_plan(method, observe=observe))
    check_observing(make_plan(method, observe="features"))


def test_an_unknown_word():
    with pytest.raises(pf.UsageError) as caught:
        make_plan("fedproto", observe="prototype")
    assert "unknown word of --observe 'prototype'" in caught.value.what
    assert "prototypes" in caught.value.near


def test_what_was_not_observed(plain, whole):
    with pytest.raises(pf.UsageError, match="observed nothing of trial 0"):
        Observed(plain.folder).prototypes()
    with pytest.raises(pf.UsageError, match="no images in round 4") as caught:
        Observed(whole.folder).images()
    assert caught.value.near == "it has observed: prototypes, features"
    with pytest.raises(pf.UsageError, match="no round=7 of trial 0") as caught:
        Observed(whole.folder).features(7)
    assert "0, 1, 2, 3" in caught.value.near


def test_a_run_as_an_object_has_it(whole):
    assert pf.load_run(whole.folder).observed.prototypes(0).who == [
        *Observed(whole.folder).prototypes(0).who
    ]
    assert not pf.load_run(whole.folder.parent / "plain").observed
