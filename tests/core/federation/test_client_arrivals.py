"""Tests of clients that never train (``--unseen``) or join later (``--join-round``)."""

from __future__ import annotations

import json

import pytest
import torch
from runtime_toys import Toy1, install, lines_of, make_plan, quarters, train, without_times

import protofl as pf
from protofl.data.batches import training_batches
from protofl.federation.jobs.jobs import Evaluate
from protofl.federation.plan.client_arrivals import NEVER, first_rounds, unseen_clients
from protofl.federation.round.participation import Participation, check_participation
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.system.options.parsing import read_joins
from protofl.testing import toy as toyfed

OPTIONS = {"clients": 8, "rounds": 4, "unseen": 0.25, "fine_tune": 2, "dry_run": False}


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


# --- which clients ------------------------------------------------------------------------------


def test_they_are_drawn_by_the_seed():
    draws = [unseen_clients(seed, 20, 0.2) for seed in range(6)]
    assert all(len(drawn) == 4 for drawn in draws) and len({*draws}) == 6
    assert unseen_clients(3, 20, 4) == draws[3] and unseen_clients(0, 20, 0) == frozenset()
    assert len(unseen_clients(0, 20, 0.001)) == 1
    with_two = unseen_clients(3, 20, 4, (7, 9))
    assert len(with_two) == 4 and {7, 9} < with_two


def test_who_comes_when():
    first = first_rounds(5, 20, 0.2, read_joins("11:0.25,4:1/2"))
    unseen = unseen_clients(5, 20, 0.2)
    assert {c for c, at in enumerate(first.tolist()) if at == NEVER} == unseen
    assert sorted(first.tolist()) == [0] * 4 + [3] * 8 + [10] * 4 + [NEVER] * 4
    assert (first_rounds(5, 20, 0, read_joins([2, 4])) > 0).sum() == 14  # a third joins in each


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("20", "20:1/2"),
        (7, "7:1/2"),
        ("10, 5", "5:1/3,10:1/3"),
        (["9:.25", "2"], "2:1/3,9:.25"),
        ("5:1/4", "5:1/4"),
    ],
)
def test_how_joining_is_written(given, kept):
    assert read_joins(given) == read_joins(read_joins(given)) == kept


def test_they_are_never_asked_and_others_only_once_they_are_there():
    options = OPTIONS | {"unseen": 2, "join_round": "2:0.5,3:0.2", "fine_tune": 0}
    plan = make_plan("fedproto", **options)
    toy = toyfed.Toy(plan)
    lines, first = toy.rounds(4), first_rounds(0, 8, 2, "2:0.5,3:0.2")
    for number, line in enumerate(lines):
        there = [c for c in range(8) if first[c] <= number]
        trained = sorted(job.client for job, _ in toy.pool.trained if job.round == number)
        assert trained == there == line["answered"] == sorted(line["clients"])
        assert line["participants"] == line["evaluated"] == len(there) == [2, 5, 6, 6][number]
        assert line.get("joined", []) == [c for c in there if number and first[c] == number]
        assert line["unseen"] == sorted(unseen_clients(0, 8, 2))
        assert [*map(int, line["client_unseen_accuracies"])] == line["unseen"]
        assert "fine_tuned_accuracy" not in line
    assert not {*lines[-1]["unseen"]} & toy.pool.host.trained


def plan_of_untrained(folder, untrained=(0, 3), **options):
    """Return a plan of six clients, of which some have test samples alone."""
    data = quarters()
    rows = torch.arange(96).view(6, 16)
    data.split = [
        (part[:0], part) if client in untrained else (part[:10], part[10:])
        for client, part in enumerate(rows)
    ]
    given = {"rounds": 2, "batch_size": 6, "eval_every": 1, "clients": 6, **options}
    return toyfed.make_plan("fedproto", folder, data, Toy1, **given)


def test_clients_without_training_samples_are_unseen(tmp_path):
    plan = plan_of_untrained(tmp_path, unseen=3, fine_tune=2)
    dry_run(plan)
    (third,) = unseen_clients(plan.seed(0), 6, 3, (0, 3)) - {0, 3}
    toy = toyfed.Toy(plan)
    for number, line in enumerate(toy.rounds(2)):
        assert line["unseen"] == sorted((0, 3, third))
        trained = {job.client for job, _ in toy.pool.trained if job.round == number}
        assert trained == {*range(6)} - {0, 3, third}
        assert {*map(int, line["client_unseen_accuracies"])} == {0, 3, third}
    # Clients without training samples can't be fine-tuned.
    assert [*map(int, line["client_fine_tuned_accuracies"])] == [third]
    line = toyfed.Toy(plan_of_untrained(tmp_path, unseen=2, fine_tune=2)).rounds(2)[-1]
    assert "unseen_accuracy" in line and "fine_tuned_accuracy" not in line


