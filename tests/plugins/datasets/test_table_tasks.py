"""Tests of csv:FILE for several labels and for numbers."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from sklearn.metrics import r2_score
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_plugins.datasets.table_files import Csv

NUMBER = ("--set", "dataset.task=regression", "--set", "dataset.label=dose")
SEVERAL = ("--set", "dataset.task=multilabel", "--set", "dataset.label=flu,cold")


def write(path, changed=(), mark=","):
    """Write 60 rows of 3 hospitals; ``changed`` are values {(row, column): text}."""
    chance, changed = np.random.default_rng(0), dict(changed)
    lines = [["age", "ward", "hospital", "flu", "cold", "dose"]]
    for row in range(60):
        age, ward = chance.normal(50, 10), "AB"[row % 2]
        values = [f"{age:.1f}", ward, f"H{row % 3}", str(int(age > 50)), str(row % 2)]
        values.append(f"{100 + 3 * age + 10 * (ward == 'A'):.2f}")
        lines.append([changed.get((row, n), v) for n, v in zip(lines[0], values, strict=True)])
    path.write_text("\n".join(mark.join(line) for line in lines) + "\n", encoding="utf-8")
    return path


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, " ".join(result.output.split())


def run(folder, table, *words):
    drop = "dose" if SEVERAL[1] in words else "cold,flu"
    usual = ["--models", "mlp", "--set", "models.only=mlp1", "--rounds", "2", "--keep", "last"]
    usual += ["--set", "dataset.client=hospital", "--set", f"dataset.drop={drop}", "--no-dry-run"]
    usual += ["--data-dir", folder / "data", "--backend", "local", "--out", folder / "run"]
    return command("run", "fedavg", "--dataset", f"csv:{table}", *usual, *words)


@pytest.mark.slow
def test_a_column_of_numbers_from_a_file_to_scores(tmp_path):
    table = write(tmp_path / "a.csv")
    scaled = ("--set", "dataset.offset=250", "--set", "dataset.scale=30")
    code, output = run(tmp_path, table, *NUMBER, *scaled)
    assert code == 0, output
    assert "2 features (1 numeric, 1 category), regression of dose, 3 clients" in output
    recorded = pf.load_run(tmp_path / "run")
    data = recorded.plan.data
    doses = [float(line.split(",")[-1]) for line in table.read_text().splitlines()[1:]]
    assert data.targets.flatten().tolist() == pytest.approx(doses)
    done = recorded.evaluate(table)
    guesses = [recorded.predict(c, table)[c::3] for c in range(3)]
    truth = [np.array(doses)[c::3] for c in range(3)]
    score = r2_score(np.concatenate(truth), np.concatenate(guesses))
    assert done.overall["accuracy"] == pytest.approx(score, abs=1e-5)
    bundle = tmp_path / "client.pt2"
    code, output = command("export", tmp_path / "run", bundle, "--client", "1")
    assert code == 0 and "outputs dose" in output
    words = ["score", bundle, table, "--trust-pickle", "--json"]
    lines = json.loads(CliRunner().invoke(app, [*map(str, words)]).stdout)["samples"]
    predicted = recorded.predict(1, table).tolist()
    assert [float(line["number"]) for line in lines] == pytest.approx(predicted, rel=1e-4)


def test_several_columns_of_labels(tmp_path):
    flags = {(row, "flu"): str(row % 4 == 0) for row in range(60)}
    table = write(tmp_path / "a.csv", flags)
    code, output = run(tmp_path, table, *SEVERAL)
    assert code == 0 and "2 labels, 3 clients" in output, output
    recorded = pf.load_run(tmp_path / "run")
    assert recorded.plan.data.outputs == ["flu", "cold"]
    wanted = [[float(row % 4 == 0), float(row % 2)] for row in range(60)]
    assert recorded.plan.data.targets.tolist() == wanted
    done = recorded.evaluate(table)
    right = [(recorded.predict(c, table)[c::3].numpy() == np.array(wanted)[c::3]).all(1).sum()
             for c in range(3)]  # fmt: skip
    assert [row["correct"] for row in done.clients] == right


@pytest.mark.slow
def test_other_test_rows_change_no_weight(tmp_path):
    states = []
    for shift in (0, 500):
        folder = tmp_path / str(shift)
        folder.mkdir()
        changed = {(row, "dose"): str(row + shift) for row in range(0, 60, 5)}
        lines = write(folder / "a.csv", changed).read_text().splitlines()
        part = ["part", *("test" if row % 5 == 0 else "train" for row in range(60))]
        joined = "\n".join(f"{a},{b}" for a, b in zip(lines, part, strict=True))
        (folder / "a.csv").write_text(joined + "\n")
        scaled = ("--set", "dataset.offset=250", "--set", "dataset.scale=30")
        code, output = run(folder, folder / "a.csv", *NUMBER, *scaled, "--set", "dataset.test=part")
        assert code == 0, output
        states.append(pf.load_run(folder / "run").global_state())
    assert all((states[0][key] == states[1][key]).all() for key in states[0])


@pytest.mark.parametrize(
    ("task", "changed", "words"),
    [
        (NUMBER, {(5, "dose"): ""}, "no label in 1 of 60 rows (column 'dose'), the first in row 6"),
        (NUMBER, {(5, "dose"): "high"}, "'high' in row 6 regression takes a number"),
        (SEVERAL, {(5, "cold"): "2"}, "column 'cold' has '2' in row 6 multilabel takes 0 or 1"),
        (SEVERAL, {(5, "cold"): "maybe"}, "column 'cold' has 'maybe' in row 6"),
        (SEVERAL[:2], {}, "which columns hold the labels?"),
        (NUMBER[:2], {}, "which column holds the numbers?"),
        (("--set", "dataset.label=dose"), {}, "or predict them: --set dataset.task=regression"),
    ],
)  # fmt: skip
def test_bad_labels_have_one_sentence(task, changed, words, tmp_path):
    code, output = run(tmp_path, write(tmp_path / "a.csv", changed), *task)
    assert code == 2 and words in output, output


def test_decimal_commas_of_the_numbers_have_the_remedy(tmp_path):
    commas = {(row, "dose"): f"{row},5" for row in range(60)}
    table = write(tmp_path / "a.csv", commas, mark=";")
    code, output = run(tmp_path, table, *NUMBER)
    assert code == 2 and "a decimal comma" in output and "--set dataset.decimal=," in output


def test_many_whole_numbers_as_classes_get_a_note(tmp_path):
    table = write(tmp_path / "a.csv", {(row, "dose"): str(row % 30) for row in range(60)})
    code, output = run(tmp_path, table, "--set", "dataset.label=dose")
    assert code == 0 and "to predict them as numbers: --set dataset.task=regression" in output


def test_a_diverged_regression_has_the_options_that_help(tmp_path):
    doses = np.random.default_rng(0).uniform(0, 8e6, 60)
    table = write(
        tmp_path / "a.csv", {(row, "dose"): f"{dose:.0f}" for row, dose in enumerate(doses)}
    )
    code, output = run(tmp_path, table, *NUMBER)
    assert code == 1 and "client 0 sent" in output, output
    advice = output[output.index("error:") :]
    assert "which is much for a net" in advice and "--lr" not in advice
    found = re.search(r"--set (dataset.offset=\S+) --set (dataset.scale=[^\s;]+)", advice)
    words = [word for option in found.groups() for word in ("--set", option)]
    code, output = run(tmp_path, table, *NUMBER, *words, "--out", tmp_path / "again")
    assert code == 0, output


def decode(path, **options):
    given = {"path": str(path), "task": "multilabel", "label": "finding"} | options
    return Csv().decode(config=Csv.Config(**given), data_dir=path.parent / "data")


CELLS = ("Mass|Effusion", "Effusion", "", "Mass", "Mass | Nodule", "Effusion", "Mass|Nodule|Edema")


def joined(path, cells=CELLS, mark="|"):
    lines = [f"{n},{cell.replace('|', mark)}" for n, cell in enumerate(cells)]
    path.write_text("\n".join(["age,finding", *lines]) + "\n")
    return path


@pytest.mark.parametrize("mark", ["|", ";", " + "])
def test_several_labels_in_a_cell(tmp_path, mark):
    data = decode(joined(tmp_path / "a.csv", mark=mark), label_separator=mark.strip())
    assert data.outputs == ["Edema", "Effusion", "Mass", "Nodule"]
    rows = ["".join(str(int(v)) for v in row) for row in data.targets.tolist()]
    assert rows == ["0110", "0100", "0000", "0010", "0011", "0100", "1011"]
    data = decode(tmp_path / "a.csv", label_separator=mark.strip(), blank="drop")
    assert len(data.y) == 6 and "1 of 7 rows" in data.note


def test_a_new_file_with_joined_labels_is_evaluated(tmp_path):
    table = joined(tmp_path / "a.csv", CELLS * 4)
    options = {"label": "finding", "label_separator": "|", "task": "multilabel"}
    pf.run(
        "fedavg", models="mlp", dataset=f"csv:{table}", clients=2, rounds=1, keep="last",
        partition="iid", options={"dataset": options, "models": {"only": "mlp1"}},
        progress=False, dry_run=False, data_dir=tmp_path / "d", out=tmp_path / "run",
    )  # fmt: skip
    run = pf.load_run(tmp_path / "run")
    cells = ["Mass", "Effusion|Mass", "", "Edema"]
    new = joined(tmp_path / "new.csv", cells)
    wanted = np.array([[name in cell for name in run.plan.data.outputs] for cell in cells])
    right = [(run.predict(c, new).numpy() == wanted).all(1).sum() for c in range(2)]
    assert [row["correct"] for row in run.evaluate(new).clients] == right
    with pytest.raises(pf.UsageError, match="column 'finding' has the unknown label 'Hernia'"):
        run.evaluate(joined(tmp_path / "new.csv", ["Mass", "Hernia|Mass"]))
    new.write_text("age,view\n1,a\n2,b\n")
    with pytest.raises(pf.UsageError, match="has no column 'finding'"):
        run.evaluate(new)


def test_labels_joined_in_a_cell_are_noted(tmp_path):
    path = joined(tmp_path / "a.csv", [c for c in CELLS if c] + ["Edema|Mass", "Edema|Nodule"])
    note = decode(path, task="classification").note
    assert "joined by '|'" in note and "'dataset.label_separator=|'" in note
    with pytest.raises(pf.UsageError, match=r"'Mass\|Effusion' in row 1") as error:
        decode(path)
    assert "'dataset.label_separator=|'" in error.value.do
    other = joined(tmp_path / "b.csv", ["a|b", "c|d"] * 4)  # names of two classes
    assert "joined" not in decode(other, task="classification").note


def of_flags(path):
    lines = ["1,1,0", "2,-1,1", "3,,0", "4,0,-1", "5,0,1", "6,-1,"]
    path.write_text("\n".join(["age,flu,cold", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("options", "targets", "note"),
    [
        ({"uncertain": "1", "blank": "0"}, "10 11 00 01 01 10", "3 uncertain labels (-1) are"),
        ({"uncertain": "0", "blank": "1"}, "10 01 10 00 01 01", "2 empty labels are read as 1"),
        ({"uncertain": "drop", "blank": "0"}, "10 00 01", "3 of 6 rows"),
        ({"uncertain": "1", "blank": "drop"}, "10 11 01 01", "2 of 6 rows"),
    ],
)
def test_uncertain_and_empty_labels(tmp_path, options, targets, note):
    data = decode(of_flags(tmp_path / "a.csv"), label="flu,cold", **options)
    assert " ".join("".join(str(int(v)) for v in row) for row in data.targets.tolist()) == targets
    assert note in data.note


def test_uncertain_and_empty_labels_are_refused_with_a_way(tmp_path):
    path = of_flags(tmp_path / "a.csv")
    for options, what, do in (
        ({}, "no label in 1 of 6 rows", "dataset.blank=0"),
        ({"blank": "0"}, "'flu' has -1, uncertain, in 2 rows", "dataset.uncertain=0"),
        (
            {"task": "regression", "label": "flu", "blank": "0"},
            "dataset.blank is for",
            "multilabel",
        ),
        ({"label_separator": "|"}, "reads one column", "leave one"),
    ):
        with pytest.raises(pf.UsageError) as error:
            decode(path, **{"label": "flu,cold", **options})
        assert what in error.value.what and do in error.value.do
