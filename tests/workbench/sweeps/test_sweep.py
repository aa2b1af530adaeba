"""Tests of sweeps: axes and points, the sweep file, the table, and the runs of a grid."""

from __future__ import annotations

import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runtime_toys import GIVEN, install, train, without_times
from sweep_toys import Halted, Halting, Scaled, is_round, request_of, wanted

import protofl as pf
from protofl.records.row import Row
from protofl.system.files.tables import parse_toml
from protofl.system.options.table import OPTIONS
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.run_batch import RunBatch
from protofl_workbench.sweeps.axes import read_axes, resolved_axes
from protofl_workbench.sweeps.sweep import (
    Sweep,
    check_new_folder,
    check_same_place,
    check_sweep,
    load_sweep,
    to_toml,
    write_sweep,
)
from protofl_workbench.sweeps.sweep_execution import (
    new_folder,
    plan_sweep,
    resume_sweep,
    start_sweep,
)
from protofl_workbench.sweeps.sweep_points import number_of_points, points_of, request_at
from protofl_workbench.sweeps.sweep_results import PointResult, PointRun, SweepResult, figure_of

# --- axes -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fedtgp():
    return request_of("fedtgp", models="cnn4", dataset="digits", partition="dirichlet")


def axes_of(base, *texts):
    return resolved_axes(read_axes(texts), base)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tau", "not of the form"),
        ("=1", "not of the form"),
        ("tau=", "no value"),
        ("tau=1,,2", "an empty value"),
        ("tau=1,2,1", "1 appears twice"),
    ],
)
def test_an_axis_that_is_none(text, said):
    with pytest.raises(pf.UsageError, match=said):
        read_axes([text])


@pytest.mark.parametrize(
    ("texts", "said", "near"),
    [
        (["lr=0.1", "lr=0.2"], "--grid lr is given twice", ""),
        (["local-epochs=1,2", "local_epochs=3"], "is the same option as", ""),
        (["lr=0.1,0.10"], "0.1 and 0.10 are equal", ""),
        (["lr=0.1,-1"], "--grid lr=-1: ", ""),
        (["lr=0.1..0.2"], "--grid lr=0.1..0.2: ", ""),
        (["clients=4,x"], "--grid clients=x: ", ""),
        (["rouns=1,2"], "'rouns'", "'rounds'"),
        (["lamda=1,2"], "'lamda'", "'lambda'"),
        (["run.lamda=1"], "'lamda'", ""),
        (["seed=1,2"], "cannot be an axis", "--trials"),
        (["transforms=a,b"], "cannot be an axis", "a sweep for each value"),
        (["hold-split=true,false"], "cannot be an axis", "--hold-split"),
    ],
)
def test_axes_that_can_not_be(fedtgp, texts, said, near):
    with pytest.raises(pf.UsageError) as caught:
        axes_of(fedtgp, *texts)
    assert said in caught.value.what and near in caught.value.near + caught.value.do


@pytest.mark.parametrize(
    ("text", "do"),
    [
        ("device=cpu,cuda", "give --device once"),
        ("dry-run=true,false", "give --dry-run once"),
        ("checkpoint_every=1,off", "give --checkpoint-every once"),
        ("run.workers=1,2", "give --workers once"),
        ("observe_every=1,2", "give --observe-every once"),
        ("metrics=ece,auc", "give --metrics once"),
        ("backend.address=a,b", "give --set backend.address=… once"),
        ("ece.bins=5,10", "give --set ece.bins=… once"),
    ],
)
def test_what_changes_no_result_is_no_axis(fedtgp, text, do):
    """Points that differ only in such an option would be the same run."""
    base = replace(fedtgp, options={**fedtgp.options, "metrics": "ece"})
    with pytest.raises(pf.UsageError, match="results do not depend on it") as caught:
        axes_of(base, text)
    assert caught.value.what.startswith(f"--grid {text}: ") and do in caught.value.do


def test_the_nearest_axis_is_named(fedtgp):
    with pytest.raises(pf.UsageError) as caught:
        axes_of(fedtgp, "observe_every=1,2")
    assert caught.value.near == "did you mean eval-every?"


def test_every_option_that_changes_a_result_is_an_axis_or_says_what_to_write(fedtgp):
    for name, option in OPTIONS.items():
        if option.sweep:
            assert option.results or name == "rounds"
            continue
        with pytest.raises(pf.UsageError, match="cannot be an axis") as caught:
            axes_of(fedtgp, f"run.{name}=1,2")
        assert caught.value.do.startswith(("give --", "write --grid", "do a sweep"))


