"""Tests of multi-label data and regressions as a user types them, from data to scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import metrics as theirs
from slowness import quick

import protofl as pf

RUNS = {
    "diabetes": "--models mlp --set models.only=mlp1 --dataset diabetes",
    "digits-pairs": "--models cnn4 --dataset digits-pairs --subset 200 --clients 3",
}
USUAL = "--rounds 2 --feature-dim 16 --backend local --no-dry-run --keep last"
SCORE = {"diabetes": "R²", "digits-pairs": "exact matches"}
METRICS = {"diabetes": ("mae", "r2"), "digits-pairs": ("map", "label-f1")}


def run(cli, data_dir, name, method, out):
    words = [*RUNS[name].split(), *USUAL.split(), "--data-dir", data_dir, "--out", out]
    result = cli("run", method, *words)
    assert result.exit_code == 0, result.output
    return result.output


def of_clients(name):
    """Return scikit-learn's figures of the predictions of each client, and of all together."""
    record = pf.load_run("a")
    data, split = record.plan.data, record.plan.split(0)
    each = {}
    for client in range(split.num_clients):
        rows = split.test(client)
        if record.plan.data.task.name == "regression":
            raw = theirs_raw()[rows.numpy()]
            each[client] = data.targets[rows, 0], record.predict(client, raw)
        else:
            each[client] = data.targets[rows], record.predict(client, data.x[rows].numpy())
    return record, each


def theirs_raw():
    from sklearn.datasets import load_diabetes

    return load_diabetes(scaled=False).data.astype(np.float32)


def test_figures_of_a_regression_are_those_of_scikit_learn(cli, data_dir):
    output = run(cli, data_dir, "diabetes", "fedavg", "a")
    assert "regression of progression" in output
    assert "R² " in output and "accuracy" not in output.partition("majority guess")[0]
    record, each = of_clients("diabetes")
    row = record.rows[-1]
    assert len(each) == 5
    for client, (y, guess) in each.items():
        figures = {name: row.metrics[name]["clients"][str(client)] for name in ("mae", "r2")}
        assert figures["mae"] == pytest.approx(theirs.mean_absolute_error(y, guess), rel=1e-4)
        assert figures["r2"] == pytest.approx(theirs.r2_score(y, guess), abs=1e-4)
    y, guess = (np.concatenate(part) for part in zip(*each.values(), strict=True))
    assert row.test_accuracy == pytest.approx(theirs.r2_score(y, guess), abs=1e-5)
    assert row.metrics["mae"]["all"] == pytest.approx(theirs.mean_absolute_error(y, guess))


def test_figures_of_labels_are_those_of_scikit_learn(cli, data_dir):
    output = run(cli, data_dir, "digits-pairs", "fedavg", "a")
    assert "10 labels" in output
    record, each = of_clients("digits-pairs")
    y, guess = (np.concatenate(part) for part in zip(*each.values(), strict=True))
    row = record.rows[-1]
    assert row.test_accuracy == pytest.approx(theirs.accuracy_score(y, guess))
    assert record.config["data"]["task"] == "multilabel"
    occurs = (y.sum(0) + guess.sum(0)) > 0
    wanted = theirs.f1_score(y[:, occurs], guess[:, occurs], average="macro", zero_division=0)
    assert row.metrics["label-f1"]["all"] == pytest.approx(wanted)


