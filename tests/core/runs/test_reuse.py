"""Tests of run reuse: a requested run is found, resumed or started, but never trained twice."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from runtime_toys import GIVEN, train, without_times
from torch.nn.functional import cross_entropy
from written_records import seal

import protofl as pf
from protofl.runs.lifecycle.lifecycle import start
from protofl.runs.request.request import Request, read_request
from protofl.runs.resume.reuse import find, run_or_reuse
from protofl.system.files.lock import folder_lock
from protofl.system.options.parsing import parse_options
from protofl_workbench.recorded.recorded_run import run_of
from protofl_workbench.sweeps.sweep import as_typed


def ask(method="fedproto", **options):
    return read_request(as_typed({**GIVEN, "method": method, "dry_run": False, **options}))


class Log(list):
    """A log of trained rounds and notes."""

    def __call__(self, event):
        if isinstance(event, pf.events.RoundDone):
            self.append((event.row["trial"], event.row["round"]))
        if isinstance(event, pf.events.Note):
            self.append(event.text)

    @property
    def rounds(self):
        return [each for each in self if isinstance(each, tuple)]

    def said(self, words):
        return [line for line in self if words in line]


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def runs(tmp_path, toys):
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def long(tmp_path_factory, made):
    """Train three trials of six rounds from seed 5, evaluated every second round."""
    from runtime_toys import install

    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        options = {"rounds": 6, "trials": 3, "seed": 5, "eval_every": 2, "progress": False}
        folder = tmp_path_factory.mktemp("long") / "run"
        return train("fedproto", folder, **options).folder


def same_run(run, folder, **options):
    """Check that a run, or part of one, equals a separately trained run."""
    folder_lock = train("fedproto", folder, progress=False, **options)
    assert without_times(run.rows) == without_times(folder_lock.record)
    assert run.summary == folder_lock.summary
    assert run.accuracies == folder_lock.client_accuracies
    run, its = run_of(run), pf.load_run(folder_lock.folder)
    for key in ("seed", "trials", "rounds", "options", "data"):
        assert run.config[key] == its.config[key]
    for trial in its.trials:
        assert run.split(trial).hash == its.split(trial).hash
        assert run.split(trial).train(1).tolist() == its.split(trial).train(1).tolist()
        assert run.split(trial).test_counts.tolist() == its.split(trial).test_counts.tolist()


def test_a_new_run_has_a_name_that_says_what_it_is(runs, log):
    run = run_or_reuse(ask(), runs, log)
    assert run.folder.parent == runs and log.rounds == [(0, 0), (0, 1)]
    assert run.folder.name == f"fedproto-toy-tiny-s0-{run.identity[:8]}"
    assert run.finished and run.summary
    assert {p.name for p in runs.iterdir() if p.is_dir()} == {".once", run.folder.name}
    assert not [*(runs / ".once").iterdir()]


def test_a_finished_run_is_not_repeated(runs, log):
    first = run_or_reuse(ask(), runs)
    before = {p: p.stat().st_mtime_ns for p in first.folder.rglob("*")}
    again = run_or_reuse(ask(), runs, log)
    assert again.folder == first.folder and not log.rounds
    assert log.said("has this run already") and before == {
        p: p.stat().st_mtime_ns for p in first.folder.rglob("*")
    }
    assert again.rows == first.rows and again.summary == first.summary
    assert find(ask(), runs).folder == first.folder
    assert find(ask(lr=0.2), runs) is None


def test_from_a_program(runs):
    given = {**GIVEN, "reuse": runs, "progress": False, "dry_run": False}
    first = pf.run("fedproto", **given)
    follow = Log()
    again = pf.run("fedproto", **given | {"progress": follow})
    assert again.folder == first.folder and not follow.rounds
    assert (again.record, again.summary) == (first.record, first.summary)
    assert again.client_accuracies == first.client_accuracies


def test_it_is_found_in_folders_below_and_under_any_name(runs, log):
    first = run_or_reuse(ask(), runs)
    (runs / "a/b").mkdir(parents=True)
    first.folder.rename(runs / "a/b/other")
    assert run_or_reuse(ask(), runs, log).folder == runs / "a/b/other"
    assert not log.rounds


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "process", "workers": 1},
        {"client_store": "disk"},
        {"checkpoint_every": 2},
        {"keep": "last"},
        {"dry_run": True},
        {"min_clients": 2},
        {"lr": 0.1, "seed": 0, "clip": 0},
        {"set": {"fedproto.distance": "l2"}},  # its default
    ],
)
def test_what_concerns_the_machine_alone_is_the_same_run(made, runs, log, options):
    shutil.copytree(made.folder, runs / "run")
    usual = {"rounds": 3, "eval_every": 2, "trials": 2}
    assert find(ask(**{**usual, **options}), runs, log), log


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.2},
        {"seed": 1},
        {"batch_size": 7},
        {"method": "fedtgp"},
        {"models": "toy1"},
        {"partition": "dirichlet"},
        {"set": {"fedproto.lambda": 2.0}},
        {"with": "quantise"},
        {"eval_every": 1},
        {"eval_clients": "participants"},
        {"metrics": "macro-f1,ece"},
        {"measure": "flops"},
        {"rounds": 4},
        {"trials": 3},
        {"server_threads": 2},
        {"hold_split": True},
        {"drop": ["local_loss.align"]},
        {"participation": 0.5},
    ],
)
def test_what_changes_numbers_or_figures_is_another_run(made, runs, options):
    shutil.copytree(made.folder, runs / "run")
    usual = {"rounds": 3, "eval_every": 2, "trials": 2}
    assert find(ask(**usual), runs)
    assert find(ask(**{**usual, **options}), runs) is None


@pytest.mark.slow
def test_fewer_rounds_and_one_trial_of_a_longer_run(long, runs, log, tmp_path):
    """Trial 1 of seed 5 equals a run with seed 6; its first four rounds equal a run of four."""
    shutil.copytree(long, runs / "long")
    options = {"rounds": 4, "seed": 6, "eval_every": 2}
    run = run_or_reuse(ask(**options), runs, log)
    assert run.folder == runs / "long" and not log.rounds
    same_run(run, tmp_path / "alone", **options)
    two = run_or_reuse(ask(rounds=6, seed=6, trials=2, eval_every=2), runs, log)
    assert not log.rounds and two.trials == [0, 1]
    same_run(two, tmp_path / "two", rounds=6, seed=6, trials=2, eval_every=2)
    with pytest.raises(pf.UsageError, match="has kept round 6 as the last"):
        run_of(run).model(0, "last")
    model, its = (
        run_of(two).model(2, "last", 1),
        pf.load_run(tmp_path / "two").model(2, "last", 1),
    )
    assert all((a == b).all() for a, b in zip(model.parameters(), its.parameters(), strict=True))


@pytest.mark.slow
def test_a_part_of_a_part(long, toys):
    run = pf.load_run(long)
    assert run.part(range(3), 6).rows == run.rows and run.part(range(3), 6).summary == run.summary
    part = run.part(range(1, 3), 4).part(range(1, 2), 2)
    assert part.config["seed"] == 7 and part.rounds_done == 2
    rows = [row for row in run.rows if row["trial"] == 2 and row["round"] < 2]
    assert part.rows == [{**row, "trial": 0} for row in rows]


@pytest.mark.slow
def test_a_round_that_would_have_been_evaluated_and_was_not(long, runs, log):
    """With --eval-every 2, a run of five rounds evaluates round 5; a run of six does not."""
    shutil.copytree(long, runs / "long")
    options = {"rounds": 5, "seed": 5, "eval_every": 2}
    assert find(ask(**options), runs) is None
    run = run_or_reuse(ask(**options), runs, log)
    assert run.folder != runs / "long" and log.rounds == [(0, n) for n in range(5)]


@pytest.mark.always
@pytest.mark.slow
def test_a_longer_run_goes_on(runs, log, tmp_path):
    first = run_or_reuse(ask(rounds=2), runs)
    run = run_or_reuse(ask(rounds=5, trials=2), runs, log)
    assert run.folder == first.folder
    assert log.rounds == [(0, 2), (0, 3), (0, 4), *((1, n) for n in range(5))]
    same_run(run, tmp_path / "alone", rounds=5, trials=2)
    # The shorter run can still be requested, without training.
    log.clear()
    short = run_or_reuse(ask(rounds=2), runs, log)
    assert not log.rounds and without_times(short.rows) == without_times(first.rows)
    assert short.summary == first.summary


class Killed(BaseException):
    pass


def kill(at):
    def stop(event):
        if isinstance(event, pf.events.RoundStarted) and event.round == at:
            raise Killed

    return stop


@pytest.mark.slow
def test_an_interrupted_run_goes_on(runs, log, tmp_path):
    with pytest.raises(Killed):
        run_or_reuse(ask(rounds=5), runs, kill(3))
    assert find(ask(rounds=5), runs) is None
    run = run_or_reuse(ask(rounds=5), runs, log)
    assert log.rounds == [(0, 3), (0, 4)]
    same_run(run, tmp_path / "alone", rounds=5)


@pytest.mark.always
@pytest.mark.slow
def test_a_run_of_many_rounds_that_was_stopped_counts_for_those_it_has(runs, log, tmp_path):
    with pytest.raises(Killed):
        run_or_reuse(ask(rounds=1000), runs, kill(3))
    run = run_or_reuse(ask(rounds=2), runs, log)
    assert not log.rounds and run.finished
    same_run(run, tmp_path / "alone", rounds=2)
    same_run(run_or_reuse(ask(rounds=3), runs, log), tmp_path / "three", rounds=3)
    assert not log.rounds
    run_or_reuse(ask(rounds=4), runs, log)
    assert log.rounds == [(0, 3)]


def test_a_run_killed_between_its_last_round_and_its_end_is_finished(runs, log, tmp_path):
    def stop(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        run_or_reuse(ask(rounds=3), runs, stop)
    run = run_or_reuse(ask(rounds=3), runs, log)
    assert not log.rounds
    alone = train("fedproto", tmp_path / "alone", rounds=3, progress=False)
    assert run.summary == pf.load_run(run.folder).summary == alone.summary


def test_a_killed_run_that_had_begun_nothing(runs, log):
    with pytest.raises(Killed):
        run_or_reuse(ask(), runs, kill(0))
    assert run_or_reuse(ask(), runs, log).finished
    assert len([p for p in runs.iterdir() if p.name[0] != "."]) == 1


@pytest.mark.slow
def test_a_damaged_run_is_left_alone(runs, log):
    first = run_or_reuse(ask(rounds=2), runs)
    for name in ("manifest.json", "before.json"):
        (first.folder / "checkpoint" / name).write_text("{")
    run = run_or_reuse(ask(rounds=3), runs, log)
    assert run.folder.name == f"{first.folder.name}-2" and run.finished
    first.folder.joinpath("metrics.jsonl").write_text("[\n")
    assert run_or_reuse(ask(rounds=3), runs, log).folder == run.folder


@pytest.mark.slow
def test_a_schedule_over_the_rounds_makes_their_number_part_of_it(runs, log):
    shorter = run_or_reuse(ask(rounds=2, lr_schedule="cosine"), runs)
    longer = run_or_reuse(ask(rounds=4, lr_schedule="cosine"), runs, log)
    assert longer.folder != shorter.folder and len(log.rounds) == 4
    assert run_or_reuse(ask(rounds=2, lr_schedule="cosine"), runs).folder == shorter.folder
    over = {"lr_schedule": "cosine", "set": {"schedule.over": 4}}
    first = run_or_reuse(ask(rounds=2, **over), runs)
    assert run_or_reuse(ask(rounds=4, **over), runs).folder == first.folder


@pytest.mark.slow
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_method_that_asks_for_the_rounds_has_them_in_it(runs, log, dry_run):
    """fedkd's hooks read the number of rounds; the dry run of either run detects this."""
    first = run_or_reuse(ask("fedkd", rounds=2, dry_run=dry_run), runs)
    assert first.config.get("depends_on") == (["rounds"] if dry_run else None)
    assert find(ask("fedkd", rounds=1), runs) is None
    assert run_or_reuse(ask("fedkd", rounds=3), runs, log).folder != first.folder
    assert len(log.rounds) == 3
    assert find(ask("fedkd", rounds=2), runs).folder == first.folder