def test_whose_options_axes_are(fedtgp):
    axes = axes_of(fedtgp, "tau=10,100", "lr=0.01,0.1", "partition.beta=0.1,0.5", "run.rounds=2,3")
    assert [(a.owner, a.option) for a in axes] == [
        ("fedtgp", "tau"),
        ("", "lr"),
        ("partition", "beta"),
        ("", "rounds"),
    ]
    assert number_of_points(axes) == 16
    points = points_of(axes)
    assert points[0] == {"tau": "10", "lr": 0.01, "partition.beta": "0.1", "run.rounds": 2}
    assert points[1]["run.rounds"] == 3 and len({tuple(p.items()) for p in points}) == 16
    request = request_at(fedtgp, axes, points[-1], seed=7)
    assert request.options["options"]["fedtgp"] == {"tau": "100"}
    assert request.options["options"]["partition"] == {"beta": "0.5"}
    assert (request.options["lr"], request.options["rounds"]) == (0.1, 3)
    assert (request.options["seed"], request.options["trials"]) == (7, 1)
    assert "fedtgp" not in fedtgp.options.get("options", {}), "the base stays what it was"


def test_an_option_that_method_and_run_have_is_asked_for():
    class Both:
        class Config(pf.Config):
            lr: float = pf.Field(0.1, description="the server's")

    base = request_of(Both)
    with pytest.raises(pf.UsageError, match="both have this option") as caught:
        axes_of(base, "lr=1,2")
    assert "--grid run.lr=" in caught.value.do and "--grid scaled.lr=" in caught.value.do
    assert [a.owner for a in axes_of(base, "run.lr=1,2", "scaled.lr=1,2")] == ["", "scaled"]


def test_methods_are_an_axis(fedtgp):
    base = replace(fedtgp, options={k: v for k, v in fedtgp.options.items() if k != "method"})
    axes = axes_of(base, "method=fedproto,fedsa")
    methods = [request_at(base, axes, point, 0).options["method"] for point in points_of(axes)]
    assert methods == ["fedproto", "fedsa"]
    with pytest.raises(pf.UsageError, match="plugin of this option"):
        axes_of(base, "method=fedproto,fedtgp", "tau=1,2")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axes": []}, "no --grid is given"),
        ({"trials": 300}, r"1,200 runs \(2 × 2 points × 300 trials\), expected at most 1,000"),
        ({"figure": "bst"}, "unknown figure 'bst'"),
    ],
)
def test_sweeps_that_can_not_be(fedtgp, changes, said):
    sweep = Sweep(fedtgp, axes_of(fedtgp, "tau=1,2", "lr=0.1,0.2"))
    with pytest.raises(pf.UsageError, match=said):
        check_sweep(replace(sweep, **changes))


def test_one_point_is_said(fedtgp):
    one = check_sweep(Sweep(fedtgp, axes_of(fedtgp, "lr=0.1")))
    assert one == ["the grid has one point: there is nothing to compare it with"]


# --- figures and tables ---------------------------------------------------------------------------


def row(round, test, validation=None, server=None):
    found = {"round": round, "test_accuracy": test, "extra": {}}
    found |= {"validation_accuracy": validation} if validation is not None else {}
    found["extra"] |= {"server_test_accuracy": server} if server is not None else {}
    return Row(found)


def test_the_best_round_is_chosen_on_validation_where_there_is_some():
    rows = [row(0, 0.5, 0.6), row(1, 0.9, 0.7), row(2, 0.7, 0.8), row(3, 0.6, 0.8)]
    found = figure_of(rows, "best")
    assert found == {"value": 0.8, "test": 0.7, "round": 2, "chosen_on": "validation"}
    assert figure_of(rows, "final")["value"] == 0.8
    assert figure_of(rows, "final")["test"] == 0.6
    plain = [row(0, 0.5), row(1, 0.9), row(2, 0.9), row(3, None)]
    assert figure_of(plain, "best") == {"value": 0.9, "test": 0.9, "round": 1, "chosen_on": "test"}
    assert figure_of(plain, "final")["round"] == 2
    assert figure_of(plain, "best-server") is None
    assert figure_of([row(0, 0.5, server=0.3)], "best-server")["value"] == 0.3


def line(point, *values, state="finished"):
    figures = [{"value": v, "test": v - 0.1, "round": 1, "chosen_on": "validation"} for v in values]
    return PointResult(
        {"lr": point},
        [PointRun(n, state, 2, figure=figure) for n, figure in enumerate(figures)],
    )


