"""Tests of --record-predictions: the right rounds, recovery after kills, nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runtime_toys import install, make_plan, open_federation, train, without_times
from slowness import quick
from torch.nn.functional import cross_entropy
from written_records import LINE

import protofl as pf
from protofl.federation.clients.evaluation import counts_in
from protofl.federation.clients.sample_outputs import PREDICTED, TRUE
from protofl.federation.jobs.jobs import Evaluate
from protofl.federation.round.predictions import Predictions
from protofl.hooks.transport.rules import Fault
from protofl.records.row import Row
from protofl_workbench.recorded.predicted import read_predictions

CHOICES = ("last", "best", "validation")
OPTIONS = {"rounds": 6, "validation": 0.2, "lr": 0.5, "trials": 2, "partition": "dirichlet"}
RECORD = {"record_predictions": "last,best,validation"}


class Killed(BaseException):
    """Simulates a signal that ends the process at once."""


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        folder = tmp_path_factory.mktemp("recording")
        plain = train("fedproto", folder / "plain", **OPTIONS)
        whole = train("fedproto", folder / "whole", **OPTIONS, **RECORD)
        loaded = pf.load_run(plain.folder), pf.load_run(whole.folder)
        assert loaded[1].plan  # as long as the toys are installed
        return loaded


def files_of(folder):
    """Return {name: bytes} of the recorded predictions of a run."""
    return {path.name: path.read_bytes() for path in (folder / "predictions").iterdir()}


@pytest.mark.slow
def test_on_and_off_are_one_run(runs):
    plain, whole = runs
    assert without_times(whole.rows) == without_times(plain.rows)
    assert not (plain.folder / "predictions").exists()


@pytest.mark.parametrize("trial", [0, 1])
@pytest.mark.parametrize("which", CHOICES)
def test_predictions_are_those_of_the_chosen_round(runs, which, trial):
    _, run = runs
    found, summary = run.predictions(which, trial), run.summary["trials"][trial]
    key = {"best": "best_round", "validation": "validation_selected_round"}.get(which)
    assert found.round == (summary[key] if key else 5) and found.trial == trial
    row = run.rows_of(trial)[found.round]
    assert found.right.mean() == pytest.approx(row.test_accuracy)
    for client, accuracy in row.client_accuracies.items():
        own = found.clients == int(client)
        assert found.right[own].mean() == pytest.approx(accuracy)
        samples = run.plan.split(trial).test(int(client))
        assert np.array_equal(found.true[own], run.plan.data.y[samples].numpy())


def test_the_best_rounds_are_not_all_the_last(runs):
    """Otherwise the tests above could not tell the choices apart."""
    _, run = runs
    rounds = {run.predictions(which, trial).round for which in CHOICES for trial in (0, 1)}
    assert len(rounds) > 1


@pytest.mark.parametrize("which", ["last", "best"])
def test_predictions_are_those_of_the_method(runs, which):
    """`Run.predict` computes them again from the kept weights."""
    _, run = runs
    found = run.predictions("validation" if which == "best" else "last")  # as `--keep best` chooses
    for client in range(4):
        x = run.plan.data.x[run.plan.split(0).test(client)].numpy()
        again = run.predict(client, x, which).numpy()
        assert np.array_equal(again, found.predicted[found.clients == client])


@pytest.mark.parametrize("choices", quick(["last", "best", "validation,last"], "validation,last"))
def test_any_combination(toys, tmp_path, runs, choices):
    _, whole = runs
    options = OPTIONS | {"trials": 1}
    train("fedproto", tmp_path / "run", **options, record_predictions=choices)
    run = pf.load_run(tmp_path / "run")
    asked = choices.split(",")
    for which in asked:
        assert np.array_equal(run.predictions(which).predicted, whole.predictions(which).predicted)
    files = {run.predictions(which).round for which in asked}
    assert len(files_of(run.folder)) - 1 <= len(files) + 2  # of the commit before the last
    for which in {*CHOICES} - {*asked}:
        if whole.predictions(which).round not in {run.predictions(each).round for each in asked}:
            with pytest.raises(pf.UsageError, match=f"--record-predictions {which}"):
                run.predictions(which)


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("every", quick([1, 3], 3, always=True))
@pytest.mark.parametrize(
    "event",
    quick([pf.events.RoundStarted, pf.events.RoundDone], pf.events.RoundStarted, always=True),
)
def test_a_killed_run_ends_with_the_same_files(toys, tmp_path, runs, event, every):
    given = OPTIONS | RECORD | {"checkpoint_every": every, "keep": "last"}
    whole = train("fedproto", tmp_path / "whole", **given)
    out = tmp_path / "killed"
    for number in (2, 3, 5, 8, 10):
        seen = 0

        def progress(found):
            nonlocal seen
            seen += isinstance(found, event)
            if seen == 2:
                raise Killed

        resume = {"resume": True} if out.exists() else given
        with pytest.raises(Killed):
            train("fedproto" if not out.exists() else None, out, progress=progress, **resume)
        if (out / "predictions").exists():
            stray = out / f"predictions/t1-r{number}.safetensors.part"
            stray.write_bytes(b"half")
    train(None, out, resume=True)
    assert files_of(out) == files_of(whole.folder)


def test_a_run_that_goes_on_can_be_read(toys, tmp_path):
    seen = []

    def progress(event):
        if isinstance(event, pf.events.RoundDone):
            run = pf.load_run(tmp_path / "run")
            seen.append([run.predictions(which).round for which in CHOICES])
            assert seen[-1][0] == run.rows_of(0)[-1].round

    train("fedproto", tmp_path / "run", progress=progress, **OPTIONS | {"trials": 1}, **RECORD)
    assert len(seen) == 6


@pytest.mark.slow
@pytest.mark.always
def test_more_rounds_are_as_if_asked_for_at_once(toys, tmp_path):
    """The last of the first rounds is evaluated only because it is the last: it is repeated."""
    given = OPTIONS | RECORD | {"trials": 1, "eval_every": 2}
    whole = train("fedproto", tmp_path / "whole", **given | {"rounds": 9})
    train("fedproto", tmp_path / "run", **given | {"rounds": 5})
    train(None, tmp_path / "run", resume=True, rounds=9)
    for which in CHOICES:
        one, other = (pf.load_run(f).predictions(which) for f in (whole.folder, tmp_path / "run"))
        assert one.round == other.round and np.array_equal(one.predicted, other.predicted)


@pytest.mark.slow
def test_recording_that_begins_late_says_what_is_missing(toys, tmp_path):
    out, lines = tmp_path / "run", []

    def stop(event):
        if isinstance(event, pf.events.RoundStarted) and event.round == 4:
            raise Killed

    with pytest.raises(Killed):
        train("fedproto", out, progress=stop, **OPTIONS)
    best = max(pf.load_run(out).rows, key=lambda row: (row.test_accuracy, -row.round)).round

    def note(event):
        lines.append(str(getattr(event, "text", "")))

    train(None, out, resume=True, record_predictions="last,best", progress=note)
    assert f"the predictions of round {best} of trial 0 (best) are not recorded" in lines
    assert not any("(last)" in line for line in lines)
    assert pf.load_run(out).predictions("last").round == 5


def test_validation_needs_validation_samples(toys, tmp_path):
    with pytest.raises(pf.UsageError) as caught:
        train("fedproto", tmp_path / "run", record_predictions="last,validation")
    assert "no validation samples" in caught.value.what and "--validation" in caught.value.do
    assert not (tmp_path / "run").exists()


def test_unknown_rounds_are_refused(toys, tmp_path):
    with pytest.raises(pf.UsageError, match="'bets'") as caught:
        train("fedproto", tmp_path / "run", record_predictions="bets")
    assert "best" in str(caught.value)


def test_unevaluated_rounds_and_diverging_trials(toys, tmp_path):
    given = {"rounds": 5, "eval_every": 3, "record_predictions": "last,best"}
    run = pf.load_run(train("local", tmp_path / "run", **given).folder)
    assert run.predictions("last").round == 4
    assert run.predictions("best").round in (2, 4)


def test_a_lost_client_is_left_out(toys, tmp_path):
    """Its predictions do not count, as its accuracy does not."""

    class Losing:
        terms = {"ce": "cross-entropy"}

        @pf.hookimpl
        def local_loss(self, batch, output):
            return {"ce": cross_entropy(output.logits, batch.y)}

        @pf.hookimpl
        def inference(self, client, x):
            if client.id == 2 and client.round == 1:
                raise ValueError("no scores")
            return client.head(client.features(x))

    given = {"on_lost_client": "skip", "record_predictions": "last", "rounds": 2}
    run = pf.load_run(train(Losing, tmp_path / "run", **given).folder)
    assert sorted({*run.predictions("last").clients.tolist()}) == [0, 1, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop(TRUE), "lacks predictions"),
        (lambda p: p.update({PREDICTED: p[PREDICTED][1:]}), "expected torch.uint8"),
        (lambda p: p.update({PREDICTED: p[PREDICTED].double()}), "expected torch.uint8"),
        (lambda p: p.update({TRUE: p[TRUE] + 200}), "out of 0 to 3"),
        (lambda p: p.update({PREDICTED: (p[TRUE] + 1) % 4}), "other correct predictions"),
    ],
)
def test_a_host_that_sends_something_else_is_found(change, message):
    plan = make_plan("local")
    federation = open_federation(plan)
    job = Evaluate(1, 0, predictions=True, blob=pf.Payload().to_bytes())
    reply = federation.pool.handle(job)
    good = counts_in(plan, job, reply)
    assert good[TRUE].tolist() == plan.data.y[plan.split(0).test(1)].tolist()
    change(good)
    reply.blob = pf.Payload(good).to_bytes()
    with pytest.raises(Fault, match=message):
        counts_in(plan, job, reply)
    with pytest.raises(Fault, match="not asked for"):
        counts_in(plan, Evaluate(1, 0), federation.pool.handle(job))


def test_damage_is_named(toys, tmp_path):
    run = pf.load_run(train("local", tmp_path / "run", record_predictions="last").folder)
    file = run.folder / "predictions/t0-r1.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(pf.UsageError, match="t0-r1"):
        run.predictions("last")


def test_many_classes_have_a_wider_type():
    from protofl.federation.clients.sample_outputs import class_type

    assert class_type(256) == torch.uint8 and class_type(257) == torch.int32


def test_an_unscored_client_is_left_out(tmp_path):
    """Its reply came, and its counts were found to be wrong afterwards."""
    plan = make_plan("local", record_predictions="last")
    recorder = Predictions(plan, tmp_path, (), lambda line: None)
    for client in (2, 0, 1):
        classes = torch.tensor([client, 3], dtype=torch.uint8)
        recorder.take(client, pf.Payload({PREDICTED: classes, TRUE: classes}))
    row = Row(LINE | {"test_accuracy": 1.0, "unscored": {"1": "counts of another shape"}})
    recorder.keep(row, [], [])
    found = read_predictions(tmp_path, [row], "last", 0, 0)
    assert found.clients.tolist() == [0, 0, 2, 2] and found.true.tolist() == [0, 3, 2, 3]


@pytest.mark.slow
def test_a_device_s_predictions_are_the_cpu_s(toys, gpu, tmp_path):
    """There, a thread commits a round while the next one trains."""
    given = OPTIONS | RECORD | {"trials": 1}
    whole = train("fedproto", tmp_path / "cpu", **given)
    other = train("fedproto", tmp_path / "gpu", device="simgpu", **given)
    for which in CHOICES:
        one, two = (pf.load_run(run.folder).predictions(which) for run in (whole, other))
        assert one.round == two.round
        assert np.array_equal(one.predicted, two.predicted) and np.array_equal(one.true, two.true)