def test_the_message_about_clients_without_training_samples_names_the_way(tmp_path):
    for unseen in (0, 1):
        with pytest.raises(pf.UsageError) as error:
            plan_of_untrained(tmp_path, unseen=unseen).split(0)
        assert "2 of 6 clients have test samples and no training samples: 0, 3" in error.value.what
        assert "--unseen 2" in error.value.do
    with pytest.raises(pf.UsageError, match="no client has training samples"):
        plan_of_untrained(tmp_path, untrained=range(6), unseen=5).split(0)


def test_a_round_asks_its_share_of_those_that_are_there():
    plan = make_plan("local", **OPTIONS | {"participation": 0.5, "join_round": "3:0.34"})
    participation = Participation(plan)
    participation.start(0)
    assert [len(participation.asked(number)) for number in range(4)] == [2, 2, 3, 3]
    assert plan.info.participants == 3


def test_in_virtual_time_too():
    options = {"devices": "uniform", "options": {"devices": {"available": 0.8, "slot": 60}}}
    plan = make_plan("local", **OPTIONS | {"fine_tune": 0}, join_round="3:0.5", **options)
    lines, first = lines_of(plan), first_rounds(0, 8, 0.25, "3:0.5")
    for line in lines:
        asked = {*map(int, line["virtual"]["clients"])}
        assert asked and asked <= {c for c in range(8) if first[c] <= line["round"]}
    assert any(len(line["virtual"]["clients"]) > 3 for line in lines[2:])


# --- accuracy and fine-tuning -------------------------------------------------------------------


def accuracy_by_hand(plan, model, client):
    rows = plan.split(0).test(client)
    with torch.no_grad():
        scores = model.eval()(plan.samples(rows, channels_last=False).inputs())
    return float((scores.argmax(1) == plan.data.y[rows]).double().mean())


def test_fine_tuning_is_local_training_on_their_own_samples():
    plan = make_plan("local", **OPTIONS | {"fine_tune": 12, "lr": 0.5}, lr_schedule="cosine")
    line = lines_of(plan)[-1]
    before, after = {}, {}
    for client in unseen_clients(0, 8, 0.25):
        model = plan.initial_model(client, 0)
        before[str(client)] = accuracy_by_hand(plan, model, client)
        samples = plan.samples(plan.split(0).train(client), channels_last=False)
        optimiser = torch.optim.SGD(model.parameters(), lr=plan.settings.lr)
        keys = ("private", plan.settings.rounds - 1, client)
        given = {"epochs": 12, "batch_size": 6, "drop_last": False, "seed": 0, "keys": keys}
        model.train()
        for x, y, _ in training_batches(samples, **given):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
        after[str(client)] = accuracy_by_hand(plan, model, client)
    assert line["client_unseen_accuracies"] == before
    assert line["client_fine_tuned_accuracies"] == after != before
    assert line["fine_tuned_accuracy"] == pytest.approx(sum(after.values()) / 2)


def test_where_none_is_unseen_all_are_fine_tuned():
    given = OPTIONS | {"unseen": 0, "models": "toy1", "partition": "pathological"}
    given |= {"validation": 0.3}
    one = {"options": {"partition": {"classes_per_client": 1}}}
    plain, tuned = (
        lines_of(make_plan("fedavg", **given | {"fine_tune": n}, **one)) for n in (0, 30)
    )
    last = tuned[-1]
    assert last["client_fine_tuned_accuracies"].keys() == {*map(str, range(8))}
    assert last["fine_tuned_accuracy"] > last["test_accuracy"] + 0.2
    assert last["fine_tuned_validation_accuracy"] > last["validation_accuracy"] + 0.2
    others = [{k: v for k, v in x.items() if "fine_tuned" not in k} for x in without_times(tuned)]
    assert others == without_times(plain)


def test_what_was_downloaded_is_not_installed_again_over_what_was_learned():
    """FedAvg clients start from the downloaded weights and are scored with the fine-tuned ones."""
    given = OPTIONS | {"models": "toy1", "fine_tune": 30, "partition": "pathological"}
    plan = make_plan("fedavg", **given, options={"partition": {"classes_per_client": 1}})
    line = lines_of(plan)[-1]
    assert line["fine_tuned_accuracy"] > 0.9 > line["unseen_accuracy"] + 0.2


@pytest.mark.slow
def test_it_changes_nothing_of_the_run_nor_of_a_client():
    figures = ("client_fine_tuned_accuracy", "client_fine_tuned_accuracies")
    figures += ("fine_tuned_accuracy", "fine_tuned_accuracy_std")
    found = []
    for epochs in (0, 3):
        toy = toyfed.Toy(make_plan("fedtgp", **OPTIONS | {"fine_tune": epochs}))
        toy.rounds(4)
        for name in figures:
            assert (toy.lines[-1].pop(name, None) is None) == (epochs == 0)
        found.append(toyfed.fingerprint(toy))
    assert toyfed.same(*found)
    # The same holds for a client that has trained.
    client = next(iter(toy.pool.host.trained))
    before = toyfed.own_state(toy.client(client))
    toy.pool.host.handle(Evaluate(client, 3, epochs=5))
    assert toyfed.same(toyfed.own_state(toy.client(client)), before)