def test_points_are_sorted_and_the_best_is_whole(tmp_path):
    lines = [line(1, 0.5, 0.7), line(2, 0.99, state="failed"), line(3, 0.8, 0.9)]
    lines += [PointResult({"lr": 4}, [PointRun(0, "failed", error="why"), *line(4, 0.9).runs])]
    results = SweepResult("best", lines)
    assert [one.point["lr"] for one in results.lines] == [3, 1, 2, 4]
    assert results.best.point == {"lr": 3}
    assert "chosen on validation samples" in results.words
    assert results.lines[3].state == "1 failed, 1 finished"
    results.write(tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["best"] == {"lr": 3}
    assert found["points"][0]["mean"] == statistics.fmean([0.8, 0.9])
    assert found["points"][0]["test_std"] == pytest.approx(0.05)
    table = [*csv.DictReader((tmp_path / "results.csv").read_text().splitlines())]
    assert len(table) == 7
    assert {r["error"] for r in table} == {"", "why"}


# --- the runs of a grid ---------------------------------------------------------------------------


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def toy_sweep(tmp_path, *texts, method=Scaled, **options):
    base = request_of(method, **options)
    return Sweep(base, axes_of(base, *texts), trials=2, runs=tmp_path / "runs")


@pytest.mark.slow
def test_a_grid_is_its_runs_one_by_one(toys, tmp_path):
    sweep = toy_sweep(tmp_path, "scale=0.5", "lr=0.1,0.2")
    results = start_sweep(sweep, tmp_path / "sweep", at_once=0)
    assert len(results.lines) == 2
    for one in results.lines:
        alone = train(
            Scaled,
            tmp_path / f"alone-{one.point['scale']}-{one.point['lr']}",
            lr=one.point["lr"],
            set={"scale": one.point["scale"]},
            trials=2,
            dry_run=False,
            progress=False,
        )
        rows = [(run.seed, pf.load_run(run.folder).rows) for run in one.runs]
        records = [{**row, "trial": seed} for seed, own in rows for row in without_times(own)]
        assert records == without_times(alone.record)
        assert one.mean("value") == pytest.approx(alone.summary["mean"]["best_test_accuracy"])
        assert one.std("value") == pytest.approx(alone.summary["std"]["best_test_accuracy"])
    means = [one.mean("value") for one in results.lines]
    assert means == sorted(means, reverse=True)
    assert results.chosen_on == "test" and "on test samples" in results.words


def test_from_a_program(toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {**GIVEN, "rounds": 1, "dry_run": False, "runs": "runs", "at_once": 0}
    told = []
    found = pf.sweep(
        "fedproto", grid={"lambda": [0.5, 2]}, out="sweep", follow=told.append, **given
    )
    assert sum(is_round(event) for event in told) == 2
    rows = found.records()
    assert sorted(row["lambda"] for row in rows) == [0.5, 2]
    assert rows[0]["value"] == found.best.mean("value") >= rows[1]["value"]
    assert [pf.load_run(row["folder"]).summary["best_test_accuracy"] for row in rows] == [
        row["value"] for row in rows
    ]
    assert found.folder == Path("sweep") and (tmp_path / "sweep/results.csv").exists()
    told.clear()
    again = pf.sweep(resume="sweep", at_once=0, follow=told.append)
    assert again.records() == rows and not any(is_round(e) for e in told)
    with pytest.raises(pf.UsageError, match="leave --grid out"):
        pf.sweep(resume="sweep", grid={"lambda": [1]})
    with pytest.raises(pf.UsageError, match="contains a comma"):
        pf.sweep("fedproto", grid={"lambda": ["1,2", 3]}, **given)


def test_a_class_of_the_program_is_swept_in_it(toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {**GIVEN, "rounds": 1, "dry_run": False}
    x = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32)
    given |= {"dataset": (x, np.arange(40) % 4), "clients": 2}
    found = pf.sweep(Scaled, grid={"scale": [1, 2]}, runs=tmp_path, out="sweep", **given)
    assert [line.state for line in found.lines] == ["finished"] * 2


@pytest.mark.always
@pytest.mark.slow
def test_interrupted_and_gone_on_with_the_table_is_the_same(toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # An installed method, because a resume reads it from the sweep file.
    sweep = toy_sweep(tmp_path, "lambda=0.5,1", method="fedproto", models="toy1")
    whole = start_sweep(replace(sweep, runs=tmp_path / "whole"), tmp_path / "one", at_once=0)
    with pytest.raises(Halted):
        start_sweep(sweep, tmp_path / "two", at_once=0, follow=Halting(1))
    for rounds in (2, 3):
        with pytest.raises(Halted):
            resume_sweep(tmp_path / "two", at_once=0, follow=Halting(rounds))
    told = []
    again, results = resume_sweep(tmp_path / "two", at_once=0, follow=told.append)
    assert again.values() == sweep.values()
    new = [e for e in told if is_round(e)]
    assert len(new) == 8 - 1 - 2 - 3
    assert figures(results) == figures(whole)


def figures(results):
    return [(one.point, one.state, [run.figure for run in one.runs]) for one in results.lines]


def test_its_runs_are_a_group_for_trackers(toys, tmp_path):
    groups = []

    class Groups:
        @pf.hookimpl
        def open_run(self, run):
            groups.append(run.group)

        @pf.hookimpl
        def log_round(self, row):
            pass

    sweep = toy_sweep(tmp_path, "lr=0.1,0.2", track=["groups"])
    base = replace(sweep.base, extra={**sweep.base.extra, ("tracker", "groups"): Groups})
    start_sweep(replace(sweep, base=base, trials=1), tmp_path / "my-sweep", at_once=0)
    assert groups == ["my-sweep"] * 2


@pytest.mark.slow
def test_a_failing_cell_is_told_and_the_others_are_done(toys, tmp_path):
    results = start_sweep(toy_sweep(tmp_path, "fails=-1,1"), tmp_path / "sweep", at_once=0)
    good, bad = results.lines
    assert (good.state, bad.state) == ("finished", "2 failed")
    assert results.best is good
    assert "so it was asked for" in bad.runs[0].error and bad.runs[0].folder.is_dir()


def test_a_value_out_of_range_is_found_before_anything_is_made(toys, tmp_path):
    with pytest.raises(pf.UsageError, match=r"scale=-1 · seed 0 \(and of 1 more\)"):
        start_sweep(toy_sweep(tmp_path, "scale=1,-1"), tmp_path / "sweep", at_once=0)
    assert not (tmp_path / "sweep").exists()
    assert not [*tmp_path.glob("runs/*/config.json")]


def test_a_figure_that_no_run_will_have_is_found_before_anything_is_trained(toys, tmp_path):
    sweep = replace(toy_sweep(tmp_path, "scale=1,2"), figure="best-server")
    with pytest.raises(pf.UsageError, match="no server accuracy") as caught:
        start_sweep(sweep, tmp_path / "sweep", at_once=0)
    assert "--figure best" in caught.value.do and not (tmp_path / "sweep").exists()
    with RunBatch(tmp_path, at_once=0) as batch:
        assert batch.check_all([wanted("a", "fedpkd", public=12)])[0].scores_server
        unscored = wanted("a", "fedpkd", public=12, eval_server=False)
        assert not batch.check_all([unscored])[0].scores_server


def test_a_plan_trains_nothing(toys, tmp_path):
    tried = plan_sweep(toy_sweep(tmp_path, "rounds=1,4"), at_once=0)
    assert [one.steps for one in tried[::2]] == [tried[0].steps, 4 * tried[0].steps]
    assert tried[2].seconds > tried[0].seconds > 0
    assert not [*tmp_path.glob("**/metrics.jsonl")]


def test_folders_that_are_in_use(toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = toy_sweep(tmp_path, "lambda=0.5,1", method="fedproto", rounds=1, models="toy1")
    start_sweep(sweep, tmp_path / "sweep", at_once=0)
    with pytest.raises(pf.UsageError, match="is the folder of this sweep") as caught:
        start_sweep(sweep, tmp_path / "sweep", at_once=0)
    assert "--resume" in caught.value.do
    with pytest.raises(pf.UsageError, match="is the folder of another sweep"):
        start_sweep(replace(sweep, trials=1), tmp_path / "sweep", at_once=0)
    (tmp_path / "other").mkdir()
    for left in (".lock", "sweep.toml.part"):  # by a killed sweep
        (tmp_path / "other" / left).touch()
    check_new_folder(tmp_path / "other", sweep)
    (tmp_path / "other/file").touch()
    with pytest.raises(pf.UsageError, match="is in use"):
        start_sweep(sweep, tmp_path / "other", at_once=0)
    with pytest.raises(pf.UsageError, match=r"not the folder of a sweep \(it has no sweep.toml\)"):
        resume_sweep(tmp_path / "other", at_once=0)
    (tmp_path / "sweep/results.json").unlink()
    (tmp_path / "sweep/results.json").mkdir()
    with pytest.raises(pf.UsageError, match=r"--resume .*: results\.json is a folder"):
        resume_sweep(tmp_path / "sweep", at_once=0)


def test_the_file_of_a_sweep_says_what_it_is(fedtgp, tmp_path):
    options = {**fedtgp.options, "transforms": ["quantise"], "use": {"inference": "local"}}
    options["options"] = {"fedtgp": {"tau": "7"}, "partition": {"beta": 0.3}}
    base = replace(fedtgp, options=options)
    axes = axes_of(base, "lambda=1,2", "lr=0.001,0.1", "batch-size=8,64")
    sweep = Sweep(base, axes, trials=3, runs=tmp_path)
    write_sweep(tmp_path, sweep)
    again = load_sweep(tmp_path)
    assert again.values() == sweep.values()
    assert again.axes == sweep.axes and again.seeds == [0, 1, 2]
    assert again.base.options["use"] == {"inference": "local"}
    assert again.base.options["options"]["fedtgp"] == {"tau": "7"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = [", "sweep.toml is not valid TOML"),
        ('method = "fedtgp"', "'sweep' is missing"),
        ('[sweep]\ntrials = "x"\n[grid]', "sweep.toml: "),
        ('methd = "fedtgp"\n[sweep]\ntrials = 1\n[grid]', "unknown option in the options: 'methd'"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, text, said):
    (tmp_path / "sweep.toml").write_text(text)
    with pytest.raises(pf.UsageError) as caught:
        load_sweep(tmp_path)
    assert said in caught.value.what and "sweep.toml" in caught.value.what


def test_a_sweep_is_resumed_where_it_was_started(fedtgp, tmp_path, monkeypatch):
    """Its options may have relative paths."""
    sweep = Sweep(fedtgp, axes_of(fedtgp, "tau=1,2"), where=tmp_path)
    with pytest.raises(pf.UsageError, match="was started in"):
        check_same_place(sweep)
    monkeypatch.chdir(tmp_path)
    check_same_place(sweep)


def test_a_folder_that_is_new(fedtgp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(fedtgp, axes_of(fedtgp, "tau=1,2"))
    first = new_folder(sweep)
    assert first.parent == Path("runs/sweeps")
    first.mkdir(parents=True)
    assert new_folder(sweep) != first, "within one second too"


CONSENT = """
import protofl as pf
from torch.nn.functional import cross_entropy

class Opens:
    "It opens what only the user may allow."

    class Config(pf.Config):
        opens: bool = pf.Field(False, description="open it", consent=True)
        scale: float = pf.Field(1.0, gt=0, description="factor of the loss")

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        return {"ce": client.config.scale * cross_entropy(output.logits, batch.y)}
"""


def test_what_only_the_user_may_allow_is_said_again(toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opens.py").write_text(CONSENT)
    base = request_of("opens.py:Opens", rounds=1, set={"opens": True})
    sweep = Sweep(base, axes_of(base, "scale=1,2"), runs=tmp_path / "runs")
    whole = start_sweep(sweep, tmp_path / "sweep", at_once=0)
    with pytest.raises(pf.UsageError, match="only you may allow it"):
        resume_sweep(tmp_path / "sweep", at_once=0)
    with pytest.raises(pf.UsageError, match="differs from the run's"):
        resume_sweep(tmp_path / "sweep", said=["opens.opens=false"], at_once=0)
    again = resume_sweep(tmp_path / "sweep", said=["opens.opens=true"], at_once=0)[1]
    assert figures(again) == figures(whole)


def test_a_run_that_diverged_is_not_trained_again(tmp_path, toys):
    base = request_of("fedproto", models="toy1", rounds=2)
    sweep = Sweep(base, axes_of(base, "lr=0.1,1e30"), runs=tmp_path / "runs")
    told = []
    results = start_sweep(sweep, tmp_path / "sweep", at_once=0, follow=told.append)
    (lost,) = (line for line in results.lines if float(line.point["lr"]) == 1e30)
    assert lost.state == "failed" and "NaN" in lost.runs[0].error
    folders = [e.outcome.folder for e in told if isinstance(e, events.RunEnded)]
    assert lost.runs[0].folder in folders
    told.clear()
    _, again = resume_sweep(tmp_path / "sweep", at_once=0, follow=told.append)
    started = [event.batch_run.name for event in told if isinstance(event, events.RunStarted)]
    assert started == ["lr=1e+30"]
    assert not [event for event in told if isinstance(event, events.OfRun)]
    (lost,) = (line for line in again.lines if float(line.point["lr"]) == 1e30)
    assert lost.state == "failed" and "NaN" in lost.runs[0].error
    assert len(again.lines) == 2 and again.best


def test_toml_is_written_as_it_is_read():
    values = {
        "text": 'a "quoted" \\ word\nλ',
        "numbers": [1, 2.5, -3],
        "yes": True,
        "table": {"plain": 1, "with.dot": "x", "umläut": []},
    }
    assert parse_toml(to_toml(values)) == values