def test_a_variant_is_another_run_though_its_options_are_the_same(runs):
    """``official`` with the options of ``paper`` may differ from ``paper``, now or later."""
    paper = run_or_reuse(ask(), runs).config["options"]["fedproto"]
    given = {f"fedproto.{key}": value for key, value in paper.items()}
    assert find(ask(set=given), runs)
    assert find(ask(set=given | {"fedproto.variant": "official"}), runs) is None


def test_runs_that_observe(runs, log):
    """Observations do not change results, but a run that observed less is not reused."""
    plain = run_or_reuse(ask(), runs)
    seen = run_or_reuse(ask(observe="prototypes", observe_every=2), runs, log)
    assert seen.folder != plain.folder and seen.identity == plain.identity
    assert log.said("it was made without --observe prototypes")
    assert without_times(seen.rows) == without_times(plain.rows)
    shutil.rmtree(plain.folder)
    for given in ({}, {"observe": "prototypes", "observe_every": 2}):
        assert find(ask(**given), runs).folder == seen.folder
    for given in (
        {"observe": "prototypes"},
        {"record_uploads": True},
        {"record_predictions": "last"},
    ):
        assert find(ask(**given), runs) is None


# --- records that differ --------------------------------------------------------------------------


def edit(folder, change):
    for file in (folder / "config.json", *(folder / "checkpoint").glob("config*.json")):
        values = json.loads(file.read_text())
        change(values)
        file.write_text(json.dumps(values))


