"""Tests of ``protofl evaluate``: clients of a run on new labelled data."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import protofl as pf
from protofl.errors import Unknown
from protofl_cli.app import app


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    """A run on hospitals that standardises its rows."""
    folder = tmp_path_factory.mktemp("new-data")
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    hospital = np.array(["north", "south", "east"])[np.arange(len(y)) % 3]
    classes = np.array(["class_0", "class_1", "class_2"])
    np.savez(folder / "own.npz", x_train=x, y_train=y, hospital=hospital, classes=classes)
    options = {"partition": "column:hospital", "rounds": 2, "lr": 0.05, "feature_dim": 16}
    options |= {"local_epochs": 2, "metrics": ["balanced-accuracy"]}
    data = f"npz:{folder / 'own.npz'}"
    own = {"dataset.standardise": True}
    result = pf.run("fedproto", models="mlp", dataset=data, set=own, out=folder / "run", **options)
    return pf.load_run(result.folder), x, y, hospital


def recorded(run, client):
    return run.rows_of(0)[-1]["client_accuracies"][str(client)]


def test_a_client_s_test_rows_give_the_record(wine, tmp_path):
    run, x, y, _ = wine
    rows = run.plan.split(0).test(1).numpy()
    np.savez(tmp_path / "new.npz", x=x[rows], y=y[rows])
    found = run.evaluate(tmp_path / "new.npz", [1])
    [line] = found.clients
    assert line["accuracy"] == pytest.approx(recorded(run, 1))
    assert (line["client"], line["samples"]) == (1, len(rows))
    figure = "balanced-accuracy"
    assert line[figure] == pytest.approx(run.rows_of(0)[-1]["metrics"][figure]["clients"]["1"])


def test_the_diagonal_of_models_and_data_is_the_record(wine):
    run, x, y, _ = wine
    found = run.cross()
    assert found.diagonal().tolist() == [recorded(run, client) for client in range(3)]
    rows = run.plan.split(0).test(2).numpy()
    assert found[0, 2] == (run.predict(0, x[rows]).numpy() == y[rows]).mean()
    assert run.cross([2, 0]).tolist() == found[np.ix_([2, 0], [2, 0])].tolist()
    axes = pf.plots.cross(run).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["east", "north", "south"]
    assert {text.get_text() for text in axes.texts} == {f"{100 * v:.0f}" for v in found.flat}


def test_all_clients_are_evaluated_on_all_samples_without_a_column(wine, tmp_path):
    run, x, y, _ = wine
    np.savez(tmp_path / "new.npz", x_test=x, y_test=y, x_train=x[:0], y_train=y[:0])
    found = run.evaluate(f"npz:{tmp_path / 'new.npz'}")
    assert [line["samples"] for line in found.clients] == [len(y)] * 3
    right = [int((run.predict(c, x).numpy() == y).sum()) for c in range(3)]
    assert [line["correct"] for line in found.clients] == right
    assert found.overall["accuracy"] == pytest.approx(sum(right) / len(y) / 3)
    assert found.overall["client_std"] == pytest.approx(np.std(np.array(right) / len(y)))
    assert found.overall["majority"] == pytest.approx(np.bincount(y).max() / len(y))


def test_each_hospital_is_evaluated_on_its_own_samples(wine, tmp_path):
    run, x, y, hospital = wine
    elsewhere = np.where(np.arange(len(y)) < 7, "west", hospital)
    np.savez(tmp_path / "new.npz", x=x, y=y, hospital=elsewhere)
    found = run.evaluate(tmp_path / "new.npz")
    for client, name in enumerate(["east", "north", "south"]):  # as the partition has them
        rows = elsewhere == name
        right = int((run.predict(client, x[rows]).numpy() == y[rows]).sum())
        line = found.clients[client]
        assert (line["samples"], line["correct"]) == (rows.sum(), right)
    assert any("7 samples" in note and "none of the run's clients" in note for note in found.notes)


def test_an_array_may_number_the_clients(wine, tmp_path):
    run, x, y, _ = wine
    np.savez(tmp_path / "new.npz", x=x, y=y, client=np.where(np.arange(len(y)) < 10, 2, 0))
    found = run.evaluate(tmp_path / "new.npz")
    assert [(line["client"], line["samples"]) for line in found.clients] == [
        (0, len(y) - 10),
        (2, 10),
    ]
    with pytest.raises(pf.UsageError, match="none of the chosen clients has a sample") as error:
        run.evaluate(tmp_path / "new.npz", [1])
    assert error.value.do == ""  # each row is of a client of the run


def test_classes_are_matched_by_name(wine, tmp_path):
    run, x, y, _ = wine
    names = np.array(["class_2", "unused", "class_0", "class_1"])
    swapped = np.array([2, 3, 0])[y]
    np.savez(tmp_path / "a.npz", x=x, y=swapped, classes=names)
    np.savez(tmp_path / "b.npz", x=x, y=y)
    assert run.evaluate(tmp_path / "a.npz").clients == run.evaluate(tmp_path / "b.npz").clients
    names[0] = "class_9"
    np.savez(tmp_path / "a.npz", x=x, y=swapped, classes=names)
    with pytest.raises(Unknown) as error:
        run.evaluate(tmp_path / "a.npz")
    assert "'class_9'" in error.value.what and "class_2" in error.value.near


def test_a_data_set_is_read_raw_and_prepared_as_the_run_s(wine):
    run, x, y, _ = wine
    found = run.evaluate("wine")  # the same rows in another order, standardised by default
    right = [int((run.predict(client, x).numpy() == y).sum()) for client in range(3)]
    assert [line["correct"] for line in found.clients] == right
    with pytest.raises(pf.UsageError, match="holds rows of 30 numbers"):
        run.evaluate("breast-cancer")


def test_mistakes_are_said(wine, tmp_path):
    run, x, y, _ = wine
    np.savez(tmp_path / "a.npz", x=x)
    np.savez(tmp_path / "b.npz", x=x[:, 1:], y=y)
    np.savez(tmp_path / "c.npz", x=x, y=y + 1)
    (tmp_path / "d.csv").write_text("1,2")
    (tmp_path / "e.txt").write_text("1,2")
    for name, words in (
        ("a.npz", "has no labelled samples"),
        ("b.npz", "the data set has rows of 13 numbers"),
        ("c.npz", "unknown class in"),
        ("d.csv", "is a table with named columns, and the data of"),
        ("e.txt", "an .npz file with x and y, a table"),
        ("none.npz", "none.npz"),
    ):
        with pytest.raises(pf.UsageError) as error:
            run.evaluate(tmp_path / name)
        assert words in str(error.value)
    with pytest.raises(pf.UsageError, match="has no client 7"):
        run.evaluate(tmp_path / "a.npz", [7])


def test_the_command(wine, tmp_path):
    run, x, y, _ = wine
    np.savez(tmp_path / "new.npz", x=x, y=y)
    words = ["evaluate", str(run.folder), str(tmp_path / "new.npz"), "--client", "1"]
    done = CliRunner().invoke(app, [*words, "--client", "0"])
    assert done.exit_code == 0, done.output
    assert "majority guess" in done.stdout and "over clients" in done.stdout
    expected = run.evaluate(tmp_path / "new.npz", [0, 1])
    values = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert values["clients"] == [pytest.approx(expected.clients[1])]
    [line, whole] = csv.DictReader(
        io.StringIO(CliRunner().invoke(app, [*words, "--format", "csv"]).stdout)
    )
    assert int(line["correct"]) == expected.clients[1]["correct"] and whole["client"] == "all"


@pytest.mark.slow
def test_a_folder_of_images(tmp_path):
    options = {"rounds": 1, "clients": 2, "partition": "iid", "local_epochs": 1, "subset": 400}
    result = pf.run(
        "fedproto", models="cnn4", dataset="digits-domains", out=tmp_path / "run", **options
    )
    run = pf.load_run(result.folder)
    rows = run.plan.split(0).test(1)
    x, y = run.plan.data.x[rows].numpy(), run.plan.data.y[rows].tolist()
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        place = tmp_path / "new" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{number}.png")
    found = run.evaluate(tmp_path / "new", [1])
    assert found.clients[0]["accuracy"] == pytest.approx(recorded(run, 1))
