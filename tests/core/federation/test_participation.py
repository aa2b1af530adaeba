"""Tests of client client sampler in runs: record, resume and replay."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_toys import GIVEN, PARTS, install, lines_of, make_plan, train, without_times
from slowness import quick

import protofl as pf
from protofl.backends import Plan
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.records.row import Row

OPTIONS = {"clients": 8, "rounds": 6, "participation": 0.5, "dry_run": False}


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def selecting(answer, **attributes):
    """Return a client sampler plugin whose select hook returns `answer(**arguments)`."""

    class Selects:
        @pf.hookimpl
        def select(self, round, count, clients, sizes, generator):
            return answer(round=round, count=count, clients=clients, generator=generator)

    return type("Selects", (Selects,), attributes)


def plan_with(plugin, **options):
    given = GIVEN | OPTIONS | options | {"method": "local", "sampling": "own"}
    return Plan.make(given, PARTS | {("client-sampler", "own"): plugin})


class Interrupted(BaseException):
    pass


def interrupted(at):
    def stop(event):
        if isinstance(event, pf.events.RoundStarted) and event.round == at:
            raise Interrupted

    return stop


def test_without_an_option_clients_are_drawn_and_nobody_is_named():
    plan = make_plan("fedproto", **OPTIONS)
    draws = [pf.numpy_stream(0, "participants", r).choice(8, 4, replace=False) for r in range(6)]
    draws = {(0, r): Row({"answered": sorted(c.tolist())}) for r, c in enumerate(draws)}
    federation = Federation(plan, pf.backends.Host(plan), participation=Participation(plan, draws))
    federation.start_trial(0)
    rows = lines_of(plan)
    assert without_times(rows) == without_times([federation.round(n)[0] for n in range(6)])
    assert len({str(row.answered) for row in draws.values()}) > 3
    for row in rows:
        assert not {"answered", "absent", "client_losses", "virtual"} & row.keys()


@pytest.mark.slow
@pytest.mark.parametrize("every", quick([1, 2], 2, always=True))
def test_client_sampler_by_loss_is_recorded_and_goes_on(tmp_path, toys, every):
    options = OPTIONS | {"sampling": "loss", "set": {"sampling.candidates": 2}}
    whole = train("fedproto", tmp_path / "whole", **options)
    with pytest.raises(Interrupted):
        train(
            "fedproto",
            tmp_path / "run",
            checkpoint_every=every,
            progress=interrupted(5),
            **options,
        )
    again = train("fedproto", tmp_path / "run", resume=True)
    assert without_times(again.record) == without_times(whole.record)

    # The record determines the client sampler: all are candidates, the largest losses are selected.
    known: dict[int, float] = {}
    for row in whole.record:
        unheard = [c for c in range(8) if c not in known]
        answered = row.get("answered") or [int(c) for c in row["client_losses"]]
        if unheard:  # all eight in round 0, the other four in round 1
            assert {*answered} <= {*unheard}
        else:
            assert answered == sorted(sorted(known, key=lambda c: -known[c])[:4])
        assert sorted(map(int, row["client_losses"])) == answered
        known |= {int(c): loss for c, loss in row["client_losses"].items()}
    assert len(known) == 8


def test_the_losses_are_those_of_the_round(tmp_path, toys):
    run = train("fedproto", tmp_path / "run", **OPTIONS | {"participation": 0.1}, sampling="loss")
    for row in run.record:
        (loss,) = row["client_losses"].values()
        assert loss == pytest.approx(row["train_loss"], rel=1e-12)


@pytest.mark.slow
def test_fixed_lists_and_their_replay(tmp_path, toys, monkeypatch):
    (tmp_path / "lists.txt").write_text("0 1 2\n7\n3 4 5 6\n")
    monkeypatch.chdir(tmp_path)
    options = OPTIONS | {"min_clients": 0}
    run = train("fedproto", "run", sampling="list:lists.txt", **options)
    lists = [[0, 1, 2], [7], [3, 4, 5, 6]]
    assert [row["answered"] for row in run.record] == lists * 2
    assert [row["participants"] for row in run.record] == [3, 1, 4] * 2
    replay = train("fedproto", "replay", participants_from=run.folder, **options)
    assert without_times(replay.record) == without_times(run.record)
    # The recorded rounds are not checked against another --min-clients.
    strict = OPTIONS | {"min_clients": 2}
    replay = train("fedproto", "strict", participants_from=run.folder, **strict)
    assert without_times(replay.record) == without_times(run.record)

    # config.json repeats the run from any folder; a resume needs the unchanged list file.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = run.folder / "config.json"
    here = {"config": config, "backend": "local"}
    again = pf.run(out=tmp_path / "again", dry_run=False, **here)
    assert without_times(again.record) == without_times(run.record)
    with pytest.raises(Interrupted):
        pf.run(out=tmp_path / "cut", progress=interrupted(3), **here)
    (tmp_path / "lists.txt").write_text("0 1 2\n7\n3 4 5\n")
    with pytest.raises(pf.UsageError, match=r"--sampling list:.* is not the file with which"):
        train("fedproto", tmp_path / "cut", resume=True)
    (tmp_path / "lists.txt").write_text("0 1 2\n7\n3 4 5 6\n")
    resumed = train("fedproto", tmp_path / "cut", resume=True)
    assert without_times(resumed.record) == without_times(run.record)


def test_a_list_of_strangers_is_found_before_a_run(tmp_path, toys):
    (tmp_path / "lists.txt").write_text("0 1 2\n9\n")
    with pytest.raises(pf.UsageError, match=r"lists\.txt, line 2: '9' is not a client"):
        train("fedproto", tmp_path / "run", sampling=f"list:{tmp_path}/lists.txt", **OPTIONS)
    assert not (tmp_path / "run").exists()


# --- invalid plugins ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda **_: [1, 2, 1], "it returns client 1 twice"),
        (lambda **_: [1, 8], "it returns client 8, who cannot be asked"),
        (lambda **_: [0.5, 1.0], r"it returns float64 of shape \[2\]"),
        (lambda **_: [[0], [1]], r"it returns int64 of shape \[2, 1\]"),
        (lambda **_: None, r"it returns object of shape \[\]"),
        (lambda clients, **_: clients.sort() or clients, "read-only"),
        (lambda **_: {}["x"], "KeyError"),
    ],
)
def test_what_a_client_sampler_must_not_answer(answer, words):
    with pytest.raises(pf.RunFailure, match=words) as caught:
        lines_of(plan_with(selecting(answer)), 1)
    assert "select of client-sampler/own, round 1" in caught.value.what


def test_a_client_sampler_may_ask_others_than_it_is_asked_for():
    rows = lines_of(plan_with(selecting(lambda **_: [5, 2], any_number=True)), 2)
    assert [row["answered"] for row in rows] == [[2, 5]] * 2


def test_a_client_sampler_that_asks_nobody():
    plugin = selecting(lambda **_: [], any_number=True)
    with pytest.raises(pf.RunFailure, match="no client was asked in round 1"):
        lines_of(plan_with(plugin), 1)
    (row,) = lines_of(plan_with(plugin, min_clients=0), 1)
    assert (row["participants"], row["answered"], row["upload_bytes"]) == (0, [], 0)


def test_a_client_sampler_is_given_the_run(tmp_path):
    seen = []

    class Watches:
        @pf.hookimpl
        def select(self, round, count, clients, sizes, losses, generator):
            seen.append((round, count, clients.tolist(), sizes.tolist(), losses.copy()))
            return generator.choice(clients, count, replace=False)

    plan = plan_with(Watches, rounds=2)
    rows = lines_of(plan)
    sizes = plan.split(0).train_sizes.tolist()
    assert [s[:4] for s in seen] == [(r, 4, [*range(8)], sizes) for r in range(2)]
    assert np.isnan(seen[0][4]).all()
    heard = {int(c): loss for c, loss in rows[0]["client_losses"].items()}
    assert {c: v for c, v in enumerate(seen[1][4]) if not np.isnan(v)} == heard