def test_code_that_has_changed_is_told_and_not_reused(runs, log):
    first = run_or_reuse(ask(), runs)

    def change(values):
        values["plugins"][0]["code"] = "0" * 12

    edit(first.folder, change)
    second = run_or_reuse(ask(), runs, log)
    assert second.folder != first.folder and len(log.rounds) == 2
    assert log.said(f"{first.folder} is not reused: the code of method fedproto has changed")


OWN = """
class Own:
    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        return {"ce": 1 * cross_entropy(output.logits, batch.y)}
"""


def test_a_comment_does_not_make_another_run(runs, log, tmp_path):
    file = tmp_path / "own_method.py"
    source = f"import protofl as pf\nfrom torch.nn.functional import cross_entropy\n{OWN}"
    file.write_text(source)
    pf.trust_code(file)
    classes = {"method/own": f"{file}:Own"}
    first = run_or_reuse(ask("own", classes=classes), runs)
    file.write_text(source.replace("class Own:", 'class Own:\n    """Cross-entropy."""  # mended'))
    again = run_or_reuse(ask("own", classes=classes), runs, log)
    assert again.folder == first.folder and not log.rounds
    file.write_text(source.replace("1 *", "2 *"))
    other = run_or_reuse(ask("own", classes=classes), runs, log)
    assert other.folder != first.folder and len(log.rounds) == 2
    assert log.said("is not reused: the code of method own has changed")