def test_all_is_as_without_them_where_there_are_none():
    given = {"unseen": 0, "join_round": None, "validation": 0}
    plain, same = (lines_of(make_plan("fedproto", clients=8, **more)) for more in ({}, given))
    assert without_times(same) == without_times(plain)
    assert not {"unseen", "joined", "answered"} & plain[-1].keys()


# --- whole runs ---------------------------------------------------------------------------------


class Interrupted(BaseException):
    pass


@pytest.mark.slow
def test_a_run_its_summary_and_a_resume(tmp_path, toys):
    options = OPTIONS | {"join_round": 3, "validation": 0.2, "trials": 2, "checkpoint_every": 2}
    whole = train("fedproto", tmp_path / "whole", **options)

    def stop(event):
        if isinstance(event, pf.events.RoundStarted) and (event.trial, event.round) == (1, 3):
            raise Interrupted

    with pytest.raises(Interrupted):
        train("fedproto", tmp_path / "run", progress=stop, **options)
    again = train("fedproto", tmp_path / "run", resume=True)
    assert without_times(again.record) == without_times(whole.record)
    assert again.summary == whole.summary
    summary, last = whole.summary, whole.record[-1]
    assert summary["trials"][1]["unseen"] == last["unseen"] != summary["unseen"]
    assert summary["trials"][1]["fine_tuned_accuracy"] == last["fine_tuned_accuracy"]
    assert summary["trials"][1]["final_unseen_accuracy"] == last["unseen_accuracy"]
    assert {"fine_tuned_accuracy", "final_unseen_accuracy"} <= summary["mean"].keys()
    partition = json.loads((tmp_path / "run/partition.json").read_text())
    counts = [partition["trials"][0][f"{part}_counts"] for part in ("train", "test")]
    right = sum(counts[1][c][counts[0][c].index(max(counts[0][c]))] for c in last["unseen"])
    guess = right / sum(sum(counts[1][c]) for c in last["unseen"])
    assert summary["trials"][1]["unseen_majority_accuracy"] == guess


@pytest.mark.slow
def test_a_run_that_goes_on_with_more_rounds_is_not_fine_tuned_before(tmp_path, toys):
    at_once = train("fedproto", tmp_path / "once", **OPTIONS | {"rounds": 5})
    train("fedproto", tmp_path / "run", **OPTIONS | {"rounds": 3})
    more = train("fedproto", tmp_path / "run", resume=True, rounds=5)
    assert without_times(more.record) == without_times(at_once.record)
    assert more.summary == at_once.summary
    assert sum("fine_tuned_accuracy" in row for row in more.record) == 1


def test_the_participants_of_another_run(tmp_path, toys):
    given = OPTIONS | {"join_round": "2", "rounds": 3}
    train("local", tmp_path / "run", **given)
    again = train("local", tmp_path / "again", **given, participants_from=tmp_path / "run")
    assert [row["answered"] for row in again.record] == [
        row["answered"] for row in pf.load_run(tmp_path / "run").rows
    ]
    given |= {"seed": 1, "participants_from": tmp_path / "run"}
    with pytest.raises(
        pf.UsageError, match=r"client \d took part in round 1 of trial 0, and is un"
    ):
        train("local", tmp_path / "other", **given)
    assert not (tmp_path / "other").exists()


def test_options_are_given_again_as_they_were_typed(tmp_path, toys):
    given = {"unseen": "2", "join_round": "2", "validation": "1/5", "subset": "90"}
    train("local", tmp_path / "run", **OPTIONS | given)
    assert train("local", tmp_path / "run", resume=True, **given).record
    for other in ({"unseen": "3"}, {"join_round": "2:0.3"}, {"validation": 0.1}, {"subset": "1/2"}):
        with pytest.raises(pf.UsageError, match="differs from the run's"):
            train("local", tmp_path / "run", resume=True, **other)


# --- refused options ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"unseen": 8}, "--unseen 8 of 8 clients leaves no client to train"),
        ({"unseen": 1.5}, "--unseen 1.5 clients"),
        ({"unseen": -1}, "--unseen -1 is not possible"),
        ({"malicious": 0.3, "transforms": {"sign-flip": None}}, "--unseen with --malicious"),
        ({"join_round": "5:0.5"}, "--join-round 5 is not a later round of this run"),
        ({"join_round": "1:0.5"}, "--join-round 1 is not a later round of this run"),
        ({"join_round": "2:1.5"}, "--join-round 2:1.5: no share of the clients"),
        ({"join_round": "2:0.6,3:0.5"}, "no client is left for the first rounds"),
        ({"join_round": "soon"}, "--join-round soon names no rounds"),
        ({"join_round": True}, "join_round is true"),
        ({"join_round": "2:0.5", "min_clients": 4}, "a round has 3 participants"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_before_anything_is_trained(given, words):
    with pytest.raises(pf.UsageError, match=words):
        check_participation(make_plan("local", **OPTIONS | {"fine_tune": None} | given))


def test_the_usual_number_of_epochs_is_recorded():
    plan = make_plan("local", **OPTIONS | {"fine_tune": None, "local_epochs": 3})
    assert plan.settings.fine_tune == 30
    assert make_plan("local").settings.fine_tune is None
