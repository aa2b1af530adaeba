"""Tests of searches: points that Optuna chooses, runs that it stops, and resuming."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace

import pytest
from runtime_toys import install
from sweep_toys import Halted, Halting, request_of

import protofl as pf
from protofl.records.row import Row
from protofl_workbench.batch import batch_events as events
from protofl_workbench.sweeps.axes import read_axes, resolved_axes
from protofl_workbench.sweeps.search import JOURNAL, is_warm
from protofl_workbench.sweeps.sweep import Sweep, check_sweep, load_sweep, write_sweep
from protofl_workbench.sweeps.sweep_execution import resume_sweep, start_sweep
from protofl_workbench.sweeps.sweep_points import end_points

optuna = pytest.importorskip("optuna")

BUDGET = 8


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    install(monkeypatch)
    monkeypatch.chdir(tmp_path)


def search_in(tmp_path, name, budget=BUDGET, trials=1):
    base = request_of("fedproto", models="toy1", rounds=4, local_epochs=3)
    axes = resolved_axes(read_axes(["lambda=0.01..10:log", "lr=0.0001..0.5:log"]), base)
    runs = tmp_path / f"runs-{name}"
    return Sweep(base, axes, trials, search="tpe", budget=budget, runs=runs)


def begun(tmp_path, name, follow=events.ignore, **changes):
    return start_sweep(
        search_in(tmp_path, name, **changes), tmp_path / name, at_once=0, follow=follow
    )


def told_of(results):
    """Return the point, state and figures of each line, sorted."""
    return sorted(
        (tuple(line.point.items()), line.state, [run.figure for run in line.runs])
        for line in results.lines
    )


def test_a_search_with_one_run_at_a_time_is_repeatable_and_goes_on(tmp_path):
    one = begun(tmp_path, "one")
    assert len(one.lines) == BUDGET and len({str(line.point) for line in one.lines}) == BUDGET
    for line in one.lines:
        assert 0.01 <= line.point["lambda"] <= 10 and 0.0001 <= line.point["lr"] <= 0.5
    stopped = [line for line in one.lines if line.state.startswith("stopped")]
    assert stopped, "the median rule stops some of them"
    assert min(line.runs[0].rounds for line in stopped) >= 2, "prototypes arrive in round 2"

    # Killed three times: in the first point's run, between points, and in a late point.
    with pytest.raises(Halted):
        begun(tmp_path, "two", Halting(2))
    with (tmp_path / "two" / JOURNAL).open("a") as journal:
        journal.write('{"op_code": 4, "half a li')
    (tmp_path / "two" / f"{JOURNAL}.lock").touch()
    for rounds in (4, 9):
        with pytest.raises(Halted):
            resume_sweep(tmp_path / "two", at_once=0, follow=Halting(rounds))
    assert told_of(resume_sweep(tmp_path / "two", at_once=0)[1]) == told_of(one)

    # A stopped run keeps its rounds and can be resumed.
    run = stopped[0].runs[0]
    assert 2 <= run.rounds < 4 and len(pf.load_run(run.folder).rows) == run.rounds
    on = pf.run(out=run.folder, resume=True, backend="local", progress=False)
    assert len(on.record) == 4

    # More points; the earlier results count.
    more = resume_sweep(tmp_path / "two", budget=BUDGET + 1, at_once=0)[1]
    assert len(more.lines) == BUDGET + 1
    assert json.loads((tmp_path / "two/results.json").read_text())["best"]


def test_the_runs_of_a_point_are_one_for_each_seed_and_the_mean_counts(tmp_path):
    results = begun(tmp_path, "seeds", budget=2, trials=2)
    assert [[run.seed for run in line.runs] for line in results.lines] == [[0, 1], [0, 1]]
    study = optuna.load_study(
        study_name="sweep",
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "seeds" / JOURNAL))
        ),
    )
    assert sorted(trial.value for trial in study.trials) == pytest.approx(
        sorted(line.mean("value") for line in results.lines)
    )


def test_a_point_that_is_chosen_again_is_one_and_values_stay_what_they_were(tmp_path):
    base = request_of("fedproto", models="toy1", rounds=1)
    axes = resolved_axes(read_axes(["lambda=0.1,1"]), base)
    sweep = Sweep(base, axes, search="tpe", budget=4, runs=tmp_path / "runs")
    assert "without --search each of them is run" in check_sweep(sweep)[0]
    results = start_sweep(sweep, tmp_path / "sweep", at_once=0)
    assert sorted(line.point["lambda"] for line in results.lines) == ["0.1", "1"]
    file = tmp_path / "sweep/sweep.toml"
    text = file.read_text()
    for changed in ('lambda = "0.1,1,2"', 'lambda = "0.1..1"', 'lambda = "0.1,1"\nlr = "0.1,0.2"'):
        file.write_text(text.replace('lambda = "0.1,1"', changed))
        with pytest.raises(
            pf.UsageError, match=r"sweep.toml: \[grid\] differs from that of earlier points"
        ):
            resume_sweep(tmp_path / "sweep", at_once=0)
    file.write_text(text)
    assert len(resume_sweep(tmp_path / "sweep", at_once=0)[1].lines) == 2


def test_ends_of_ranges_and_all_values_are_tried_beforehand(tmp_path):
    axes = read_axes(["a=1,2,3", "b=0.5..2"])
    assert (
        end_points(axes)
        == [
            {"a": "1", "b": 0.5},
            {"a": "2", "b": 0.5},
            {"a": "3", "b": 0.5},
            {"a": "1", "b": 2.0},
        ]
        or end_points(axes)[-1]["b"] == 2
    )
    base = request_of("fedproto", models="toy1")
    sweep = Sweep(
        base,
        resolved_axes(read_axes(["lambda=-1..10"]), base),
        search="tpe",
        budget=3,
        runs=tmp_path,
    )
    with pytest.raises(pf.UsageError, match=r"lambda=-1: .*lambda"):
        start_sweep(sweep, tmp_path / "sweep", at_once=0)
    assert not (tmp_path / "sweep").exists()


def lines_of(*traffic):
    """Return the lines of rounds with these numbers of uploaded and downloaded floats."""
    return [
        Row({"round": number, "upload_floats": up, "download_floats": down})
        for number, (up, down) in enumerate(traffic)
    ]


def test_no_run_is_stopped_before_an_option_can_act():
    proto = lines_of((8, 0), (8, 8), (8, 8))
    assert [is_warm(proto[:n], 4) for n in (1, 2, 3)] == [False, True, True]
    assert [is_warm(proto[:n], 12) for n in (1, 2, 3)] == [False, False, True]
    average = lines_of((8, 8), (8, 8))
    assert [is_warm(average[:n], 4) for n in (1, 2)] == [False, True], "round 1 sends first weights"
    late = lines_of((8, 0), (8, 0), (8, 8))
    assert [is_warm(late[:n], 4) for n in (1, 2, 3)] == [False, False, True]
    local = lines_of((0, 0), (0, 0), (0, 0))
    assert [is_warm(local[:n], 8) for n in (1, 2, 3)] == [False, True, True]


def test_the_rule_is_asked_after_the_warm_up(tmp_path, monkeypatch):
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda trial: True)
    results = begun(tmp_path, "one", budget=1, trials=2)
    assert [line.state for line in results.lines] == ["stopped after 2 rounds of seed 0"]
    base = request_of("fedproto", models="toy1", rounds=12)
    longer = replace(search_in(tmp_path, "two", budget=1), base=base)
    results = start_sweep(longer, tmp_path / "two", at_once=0)
    assert [line.state for line in results.lines] == ["stopped after 3 rounds"]


def test_without_the_median_rule_all_points_are_finished(tmp_path):
    sweep = replace(search_in(tmp_path, "whole"), prune="none")
    results = start_sweep(sweep, tmp_path / "whole", at_once=0)
    assert [line.state for line in results.lines] == ["finished"] * BUDGET
    assert load_sweep(tmp_path / "whole").prune == "none", "a resume keeps it"
    with pytest.raises(pf.UsageError, match="'non'") as caught:
        check_sweep(replace(sweep, prune="non"))
    assert "did you mean 'none'" in str(caught.value)
    with pytest.raises(pf.UsageError, match="--prune needs --search"):
        pf.sweep("fedproto", grid={"lr": [0.1]}, prune="none")


def test_a_search_file_of_before_the_choice_is_read(tmp_path):
    write_sweep(tmp_path, search_in(tmp_path, "old"))
    file = tmp_path / "sweep.toml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith("prune")))
    assert load_sweep(tmp_path).prune == "median"


@pytest.mark.parametrize("search", ["tpe", ""])
def test_a_run_that_diverged_is_not_trained_again(tmp_path, search):
    base = request_of("fedproto", models="toy1", rounds=2)
    axes = resolved_axes(read_axes(["lr=0.1,1e30"]), base)
    sweep = Sweep(base, axes, search=search, budget=6 * bool(search), runs=tmp_path / "runs")
    told = []
    results = start_sweep(sweep, tmp_path / "sweep", at_once=0, follow=told.append)
    (lost,) = (line for line in results.lines if float(line.point["lr"]) == 1e30)
    assert lost.state == "failed" and "NaN" in lost.runs[0].error
    folders = [e.outcome.folder for e in told if isinstance(e, events.RunEnded)]
    assert lost.runs[0].folder in folders
    assert [*map(planned, told)].count("lr=1e+30") == 1, "also if the search chooses it again"
    told.clear()
    resume_sweep(tmp_path / "sweep", at_once=0, follow=told.append)
    started = [event.batch_run.name for event in told if isinstance(event, events.RunStarted)]
    assert started == ([] if search else ["lr=1e+30"]), "the point is one of the budget's"
    budget = 9 if search else None
    _, again = resume_sweep(tmp_path / "sweep", budget=budget, at_once=0, follow=told.append)
    assert "lr=1e+30" not in map(planned, told)
    (lost,) = (line for line in again.lines if float(line.point["lr"]) == 1e30)
    assert lost.state == "failed" and "NaN" in lost.runs[0].error
    assert len(again.lines) == 2 and again.best


def planned(event):
    return event.batch_run.name if isinstance(event, events.RunPlanned) else None


def test_without_optuna_the_extra_is_named_before_anything_starts(tmp_path, monkeypatch):
    real = builtins.__import__

    def lacks(name, *given):
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return real(name, *given)

    monkeypatch.setattr(builtins, "__import__", lacks)
    with pytest.raises(pf.UsageError) as caught:
        begun(tmp_path, "none")
    assert "protofl[tune]" in caught.value.do
    assert not (tmp_path / "none").exists()