def test_code_that_was_not_recorded_is_told_and_reused(runs, log):
    first = run_or_reuse(ask(), runs)

    def forget(values):
        for plugin in values["plugins"]:
            plugin.pop("code", None)

    edit(first.folder, forget)
    assert run_or_reuse(ask(), runs, log).folder == first.folder and not log.rounds
    assert log.said("the code of") and log.said("was not recorded")
    assert find(ask(lr=0.2), runs) is None


class Imagines:
    """A method with a generator on the server."""

    needs_generator = True
    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}


class FromFile:
    """A generator with weights from a file."""

    class Config(pf.Config):
        weights: Path = pf.Field(description="the file")

    @pf.hookimpl
    def outline(self, config, data_dir):
        return pf.datasets.Outline(side=8, channels=1)

    @pf.hookimpl
    def open_generator(self, config, device, data_dir):
        return None


def imagines(file, **options):
    given = {**GIVEN, "method": "imagines", "generator": "from-file", "dry_run": False, **options}
    given["set"] = {"generator.weights": str(file)}
    extra = {("method", "imagines"): Imagines, ("generator", "from-file"): FromFile}
    return Request(parse_options(given), extra=extra)


def test_weights_of_a_generator_count_by_what_they_hold(runs, log, tmp_path):
    file, moved = tmp_path / "weights", tmp_path / "moved"
    file.write_bytes(b"one")
    first = run_or_reuse(imagines(file), runs)
    assert first.config["files"] == {"generator.weights": hashlib.sha256(b"one").hexdigest()}
    file.rename(moved)
    assert find(imagines(moved), runs).folder == first.folder
    moved.write_bytes(b"other")
    assert find(imagines(moved), runs) is None, "as the hash says"
    with pytest.raises(pf.UsageError, match=r"generator.weights is not the file"):
        start(
            Request({"rounds": 3}, out=first.folder, resume=True, extra=imagines(file).extra),
            pf.events.ignore,
        )


def test_other_versions_are_told(runs, log):
    first = run_or_reuse(ask(), runs)
    edit(first.folder, lambda values: values["versions"].update(torch="1.0"))
    assert run_or_reuse(ask(), runs, log).folder == first.folder
    assert log.said("torch was 1.0 and is")
    edit(first.folder, lambda values: values["plugins"][0].update(version="0.0.1"))
    assert find(ask(), runs) is None


def test_a_split_that_is_another_now_is_not_reused(runs, log):
    first = run_or_reuse(ask(), runs)
    file = first.folder / "partition.json"
    file.write_text(file.read_text().replace(first.split_record()["hash"], "0" * 64))
    assert find(ask(), runs, log) is None
    assert log.said("the split over clients differs")