@pytest.mark.parametrize("name", quick(RUNS, "diabetes"))
def test_compare_report_export_and_score(name, cli, data_dir, tmp_path):
    for method in ("fedavg", "local"):
        run(cli, data_dir, name, method, method)
    lines = pf.compare(["fedavg", "local"], baseline="local").lines()
    figures = {line["figure"] for line in lines}
    assert {"final", *METRICS[name]} <= figures
    assert ("gini" in figures) == (name != "diabetes")  # R² may be negative
    shown = " ".join(cli("compare", "fedavg", "local", "--baseline", "local").output.split())
    assert f": test {SCORE[name]} (%)" in shown and "accuracy" not in shown
    for runs in (["fedavg"], ["fedavg", "local"]):
        file = tmp_path / f"page{len(runs)}.html"
        assert cli("report", *runs, "--out", file).exit_code == 0
        page = file.read_text(encoding="utf-8")
        assert f"Final test {SCORE[name]}" in page and f"test {SCORE[name]} (%)" in page
        for words in ("accuracy (%)", "Accuracy", "test accuracy", "frequent class", "classes at"):
            assert words not in page, words
    exported = cli("export", "fedavg", "client.pt2", "--client", "1")
    assert exported.exit_code == 0, exported.output
    record = pf.load_run("fedavg")
    raw = theirs_raw()[:3] if name == "diabetes" else record.plan.data.x[:3].numpy()
    np.save("new.npy", raw)
    scored = cli("score", "client.pt2", "new.npy", "--trust-pickle", "--json")
    assert scored.exit_code == 0, scored.output
    lines = json.loads(scored.stdout)["samples"]
    predicted = record.predict(1, raw)
    if name == "diabetes":
        numbers = [float(line["number"]) for line in lines]
        assert numbers == pytest.approx(predicted.tolist(), rel=1e-3)
        assert 25 < numbers[0] < 350
    else:
        names = record.plan.data.outputs
        wanted = [", ".join(names[n] for n in row.nonzero().flatten()) for row in predicted]
        assert [line["labels"] for line in lines] == wanted
    table = cli("score", "client.pt2", "new.npy", "--trust-pickle").output
    assert ("number" if name == "diabetes" else "labels") in table


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_new_labelled_data(name, cli, data_dir):
    """`protofl evaluate` on all samples gives scikit-learn's figures of the predictions."""
    run(cli, data_dir, name, "fedavg", "fedavg")
    record = pf.load_run("fedavg")
    data = record.plan.data
    raw = theirs_raw() if name == "diabetes" else data.x.numpy()
    np.savez("new.npz", x=raw[:50], y=data.targets[:50].numpy())
    result = cli("evaluate", "fedavg", "new.npz", "--client", 0, "--json")
    assert result.exit_code == 0, result.output
    overall = json.loads(result.output)["overall"]
    predicted, y = record.predict(0, raw[:50]), data.targets[:50]
    if name == "diabetes":
        assert overall["accuracy"] == pytest.approx(theirs.r2_score(y, predicted), abs=1e-5)
        assert overall["mae"] == pytest.approx(theirs.mean_absolute_error(y, predicted), rel=1e-5)
    else:
        assert overall["accuracy"] == pytest.approx(theirs.accuracy_score(y, predicted))
    assert SCORE[name] in cli("evaluate", "fedavg", "new.npz", "--client", 0).output


def saved(name, test_shift=0.0, **options):
    """Write a table with two outputs; the test rows can be changed."""
    chance = np.random.default_rng(0)
    x = chance.normal(size=(80, 4)).astype(np.float32)
    y = (x @ chance.normal(size=(4, 3)) > 0).astype(np.int64)
    if options.get("task") == "regression":
        y = 10 * x[:, 0] + 50
    x[60:] += test_shift
    y[60:] = y[60:][::-1] if test_shift else y[60:]
    site = np.tile(np.arange(4), 20)
    np.savez(name, x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:], site=site)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_an_npz_file_and_no_leak_of_test_rows(task, cli, data_dir):
    """Other test rows change no weight of a client."""
    states = []
    for number, shift in enumerate((0.0, 5.0)):
        saved("data.npz" if not number else "other.npz", shift, task=task)
        file = "data.npz" if not number else "other.npz"
        more = ["--set", "dataset.offset=50", "--set", "dataset.scale=10"] * (task == "regression")
        words = ["--models", "mlp", "--set", f"dataset.task={task}", "--set", "dataset.by=site"]
        words += [*more, *USUAL.split(), "--data-dir", data_dir, "--out", f"r{number}"]
        result = cli(
            "run", "fedavg", "--dataset", f"npz:{file}", *words, "--set", "models.only=mlp1"
        )
        assert result.exit_code == 0, result.output
        states.append(pf.load_run(f"r{number}").global_state())
    assert states[0].keys() == states[1].keys()
    assert all((states[0][key] == states[1][key]).all() for key in states[0])


def test_bad_labels_have_one_sentence(cli, data_dir):
    saved("data.npz")
    usual = ["--models", "mlp", "--dataset", "npz:data.npz", "--data-dir", data_dir]
    result = cli("run", "local", *usual)
    assert result.exit_code == 2 and "dataset.task=multilabel" in " ".join(result.output.split())
    result = cli("run", "local", *usual, "--set", "dataset.task=regression")
    assert result.exit_code == 2
    assert "regression takes one number for each sample" in " ".join(result.output.split())
    more = ["--set", "dataset.task=multilabel", "--set", "dataset.scale=3"]
    result = cli("run", "local", *usual, *more)
    assert result.exit_code == 2 and "scale=3.0 is for regression" in result.output
    more = ["--set", "dataset.task=multilable"]
    result = cli("run", "local", *usual, *more)
    assert result.exit_code == 2 and "'multilabel'" in result.output


def test_the_split_is_shown_in_the_words_of_the_task(cli, data_dir):
    shown = " ".join(
        cli("partition", "show", "--dataset", "diabetes", "--data-dir", data_dir).output.split()
    )
    record = run(cli, data_dir, "diabetes", "local", "a")
    guess = next(line for line in record.splitlines() if "majority guess" in line).split()[-1]
    assert "ranges of the number of a client" in shown
    assert f"majority guess {float(guess[:-1]):.1f}% R²" in shown
