"""Tests of ``--keep-weights``: kept weights are those that the run had after these rounds."""

from __future__ import annotations

import pytest
import torch
from fake_pools import KeepingPool
from runtime_toys import install, train
from slowness import quick
from typer.testing import CliRunner

import protofl as pf
from protofl.system.options.parsing import kept_rounds, read_kept
from protofl_cli.app import app

GIVEN = {"rounds": 5, "participation": 0.5, "seed": 2}


class Killed(BaseException):
    """Simulates a signal that ends the process at once."""


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def parts(weights):
    """Return {client or server: {name: tensor as bytes}}."""
    each = {**weights.clients, "server": weights.server}
    return {
        who: {name: t.contiguous().numpy().tobytes() for name, t in tensors.items()}
        for who, tensors in each.items()
    }


def kept_files(folder):
    """Return {name: bytes} of the kept rounds and the tensors in the checkpoint folder."""
    return {p.name: p.read_bytes() for p in (folder / "checkpoint").iterdir()} | {
        name: b"" for name in ("manifest.json", "before.json")  # they say how long lines are
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "rounds", "kept"),
    [
        ("every:2", 5, [1, 3]),
        ("every:1", 3, [0, 1, 2]),
        (" rounds: 5,1, 3,1", 5, [0, 2, 4]),
        ("rounds:2,9", 5, [1]),
        ("none", 5, []),
        (None, 5, []),
    ],
)
def test_the_rounds_of_a_text(text, rounds, kept):
    assert kept_rounds(read_kept(text), rounds) == kept
    assert read_kept(read_kept(text)) == read_kept(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("5", "expected every:N or rounds:R,R"),
        ("ever:5", "expected every:N or rounds:R,R"),
        ("every:0", "expected one number, from 1"),
        ("every:2,3", "expected one number, from 1"),
        ("every:", "expected one number, from 1"),
        ("rounds:", "expected at least one round"),
        ("rounds:1,b", "'b' is not the number of a round"),
        ("rounds:0,2", "'0' is not the number of a round"),
        ("rounds:-1", "'-1' is not the number of a round"),
        ("rounds:1.5", "'1.5' is not the number of a round"),
    ],
)
def test_other_texts_are_refused(text, what):
    with pytest.raises(pf.UsageError, match=what) as caught:
        read_kept(text)
    assert text in caught.value.what and "every:10, rounds:1,5,10" in caught.value.do


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"keep_weights": "rounds:1,6"}, "no round 6"),
        ({"keep_weights": "every:6"}, "only 5 rounds, so nothing would be kept"),
        ({"keep_weights": "every:2", "checkpoint_every": "off"}, "saves no round"),
    ],
)
def test_rounds_that_a_run_has_not(toys, tmp_path, options, what):
    with pytest.raises(pf.UsageError, match=what):
        train("fedproto", tmp_path / "run", **GIVEN, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    quick(
        [
            {},
            {"checkpoint_every": 3, "keep": "current"},
            {"client_store": "memory"},
            {"client_store": "disk"},
            {"backend": "process", "workers": 2},
        ],
        {},
    ),
    ids=str,
)
def test_weights_are_those_of_a_run_that_ended_there(toys, tmp_path, options):
    given = GIVEN | options
    train("fedproto", tmp_path / "run", **given, trials=2, keep_weights="rounds:1,4")
    run = pf.load_run(tmp_path / "run")
    distinct = set()
    for trial, round in ((0, 0), (0, 3), (1, 3)):
        short = given | {"rounds": round + 1, "seed": GIVEN["seed"] + trial}
        out = tmp_path / f"{trial}-{round}"
        train("fedproto", out, **short)
        kept, last = pf.read_weights(run.folder, round, trial), pf.read_weights(out, "last")
        assert (kept.trial, kept.round) == (trial, round)
        assert parts(kept) == parts(last)
        distinct.add(str(parts(kept)))
        for client in range(4):
            model = run.model(client, trial=trial, round=round).state_dict()
            other = pf.load_run(out).model(client).state_dict()
            assert all(torch.equal(model[name], other[name]) for name in other)
    assert len(distinct) == 3