def test_clients_that_a_machine_lost(runs, log):
    first = run_or_reuse(ask(), runs)
    lines = (first.folder / "metrics.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), "absent": {"3": "failed"}})
    (first.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert find(ask(), runs, log) is None
    assert log.said("metrics.jsonl is damaged: its content was changed")
    seal(first.folder)
    assert find(ask(), runs, log) is None and log.said("clients were lost in it")
    assert find(ask(on_lost_client="skip"), runs)


# --- concurrent requests --------------------------------------------------------------------------


def test_two_that_want_the_same_run_at_once_train_it_once(runs, monkeypatch):
    # Threads of one process wait for each other already; these two are like two processes.
    monkeypatch.setattr("protofl.runs.resume.reuse.one_run", lambda wait: nullcontext())
    waits, found = threading.Event(), []

    class Meets(Log):
        """Keep the training run in its first round until the other one waits."""

        def __call__(self, event):
            super().__call__(event)
            if self.said("waiting for another process"):
                waits.set()
            assert not self.rounds or waits.wait(60)

    logs = [Meets(), Meets()]

    def want(log):
        found.append(run_or_reuse(ask(rounds=4), runs, log))

    threads = [threading.Thread(target=want, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(log.rounds) for log in logs) == [0, 4]
    assert found[0].folder == found[1].folder
    (waited,) = (log for log in logs if not log.rounds)
    assert waited.said("waiting for another process")


def test_one_waits_for_a_run_that_goes_on_without_it(runs, monkeypatch):
    """The lock of a run that `protofl run --out DIR` started is noticed."""
    monkeypatch.setattr("protofl.runs.resume.reuse.SECONDS", 0.01)
    with pytest.raises(Killed):
        run_or_reuse(ask(rounds=3), runs, kill(2))
    (folder,) = (p for p in runs.iterdir() if p.name[0] != ".")
    log, found = Log(), []
    thread = threading.Thread(target=lambda: found.append(run_or_reuse(ask(rounds=3), runs, log)))
    with folder_lock(folder, "--out"):
        thread.start()
        while not log.said(f"waiting for {folder}"):
            assert thread.is_alive()
            time.sleep(0.01)
        assert not log.rounds
    thread.join()
    assert found[0].folder == folder and log.rounds == [(0, 2)]


def test_one_does_not_wait_for_a_run_with_other_seeds(runs):
    with pytest.raises(Killed):
        run_or_reuse(ask(rounds=3), runs, kill(1))
    (folder,) = (p for p in runs.iterdir() if p.name[0] != ".")
    log = Log()
    with folder_lock(folder, "--out"):
        found = run_or_reuse(ask(rounds=1, seed=1), runs, log)
    assert found.folder != folder and log.rounds == [(0, 0)]


# --- invalid requests -----------------------------------------------------------------------------


def test_a_folder_or_a_mistake_is_refused(runs):
    with pytest.raises(pf.UsageError, match="cannot be combined with --reuse"):
        run_or_reuse(read_request({**GIVEN, "method": "fedproto"}, out=runs / "x"), runs)
    with pytest.raises(pf.UsageError, match="unknown method"):
        run_or_reuse(ask("fedprotto"), runs)
    assert not runs.exists()


@pytest.mark.slow
def test_clients_that_never_train_were_fine_tuned_behind_its_last_round_alone(runs, log):
    """So fewer rounds of a run are not reused. A trial is, and validation selects its round."""
    options = {"unseen": 1, "fine_tune": 1, "validation": 0.25, "trials": 2, "lr": 0.6}
    whole = run_or_reuse(ask(rounds=2, **options), runs, log)
    trained = len(log.rounds)
    assert find(ask(rounds=1, **options), runs) is None
    second = run_or_reuse(ask(rounds=2, seed=1, **options | {"trials": 1}), runs, log)
    assert second.folder == whole.folder and len(log.rounds) == trained == 4
    same_run(second, runs / "alone", rounds=2, seed=1, **options | {"trials": 1})
    split, chosen = run_of(second).split(0), second.summary["validation_selected_round"]
    assert [len(split.validation(c)) for c in range(4)] == split.validation_counts.sum(1).tolist()
    assert (
        split.validation_counts.sum() > 0 and second.summary["unseen"] == second.rows[-1]["unseen"]
    )
    assert pf.read_weights(second.folder, "best", trial=1).round == chosen
    longer = run_or_reuse(ask(rounds=3, **options), runs, log)
    assert longer.folder != whole.folder and log.said("were fine-tuned after")