def test_all_readers_take_a_round(toys, tmp_path):
    train("fedproto", tmp_path / "run", **GIVEN, keep_weights="rounds:1")
    train("fedproto", tmp_path / "short", **GIVEN | {"rounds": 1})
    run, short = pf.load_run(tmp_path / "run"), pf.load_run(tmp_path / "short")
    x = run.plan.data.x[:20].numpy()
    for client in range(4):
        assert torch.equal(run.predict(client, x, round=0), short.predict(client, x))
        assert torch.equal(run.scorer(client, round=0).scores(torch.from_numpy(x)),
                           short.scorer(client).scores(torch.from_numpy(x)))  # fmt: skip
    for name, tensor in run.global_state(round=0).items():
        assert torch.equal(tensor, short.global_state()[name])
    with pytest.raises(pf.UsageError, match="not kept the weights of round 3 of trial 0") as caught:
        run.model(0, round=2)
    assert "it has kept rounds: 1, 2, 5" in caught.value.near
    first = run.part(range(1), 1)
    assert torch.equal(first.model(0, round=0).head.weight, short.model(0).head.weight)
    with pytest.raises(pf.UsageError, match="round 5 is not one of the first 1 rounds"):
        first.model(0, round=4)
    assert torch.equal(  # the last round has a number too
        run.model(0, round=4).head.weight, run.model(0, "last").head.weight
    )


@pytest.mark.parametrize("every", quick([1, 3], 3, always=True))
@pytest.mark.parametrize(
    "event", quick([pf.events.RoundStarted, pf.events.RoundDone], pf.events.RoundDone, always=True)
)
def test_a_killed_run_ends_with_the_same_files(toys, tmp_path, event, every):
    given = GIVEN | {"checkpoint_every": every, "keep_weights": "every:2", "trials": 2}
    whole = train("fedproto", tmp_path / "whole", **given)
    out = tmp_path / "killed"

    def progress(found, left=2):
        nonlocal seen
        seen += isinstance(found, event)
        if seen == left:
            raise Killed

    for _ in range(4):
        seen = 0
        resume = {"resume": True} if out.exists() else given
        with pytest.raises(Killed):
            train("fedproto" if not out.exists() else None, out, progress=progress, **resume)
    train(None, out, resume=True)
    assert kept_files(out) == kept_files(whole.folder)
    for trial in range(2):
        for round in (1, 3):
            one, other = (pf.read_weights(each, round, trial) for each in (out, whole.folder))
            assert parts(one) == parts(other)


def test_other_rounds_after_a_resume(toys, tmp_path):
    """The option depends on nothing: a run can be continued with it, and keeps what it has kept."""
    train("fedproto", tmp_path / "run", **GIVEN, keep_weights="rounds:1")
    train(None, tmp_path / "run", resume=True, rounds=8, keep_weights="rounds:7")
    for round in (0, 6, 7):
        assert pf.read_weights(tmp_path / "run", round).round == round


class Keeping:
    """A backend whose pool keeps the clients' files itself, as nodes of a deployed run do."""

    folder, closed = None, False

    @pf.hookimpl
    def open_pool(self, plan):
        pool = KeepingPool(plan, self.folder)
        close = pool.close

        def closing():
            Keeping.closed = True
            close()

        pool.close = closing
        return pool


def test_clients_on_other_machines_are_refused(toys, tmp_path, monkeypatch):
    monkeypatch.setattr(Keeping, "folder", tmp_path / "node")
    monkeypatch.setattr(Keeping, "closed", False)
    with pytest.raises(pf.UsageError, match="stay on the clients' own machines") as caught:
        train("fedproto", tmp_path / "run", backend=Keeping, **GIVEN, keep_weights="every:2")
    assert "protofl node export" in caught.value.do
    assert Keeping.closed and not (tmp_path / "run").exists()


def test_commands(toys, tmp_path):
    train("fedproto", tmp_path / "run", **GIVEN, keep_weights="rounds:2")
    run, out = str(tmp_path / "run"), tmp_path / "client.safetensors"
    made = CliRunner().invoke(app, ["export", run, str(out), "--which", "2"])
    assert made.exit_code == 0, made.output
    assert out.exists() and "round 2 of trial 0" in made.output
    refused = CliRunner().invoke(app, ["export", run, str(out), "--force", "--which", "1"])
    assert "has not kept the weights of round 1" in refused.output
    refused = CliRunner().invoke(app, ["export", run, str(out), "--force", "--which", "0"])
    assert refused.exit_code == 2 and "'0'" in refused.output
    refused = CliRunner().invoke(app, ["export", run, str(out), "--force", "--which", "bst"])
    assert "'best'" in refused.output
