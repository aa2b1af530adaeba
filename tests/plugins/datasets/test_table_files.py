"""Tests of csv:FILE and parquet:FILE: tables with named columns."""

from __future__ import annotations

import csv
import io
import json
import shlex
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import protofl as pf
from protofl.backends import Plan
from protofl.data import cache, columns, dataset, fitting, mapped, split
from protofl.data.fitting import FittedSamples
from protofl.data.split import Split
from protofl.testing import DatasetContract, run_checks
from protofl_cli.app import app
from protofl_plugins.datasets import table_reader
from protofl_plugins.datasets.table_files import Csv, Parquet
from protofl_plugins.datasets.table_form import TableForm
from protofl_workbench.recorded.exported import Exported, read_exported

CITIES, GRADES = ("Bonn", "Paris", "Rome"), ("low", "mid", "high")


def patients(count=24, hospitals=3):
    """Return rows as people have them: numbers, names, gaps, a client and a label."""
    chance = np.random.default_rng(1)
    rows = []
    for hospital in range(hospitals):
        for i in range(count):
            grade = int(chance.integers(3))
            rows.append(
                {
                    "hospital": f"H{hospital}",
                    "age": ""
                    if i % 7 == 3
                    else f"{chance.normal(40 + 10 * grade + hospital, 3):.2f}",
                    "pressure": f"{chance.normal(100, 20) * (hospital + 1):.1f}",
                    "city": "NA" if i % 11 == 5 else str(chance.choice(CITIES)),
                    "smoker": str(bool(chance.integers(2))),
                    "grade": GRADES[grade],
                }
            )
    return rows


def write(path, rows, separator=","):
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], delimiter=separator, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def decode(path, plugin=Csv, **options):
    config = plugin.Config(path=str(path), **({"label": "grade"} | options))
    return plugin().decode(config=config, data_dir=Path(path).parent / "data")


def form_of(data):
    return TableForm(**data.preparation.fitted.form)


def plan_of(path, **given):
    options = {"label": "grade", "client": "hospital", **given.pop("options", {})}
    given = {"method": "local", "models": "mlp", "dataset": f"csv:{path}", **given}
    return Plan.make(
        {"data_dir": str(path.parent / "data"), "options": {"dataset": options}, **given},
        report=lambda line: None,
    )


def command(*words):
    result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "250"})
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "patients.csv", patients())


def test_a_table_as_it_is_understood(table):
    data = decode(table, client="hospital")
    form = form_of(data)
    assert [c.name for c in form.columns] == ["age", "pressure", "city", "smoker"]
    assert form.columns[2].categories == CITIES and form.columns[3].categories == ("False", "True")
    assert [c.gaps for c in form.columns] == [True, False, True, False]
    assert data.classes == ["high", "low", "mid"] and data.num_train == len(data.y) == 72
    assert data.columns["hospital"].tolist() == [row["hospital"] for row in patients()]
    for x, y, row in zip(data.x, data.y, patients(), strict=True):
        age = float(row["age"] or "nan")
        expected = [age, np.isnan(age), float(row["pressure"])]
        expected += [row["city"] == city for city in (*CITIES, "NA")]
        expected += [row["smoker"] == "False", row["smoker"] == "True"]
        assert np.allclose(x, expected, equal_nan=True)
        assert data.classes[y] == row["grade"]
    missing = sum(row["age"] == "" for row in patients()) + sum(
        row["city"] == "NA" for row in patients()
    )
    plan = plan_of(table)
    assert plan.settings.clients == 3 and plan.settings.partition == "column:hospital"
    assert plan.notes[0] == (
        f"4 features (2 numeric, 2 categories), 3 classes, 3 clients, "
        f"{100 * missing / (4 * 72):.2g} % missing"
    )
    assert plan.notes[1] == "numbers: age, pressure; categories: city (3), smoker (2)"
    assert not any("makes each value a client" in note for note in plan.notes)
    assert plan.settings.lr == 0.1 and plan.set_by["lr"] == "models mlp"


def test_statistics_are_those_of_scikit_learn_on_a_clients_training_rows(table):
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    plan = plan_of(table)
    raw = plan.data.x
    for client in range(3):
        train, test = plan.split(0).train(client), plan.split(0).test(client)
        numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
        numbers.fit(raw[train][:, [0, 2]].double().numpy())
        for rows in (train, test):
            seen = plan.samples(rows, False).inputs()
            expected = numbers.transform(raw[rows][:, [0, 2]].double().numpy())
            assert np.allclose(seen[:, [0, 2]], expected, atol=1e-5)
            others = [1, *range(3, raw.shape[1])]
            assert torch.equal(seen[:, others], raw[rows][:, others])


def seen_by(plan, client):
    """Return what a client trains on, and its statistics."""
    x = plan.samples(plan.split(0).train(client), False).inputs()
    return x, plan.preparation([0]).of_client(client, 0).scaling


@pytest.mark.parametrize("statistics", ["client", "global"])
def test_nothing_leaks_from_test_rows_or_other_clients(tmp_path, statistics):
    options = {"options": {"statistics": statistics}}
    rows = patients()
    plan = plan_of(write(tmp_path / "a.csv", rows), **options)
    before = [seen_by(plan, client) for client in range(3)]
    split = plan.split(0)

    def changed(which):
        other = [dict(row) for row in rows]
        for row in which.tolist():
            other[row] |= {"age": "9000", "pressure": "-70000", "city": "Rome", "smoker": "True"}
        path = write(tmp_path / f"{statistics}{len(which)}.csv", other)
        return [seen_by(plan_of(path, **options), client) for client in range(3)]

    tests = torch.cat([split.test(client) for client in range(3)])
    for (x, scaling), (y, other) in zip(before, changed(tests), strict=True):
        assert torch.equal(x, y) and scaling == other
    after = changed(split.train(1))
    for client in (0, 2):
        same = torch.equal(before[client][0], after[client][0])
        assert same == (before[client][1] == after[client][1]) == (statistics == "client")
    assert not torch.equal(before[1][0], after[1][0]) and before[1][1] != after[1][1]


def test_validation_rows_are_no_training_rows(table):
    plan = plan_of(table, validation=0.25)
    held = plan.split(0).held_out(0)
    _, scaling = seen_by(plan, 0)
    train = plan.data.x[plan.split(0).train(0)][:, 2].double()
    assert scaling.shift[2] == pytest.approx(float(train.mean()))
    expected = (plan.data.x[held][:, 2].double() - train.mean()) / train.std(correction=0)
    assert np.allclose(plan.samples(held, False).inputs()[:, 2], expected, atol=1e-5)


def test_each_trial_has_statistics_of_its_own_split(table):
    plan = plan_of(table, trials=2)
    first, second = plan.preparation(plan.split_trials).clients
    assert len(first) == len(second) == 3 and first != second
    train = plan.data.x[plan.split(1).train(2)][:, 2].double()
    assert second[2].shift[2] == pytest.approx(float(train.mean()))
    held = plan_of(table, trials=2, hold_split=True)
    assert held.preparation(held.split_trials).clients == (first,)


def test_a_client_of_a_later_trial_is_scored_by_its_own_statistics(table):
    folder = table.parent
    pf.run(
        "local", models="mlp", dataset=f"csv:{table}", rounds=1, trials=2, keep="last",
        progress=False, out=folder / "run", data_dir=folder / "data",
        set={"dataset.label": "grade", "dataset.client": "hospital"},
    )  # fmt: skip
    run = pf.load_run(folder / "run")
    for trial in (0, 1):
        scorer = run.scorer(2, trial=trial)
        assert scorer.preparation.scaling == run.preparation.clients[trial][2]
        rows = run.plan.split(trial).test(2)
        seen = run.plan.samples(rows, False, trial).inputs()
        assert torch.equal(scorer.preparation(run.plan.data.x[rows]), seen)
    assert run.preparation.clients[0][2] != run.preparation.clients[1][2]
    code, output = command("evaluate", folder / "run", table, "--trial", 1)
    assert code == 0 and all(f"{n} H{n} 24" in output for n in range(3)), output


def test_a_client_without_any_value_of_a_column(tmp_path):
    rows = [row | ({"age": ""} if row["hospital"] == "H1" else {}) for row in patients()]
    plan = plan_of(write(tmp_path / "a.csv", rows))
    x, _ = seen_by(plan, 1)
    assert (x[:, 0] == 0).all() and (x[:, 1] == 1).all()
    prepared = plan.preparation([0]).of_client(1, 0)
    assert float(prepared(torch.full((1, x.shape[1]), 9000.0))[0, 0]) == 0


def test_a_column_with_one_value_in_a_clients_training_rows_is_0_in_its_test_rows(tmp_path):
    rows = [row | {"part": ("train", "test")[i % 2]} for i, row in enumerate(patients())]
    for row in rows:
        row |= {"pressure": "7"} if row["hospital"] == "H1" and row["part"] == "train" else {}
    path = write(tmp_path / "a.csv", rows)
    for statistics in ("client", "global"):
        plan = plan_of(path, options={"test": "part", "statistics": statistics})
        seen = [plan.samples(plan.split(0).test(client), False).inputs()[:, 2] for client in (0, 1)]
        assert seen[0].any() and seen[1].any() == (statistics == "global")
        few = [note for note in plan.all_notes if "too few training rows" in note]
        assert len(few) == (statistics == "client")
        if few:
            assert "own statistics: 1;" in few[0] and "such a client: pressure;" in few[0]
            assert few[0].endswith("--set dataset.statistics=global")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_from_a_file_to_scores_of_new_rows(tmp_path, ending):
    pytest.importorskip("onnxruntime", reason="extra onnx")
    rows = patients()
    table = write(tmp_path / "a.csv", rows)
    new = write(tmp_path / "new.csv", [{n: r[n] for n in list(r)[-2::-1]} for r in rows[:30]])
    if ending == "parquet":
        pandas = pytest.importorskip("pandas", reason="extras pandas and tables")
        pytest.importorskip("pyarrow", reason="extra tables")
        for file in (table, new):
            frame = pandas.read_csv(file, keep_default_na=True)
            frame.to_parquet(file.with_suffix(".parquet"), index=False)
        table, new = table.with_suffix(".parquet"), new.with_suffix(".parquet")
    run, page, bundle = tmp_path / "run", tmp_path / "page.html", tmp_path / "client.onnx"
    words = ["--models", "mlp", "--dataset", f"{ending}:{table}", "--data-dir", tmp_path / "data"]
    words += ["--set", "dataset.label=grade", "--set", "dataset.client=hospital"]
    code, output = command(
        "run", "fedproto", *words, "--rounds", "2", "--keep", "last", "--out", run
    )
    assert code == 0 and "4 features (2 numeric, 2 categories), 3 classes, 3 clients" in output
    assert command("compare", run)[0] == 0
    assert command("report", run, "--out", page)[0] == 0 and "fedproto" in page.read_text("utf-8")
    code, output = command("export", run, bundle, "--client", "1")
    assert code == 0 and "statistics of each client's training rows" in output
    code, output = command("score", bundle, new, "--format", "csv")
    assert code == 0, output
    done = CliRunner().invoke(app, ["score", str(bundle), str(new), "--json"])
    lines = json.loads(done.stdout)["samples"]
    recorded = pf.load_run(run)
    scores = recorded.scorer(1).scores(recorded.plan.data.x[:30])
    for line, expected in zip(lines, scores.tolist(), strict=True):
        got = [line["scores"][name] for name in recorded.plan.data.classes]
        assert got == pytest.approx(expected, abs=1e-4)
    # In Python, and on labelled rows.
    assert recorded.predict(1, new).tolist() == scores.argmax(1).tolist()
    frame = {name: [row[name] or None for row in rows[:30]] for name in rows[0]}
    assert recorded.predict(1, frame).tolist() == scores.argmax(1).tolist()
    with pytest.raises(pf.UsageError, match="samples has no column 'age'"):
        recorded.predict(1, {"ages": [3]})
    done = recorded.evaluate(table)
    assert [row["samples"] for row in done.clients] == [24, 24, 24]
    right = recorded.scorer(1).scores(recorded.plan.data.x[24:48]).argmax(1)
    assert done.clients[1]["correct"] == int((right == recorded.plan.data.y[24:48]).sum())
    with pytest.raises(pf.UsageError, match="has no column 'grade' with the classes"):
        recorded.evaluate(new)
    # The file of one client says nothing of the others.
    preparation = read_exported(bundle).preparation
    assert preparation.clients == () and preparation.fitted.form["columns"][0]["name"] == "age"
    assert preparation.scaling == recorded.preparation.clients[0][1]
    assert (preparation.fitted.dataset, preparation.fitted.package) == (ending, "protofl")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    table = write(folder / "a.csv", patients())
    run = pf.run(
        "local", models="mlp", dataset=f"csv:{table}", rounds=1, keep="last", progress=False,
        out=folder / "run", data_dir=folder / "data", set={"dataset.label": "grade"}, clients=3,
        partition="iid",
    )  # fmt: skip
    return pf.load_run(run.folder).export(0, folder / "client.pt2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"city": "Pariss"}, "the unknown category 'Pariss' in row 3"),
        ({"city": "Pariss"}, "did you mean Paris?"),
        ({"pressure": "high"}, "column 'pressure' has 'high' in row 3, expected a number"),
        ({"pressure": "1e300"}, "column 'pressure' has 1e300 in row 3, infinity or more"),
        ({"smoker": ""}, "column 'smoker' has no value in row 3"),
        ({"age": None}, "has no column 'age'"),
    ],
)
def test_new_rows_that_do_not_fit_are_named(bundle, tmp_path, change, words):
    rows = patients(4, 1)
    for name, value in change.items():
        for row in rows if value is None else rows[2:3]:
            row.pop(name) if value is None else row.update({name: value})
    code, output = command("score", bundle, write(tmp_path / "new.csv", rows), "--trust-pickle")
    assert code == 2 and words in output, output
    assert "new.csv" in output


def test_a_missing_number_may_be_missing_in_new_rows(bundle, tmp_path):
    rows = [row | {"pressure": ""} for row in patients(4, 1)]
    code, output = command("score", bundle, write(tmp_path / "new.csv", rows), "--trust-pickle")
    assert code == 0, output


def test_rows_for_clients_without_columns_are_refused(tmp_path):
    sample = pf.datasets.SampleSpec((3,), "table")
    client = Exported(["a", "b"], sample, torch.float32, torch.clone, pf.datasets.Preparation())
    with pytest.raises(pf.UsageError, match="the client's data have no columns"):
        client.samples_in(write(tmp_path / "new.csv", patients(4, 1)))


# --- what files are like --------------------------------------------------------------------------


def refused(path, **options):
    with pytest.raises(pf.UsageError) as error:
        decode(path, **options)
    assert str(path) in error.value.what and error.value.do
    return f"{error.value.what}; {error.value.near}; {error.value.do}"


GOOD = "a,b,grade\n1,x,u\n2,y,v\n3,x,u\n4,y,v\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,a,grade\n1,2,u\n", "columns 1 and 2 have the same name 'a'"),
        ("a,,grade\n1,2,u\n", "column 2 of 3 has no name"),
        ("1.5,2,3\n1,2,3\n", "the first line looks like data: 1.5, 2, 3"),
        ("5.1,x,u\n1,x,u\n2,y,v\n", "the first line looks like data: 5.1, x, u"),
        ("0.2,0.2,u\n1,2,u\n", "if the first line holds data, add a line with names"),
        ("b,grade\n1,x,u\n2,y,v\n", "each row has 3 values, the first line names 2 columns; a "
         "column at the beginning, such as names of the rows, has no name; write a name for it at "
         "the beginning"),
        ("a,grade\n1,u,\n2,v,\n", "write a name for it at the end of the first line"),
        ("only\n1\n", "the first line holds one column"),
        ("", "empty"),
        ("a,b,grade\n", "holds no rows"),
        ("a,b,grade\n1,x,u\n2,y\n", "row 2 has 2 values, the first line names 3 columns"),
        ('a,b,grade\n1,"x,u\n2,y,v\n', "a quote that is not closed"),
        (GOOD.replace("2,y", "old,y"), "column 'a' mixes numbers and texts: 1 of 4 rows"),
        (GOOD.replace("2,y", '"2,5",y'), "'2,5' in row 2: a decimal comma"),
        ("a;b;grade\n1,5;x;u\n2,5;y;v\n", "--set dataset.decimal=,"),
        (GOOD.replace("2,y", "1_000,y"), "'1_000' in row 2: a number with underscores"),
        (GOOD.replace("2,y", "٢,y"), "'٢' in row 2: a number with underscores, or with digits"),
        (GOOD.translate(str.maketrans("1234", "١٢٣٤")), "--set dataset.categories=a"),
        (GOOD.replace("2,y", "9" * 400 + ",y"), f"column 'a' has {'9' * 40} in row 2, infinity"),
        ("a;b;grade\n1,500;x;u\n2,500;y;v\n", "if the comma is between thousands"),
        ("a;b;grade\n12,345.6;x;u\n2,500.0;y;v\n", "'12,345.6' in row 1: commas between thousands"),
        (GOOD.replace("x", "ö").encode("utf-16"), "dataset.encoding=utf-16, as its first bytes"),
        ("a,b,grade\n2021-03-04,x,u\n2021-03-05,y,v\n", "column 'a' holds dates (2021-03-04)"),
        ("a,b,grade\n04.03.2021 10:00,x,u\n05.03.2021,y,v\n", "holds dates"),
        ("a,b,grade\n1949-02,x,u\n1950-12,y,v\n", "holds dates (1949-02)"),
        ("a,b,grade\n1970 Q1,x,u\n1970 Q2,y,v\n", "holds dates (1970 Q1)"),
        ("a,b,grade\nJan 1949,x,u\nMarch 1949,y,v\n", "holds dates (Jan 1949)"),
        (GOOD.replace("3,x,u", "3,x,nan"), "no label in 1 of 4 rows (column 'grade'), the first "
         "in row 3; ; give each row a label, or leave these rows out: --set dataset.blank=drop"),
        (GOOD.replace(",v", ",u"), "only one class (u)"),
        ("a,b,grade\n1,x,1.5\n2,y,2.5\n", "the label's column 'grade' has 2 different numbers, "
         "such as '1.5'"),
        (GOOD.replace("2,y", "1e300,y"), "infinity or more than float32 holds"),
        ("a,b,grade\n" + "".join(f"{i},n{i},{'uv'[i % 2]}\n" for i in range(100_000)),
         "column 'b' has more than 100 different values in 100,000 rows"),
        ("a,b,grade\n" + "".join(f"{i},{i} kg,{'uv'[i % 2]}\n" for i in range(30)),
         "column 'b' has 30 different values in 30 rows, such as '0 kg'"),
        ("größe,b,grade\n1,x,u\n2,y,v\n".encode("latin-1"), "is not UTF-8: byte 0xf6"),
        (b"\x89HDF\r\n\x1a\n", "it is an HDF5 file"),
        (b"PAR1", "is not a csv file"),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path, content, words):
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    text = refused(path)
    assert words in text, text


def test_two_unicode_forms_are_one_name(tmp_path):
    places = ("caf\u00e9", "cafe\u0301", "the")
    rows = [f"{i},{places[i % 3]},{'xy'[i // 2 % 2]}\n" for i in range(42)]
    text = "".join(["n,place,grade\n", *rows])
    assert decode_text(tmp_path, text).x.shape == (42, 3)
    assert decode_text(tmp_path, text, label="place").classes == ["caf\u00e9", "the"]
    named = decode_text(tmp_path, text, client="place")
    assert {*named.columns["place"]} == {"caf\u00e9", "the"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_whole_numbers_of_more_than_53_bits(tmp_path, ending):
    """As a feature they are one number, which a note says; as names of clients they differ."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": range(40), "person": [2**60 + i // 20 for i in range(40)]})
    frame["grade"] = [("x", "y")[i % 2] for i in range(40)]
    path, plugin = tmp_path / f"a.{ending}", {"csv": Csv, "parquet": Parquet}[ending]
    if ending == "csv":
        frame.to_csv(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        frame.to_parquet(path, index=False)
    assert "column person has numbers up to 1.15292e+18" in decode(path, plugin).note
    data = decode(path, plugin, client="person")
    assert {*data.columns["person"]} == {str(2**60), str(2**60 + 1)}
    assert "numbers up to" not in data.note


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label": "grad"}, "no column 'grad', which dataset.label names; columns: a, b, grade; "
         "did you mean grade?"),
        ({"label": None}, "which column holds the classes?"),
        ({"client": "hospital"}, "which dataset.client names"),
        ({"drop": "c"}, "which dataset.drop names"),
        ({"client": "grade"}, "column 'grade' is given to two options"),
        ({"drop": "a,b"}, "no column is left as a feature; columns: a, b, grade; left out: a "
         "(dataset.drop), b (dataset.drop)"),
        ({"test": "a"}, "column 'a' has '2' in row 2"),
        ({"client": "none"}, "no client in 4 of 4 rows (column 'none'), the first in row 1"),
        ({"encoding": "utf-99"}, "there is no such encoding"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(tmp_path, options, words):
    path = tmp_path / "a.csv"
    path.write_text(
        GOOD.replace(",grade", ",grade,none").replace("u\n", "u,\n").replace("v\n", "v,\n")
    )
    if options.get("client") != "none":
        path.write_text(GOOD)
    with pytest.raises(pf.UsageError) as error:
        decode(path, **options)
    text = f"{error.value.what}; {error.value.near}; {error.value.do}"
    assert words in text and error.value.do, text


def test_numbers_that_identify_rows_are_noted(tmp_path):
    rows = [
        {"case": 7 * i, "visit_id": i * 5 % 31, "age": i % 9, "grade": i % 2} for i in range(31)
    ]
    note = decode(write(tmp_path / "a.csv", rows)).note
    assert "only identify the rows: case, visit_id; to leave them out" in note
    assert "--set dataset.drop=case,visit_id;" in note
    shuffled = decode(write(tmp_path / "a.csv", rows[::-1]), drop="visit_id")
    assert shuffled.note == "numbers: case, age; left out: visit_id (dataset.drop)"


def test_numbers_of_persons_that_repeat_are_noted(tmp_path):
    rows = [{"who": i // 3 + 5, "when": i % 3, "grade": i % 2} for i in range(90)]
    note = decode(write(tmp_path / "a.csv", rows)).note
    assert "only identify the rows: who;" in note and "--set dataset.group=who" in note
    assert "identify" not in decode(write(tmp_path / "a.csv", rows[:45])).note  # as years may be


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (lambda i: ("no", "yes")[i % 2], True),
        (lambda i: i % 4 + 0.5, True),
        (lambda i: i // 4, False),  # two classes in each
        (lambda i: i, False),  # each value once
        (lambda i: ("no", "yes")[i % 2] if i else "yes", False),
    ],
)
def test_columns_that_alone_give_the_class_are_noted(tmp_path, column, named):
    rows = [{"size": i * 7 % 11, "it": column(i), "grade": i % 2} for i in range(60)]
    note = decode(write(tmp_path / "a.csv", rows), drop="size").note
    assert (
        "each value has one class: it; to leave them out: --set dataset.drop=size,it" in note
    ) == named
    assert "dataset.group" not in note.partition("one class")[2]
    rare = [row | {"it": i // 2, "grade": int(i > 55)} for i, row in enumerate(rows)]
    assert "one class" not in decode(write(tmp_path / "b.csv", rare)).note  # may be chance


def test_values_of_persons_that_give_the_class_are_noted(tmp_path):
    rows = [{"who": f"p{i // 4}", "dose": i % 5, "grade": i // 4 % 2} for i in range(160)]
    note = decode(write(tmp_path / "a.csv", rows)).note
    assert "one class: who; to leave them out" in note and "--set dataset.group=who" in note


def test_all_bad_columns_are_named_in_one_command(tmp_path):
    rows = [
        {"size": i % 7, "when": f"2020-03-{i % 28 + 1:02d}", "day, month": f"{i % 28 + 1}/03/2020",
         "Term (from)": f"n{i}", "mixed": ("x", i)[i > 0], "grade": i % 2}
        for i in range(60)
    ]  # fmt: skip
    path = write(tmp_path / "a.csv", [row | {"kind": "a"} for row in rows])
    text = refused(path, drop="kind")
    assert "4 columns cannot be features; column 'when' holds dates (2020-03-01), column" in text
    command = text.partition("leave out: --set ")[2].partition("; or")[0]
    [option] = shlex.split(command)
    assert option == 'dataset.drop=kind,when,"day, month",Term (from),mixed'
    assert form_of(decode(path, drop=option.partition("=")[2])).names == ["size"]
    alone = refused(path, drop='kind,when,"day, month",mixed')
    assert "allow it: --set 'dataset.categories=Term (from)'" in alone


def test_types_that_are_not_read_are_named_together(tmp_path):
    pa = pytest.importorskip("pyarrow")
    dates = pa.array([1, 2] * 2, pa.date32())
    columns = {"a": range(4), "when": dates, "l": [[1]] * 4, "grade": ["u", "v"] * 2}
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), tmp_path / "a.parquet")
    text = refused(tmp_path / "a.parquet", plugin=Parquet)
    assert "column 'when' holds dates (date32[day]), column 'l' holds values of the type" in text
    assert "leave out: --set dataset.drop=when,l;" in text
    assert len(decode(tmp_path / "a.parquet", plugin=Parquet, drop="when,l").y) == 4
    assert "'when' holds dates" in refused(tmp_path / "a.parquet", plugin=Parquet, label="when")


def test_names_in_quotes_are_given_with_their_quotes(tmp_path):
    (tmp_path / "a.csv").write_text(GOOD.replace("grade", "'grade'"))
    text = refused(tmp_path / "a.csv")
    assert shlex.split(text.partition("its name: ")[2]) == ["--set", "dataset.label='grade'"]
    (tmp_path / "a.csv").write_text(GOOD.replace("b,grade", "'b',grade"))
    text = refused(tmp_path / "a.csv", drop="a,b")
    assert shlex.split(text.partition("its name: ")[2]) == ["--set", "dataset.drop=a,'b'"]


def words(folder, **options):
    rows = [
        {"dose": ("None", i)[i > 4], "bags": ("None", "one", "two", "NA")[i % 4],
         "grade": ("None", "N/A", "ill")[i // 3 % 3]}
        for i in range(24)
    ]  # fmt: skip
    return decode(write(folder / "a.csv", rows), **options)


def test_words_for_nothing_are_categories_of_texts(tmp_path, monkeypatch):
    for size in (512, 1):  # blocks of one word
        monkeypatch.setattr(table_reader, "ROWS", size)
        data = words(tmp_path)
        dose, bags = form_of(data).columns
        assert dose.gaps and not dose.categories and torch.isnan(data.x[:5, 0]).all()
        assert bags.categories == ("None", "one", "two") and bags.gaps
        assert torch.equal(data.x[:4, 2:], torch.eye(4))
        assert data.classes == ["N/A", "None", "ill"] and data.y[:4].tolist() == [1, 1, 1, 0]
        assert "'None' in bags (6 rows), 'None' in grade (9 rows), 'N/A' in grade (9" in data.note
        assert "to read as missing: --set dataset.missing=None,N/A" in data.note


def test_words_that_are_chosen_are_missing_everywhere(tmp_path):
    with pytest.raises(pf.UsageError, match="no label in 9 of 24 rows"):
        words(tmp_path, missing="None")
    data = words(tmp_path, missing="23,two,nothing")
    assert "read as missing: '23' (1), 'two' (6), 'nothing' (0)" in data.note
    assert torch.isnan(data.x[23, 0]) and form_of(data).columns[1].categories == ("None", "one")
    read, _ = form_of(data).read(str(tmp_path / "a.csv"))
    assert torch.equal(read.nan_to_num(), data.x.nan_to_num())
    frame = {"dose": [23, 5], "bags": ["two", None]}
    assert torch.equal(form_of(data).read(frame)[0].isnan()[:, 0], torch.tensor([True, False]))
    assert form_of(data).read(frame)[0][:, 4].tolist() == [1, 1]


def test_rows_without_a_label_are_left_out(tmp_path):
    data = decode_text(tmp_path, GOOD + "?,x,\n", blank="drop")
    assert len(data.y) == 4 and "1 of 5 rows with missing values left out" in data.note
    assert len(decode_text(tmp_path, GOOD + "5,x,\n", impute="drop").y) == 4


def test_a_share_of_test_rows_is_between_0_and_1(tmp_path):
    (tmp_path / "a.csv").write_text(GOOD)
    with pytest.raises(pf.UsageError, match=r"dataset\.test=1\.5"):
        decode(tmp_path / "a.csv", test="1.5")


def test_marks_quotes_newlines_separators_and_indices_are_read(tmp_path):
    texts = {
        "mark": "\ufeff" + GOOD,
        "semicolons": GOOD.replace(",", ";"),
        "tabs": GOOD.replace(",", "\t"),
        "bars": GOOD.replace(",", "|"),
        "lines": GOOD.replace("\n", "\r\n"),
        "spaces": GOOD.replace("1,x", " 1 , x "),
        "blank": GOOD.replace("2,y", "\n2,y"),
        "between": GOOD.replace(",", " ").replace("2 y", "2   y"),
        "index": "".join(f"{'' if not i else i},{line}\n" for i, line in enumerate(GOOD.split())),
    }
    expected, notes = decode_text(tmp_path, GOOD), {}
    for name, text in texts.items():
        data = decode_text(tmp_path, text)
        assert data.compute_digest() == expected.compute_digest(), name
        notes[name] = data.note
    read = "numbers: a; categories: b (2)"
    assert notes["mark"] == f"a byte order mark begins the file and is left out\n{read}"
    assert notes["semicolons"] == f"values are separated by semicolons\n{read}"
    assert notes["between"] == f"values are separated by spaces\n{read}"
    assert notes["index"] == f"{read}; left out: the first column, which has no name"
    assert decode_text(tmp_path, GOOD.replace(",", " "), separator=" ").x.shape == (4, 3)
    data = decode_text(tmp_path, GOOD.replace("x", '"new\nline, ""so"""'))
    assert form_of(data).columns[1].categories == ('new\nline, "so"', "y")
    data = decode_text(tmp_path, "a;b;grade\n1,5;x;u\n-2,25;y;v\n", decimal=",")
    assert data.x[:, 0].tolist() == [1.5, -2.25]
    with pytest.raises(pf.UsageError, match="mixes numbers and texts"):
        decode_text(tmp_path, "a;b;grade\n1,5;x;u\n2.500;y;v\n", decimal=",")
    data = decode_text(tmp_path, GOOD.replace("x", "ö"), encoding="utf-16")
    assert form_of(data).columns[1].categories == ("y", "ö")


def decode_text(folder, text, **options):
    (folder / "a.csv").write_bytes(text.encode(options.get("encoding", "utf-8")))
    return decode(folder / "a.csv", **options)


def test_labels_and_categories_that_are_numbers(tmp_path):
    text = "a,b,grade\n1,10,2\n2,9,10\n3,10,2\n2,9,10\n"
    data = decode_text(tmp_path, text)
    assert data.classes == ["2", "10"] and data.x.shape == (4, 2)
    named = decode_text(tmp_path, text, categories="b")
    assert form_of(named).columns[1].categories == ("9", "10")
    mixed = decode_text(tmp_path, GOOD.replace("2,y", "old,y"), categories=["a"])
    assert form_of(mixed).columns[0].categories == ("1", "3", "4", "old")


def test_whole_numbers_are_one_category_with_and_without_decimals(tmp_path):
    data = decode_text(tmp_path, "a,b,grade\n1,5.0,1\n2,5,1.0\n3,6,0\n", categories="b")
    assert data.classes == ["0", "1"] and data.x[:, 1:].tolist() == [[1, 0], [1, 0], [0, 1]]


def test_texts_among_numbers_are_counted_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(table_reader, "ROWS", 4)
    values = ["1", "2", "3", "4", "", "", "", "5", "6", "old", "7", "8"]
    text = "a,b,grade\n" + "".join(f"{v},x,{'uv'[i % 2]}\n" for i, v in enumerate(values))
    with pytest.raises(pf.UsageError, match="1 of 12 rows hold texts, the first 'old' in row 10"):
        decode_text(tmp_path, text)


def test_client_names_that_differ_in_zeros_are_two_clients(tmp_path):
    text = "a,who,grade\n" + "".join(
        f"{i},{w},{'uv'[i % 2]}\n" for i, w in enumerate(["01", "1"] * 2)
    )
    assert decode_text(tmp_path, text, client="who").columns["who"].tolist() == ["01", "1"] * 2


def test_clients_without_rows_have_statistics_that_change_nothing(table):
    """A node has the rows of its own clients alone."""
    data = decode(table)
    none = torch.arange(0)
    parts = [torch.arange(10), torch.arange(10, 14), none, none, torch.arange(20, 40), none]
    ends = torch.tensor([0, *map(len, parts)]).cumsum(0)
    found = FittedSamples(form_of(data), data.x, Split(torch.cat(parts), ends), table.parent)
    assert len(found.scalings) == 3 and found.scalings[0] != found.scalings[2]
    assert found.x[:14].isfinite().all() and found.x[20:40].isfinite().all()
    assert not found.x[40:].any()


def test_the_label_is_found_by_its_usual_names(tmp_path):
    data = decode_text(tmp_path, GOOD.replace("grade", "Label"), label=None)
    assert data.classes == ["u", "v"] and "the column Label" in data.note


def test_rows_with_gaps_are_left_out_or_refused(tmp_path):
    text = GOOD.replace("2,y", "?,y").replace("3,x", "3,NA")
    data = decode_text(tmp_path, text, impute="drop")
    assert data.x.tolist() == [[1, 1, 0], [4, 0, 1]] and data.y.tolist() == [0, 1]
    assert "2 of 4 rows with missing values left out" in data.note
    key = Csv().cache_key(config=Csv.Config(path=str(tmp_path / "a.csv")), data_dir=tmp_path)
    kept = cache.load(key, tmp_path, lambda: data, lambda line: None)
    assert kept.x.tolist() == data.x.tolist() and kept.preparation == data.preparation
    three = decode_text(tmp_path, GOOD + "?,x,w\n", impute="drop")
    assert three.classes == ["u", "v"] and "left out with its rows: class w" in three.note
    with pytest.raises(pf.UsageError, match="only one class is left"):
        decode_text(tmp_path, GOOD.replace("1,", ",").replace("3,", ","), impute="drop")
    data = decode_text(tmp_path, text.replace("4,y", ",y").replace("1,x", ",x").replace("3,", ","))
    assert data.note == "categories: b (2); left out: a (no value)"


def test_test_rows_by_a_column(tmp_path):
    rows = [row | {"part": "test" if i % 4 == 1 else "train"} for i, row in enumerate(patients())]
    rows[1]["grade"] = "odd"
    path = write(tmp_path / "a.csv", rows)
    data = decode(path, client="hospital", test="part")
    assert data.num_train == 54 and "only in test rows, so no client can learn it: class odd" in (
        data.note
    )
    expected = [row["grade"] for part in ("train", "test") for row in rows if row["part"] == part]
    assert [data.classes[y] for y in data.y] == expected
    split = plan_of(path, options={"test": "part"}).split(0)
    for client in range(3):
        assert (split.train(client) < 54).all() and (split.test(client) >= 54).all()


def test_test_rows_by_a_share_of_each_client(table):
    data = decode(table, client="hospital", test="0.25")
    clients, sizes = np.unique(data.columns["hospital"][data.num_train :], return_counts=True)
    assert clients.tolist() == ["H0", "H1", "H2"] and sizes.tolist() == [6, 6, 6]
    again = decode(table, client="hospital", test="0.25")
    assert again.compute_digest() == data.compute_digest()


def test_public_samples_need_statistics_of_all(table):
    options = {"method": "fedmd", "public": 12}
    with pytest.raises(pf.UsageError, match="public samples belong to no client") as error:
        plan_of(table, **options)
    assert "--set dataset.statistics=global" in error.value.do
    plan = plan_of(table, **options, options={"statistics": "global"})
    public = plan.public_samples(0, False).inputs()
    [scaling] = plan.preparation([0]).clients[0]
    assert torch.equal(public, scaling(plan.data.x[plan.split(0).public]))
    assert public.isfinite().all()


def test_parquet_holds_what_the_csv_file_holds(tmp_path):
    pandas = pytest.importorskip("pandas", reason="extra pandas")
    pytest.importorskip("pyarrow", reason="extra tables")
    frame = pandas.read_csv(write(tmp_path / "a.csv", patients()))
    frame["city"] = frame["city"].astype("category")
    frame.to_parquet(tmp_path / "a.parquet")
    data = decode(tmp_path / "a.parquet", Parquet, client="hospital")
    same = decode(tmp_path / "a.csv", client="hospital")
    assert torch.equal(data.y, same.y) and torch.equal(data.x.isnan(), same.x.isnan())
    assert torch.allclose(data.x.nan_to_num(), same.x.nan_to_num())
    frame["day"] = pandas.Timestamp("2021-01-01")
    frame.to_parquet(tmp_path / "b.parquet")
    assert "column 'day' holds dates" in refused(tmp_path / "b.parquet", plugin=Parquet)
    assert decode(tmp_path / "b.parquet", Parquet, drop="day").num_train == 72
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:-20])
    assert "cannot be read as Parquet" in refused(tmp_path / "cut.parquet", plugin=Parquet)
    assert "is not a parquet file" in refused(tmp_path / "a.csv", plugin=Parquet)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(table_reader, "ROWS", 512)
    monkeypatch.setattr(mapped, "LARGE", 1)
    line = ",".join(f"0.{i}25" for i in range(30))
    peaks = []
    for count in (4_000, 16_000):
        path = tmp_path / f"{count}.csv"
        names = ",".join(f"c{i}" for i in range(30))
        path.write_text(f"{names},grade\n" + f"{line},u\n{line},v\n" * (count // 2))
        tracemalloc.start()
        data = decode(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(data.y) == count
    # 12,000 more rows: their numbers alone have 1.4 MB, their texts 20 MB.
    assert peaks[1] - peaks[0] < 500_000


@pytest.mark.slow
def test_memory_of_planning_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    """Of decoding, the cache, the split, statistics and preparation: some 60 bytes a row."""
    monkeypatch.setattr(table_reader, "ROWS", 512)
    monkeypatch.setattr(mapped, "LARGE", 1)
    monkeypatch.setattr(fitting, "BLOCK", 512)
    for module in (columns, dataset, split):
        monkeypatch.setattr(module, "_BLOCK", 512)
    peaks = []
    for count in (4_000, 4_000, 16_000):  # the first fills what a process keeps
        path = tmp_path / f"{len(peaks)}.csv"
        name = "University hospital of the city number"  # 152 bytes, as NumPy stores texts
        lines = [f"{i % 97}.5,{name} {i % 3},{'uv'[i % 2]}\n" for i in range(count)]
        path.write_text("age,hospital,grade\n" + "".join(lines))
        tracemalloc.start()
        plan = plan_of(path)
        assert len(plan.preparation([0]).clients[0]) == 3
        rows = plan.split(0).train(0)
        assert plan.samples(rows[:5], False).inputs().shape == (5, 1) and plan.split(0).hash
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] - peaks[1] < 12_000 * 64


@pytest.mark.slow
def test_partition_show_divides_by_the_column_of_the_clients(table, monkeypatch):
    monkeypatch.chdir(table.parent)
    words = ["partition", "show", "--dataset", f"csv:{table}", "--data-dir", table.parent / "data"]
    words += ["--set", "dataset.label=grade", "--set", "dataset.client=hospital"]
    code, output = command(*words, "--out", table.parent / "a.png")
    assert code == 0 and "clients 0…2 are H0, H1, H2" in output
    code, output = command(*words, "--partition", "iid", "--out", table.parent / "b.png")
    assert code == 2
    assert "--partition iid and dataset.client=hospital both divide the samples" in output


def test_a_table_keeps_the_contract_of_data_sets(table):
    chosen = {"plugin": "csv", "argument": str(table), "options": {"label": "grade"}}
    found = {f.check: f for f in run_checks(type("Chosen", (DatasetContract,), chosen))}
    assert found["samples"].outcome == found["it_runs"].outcome == "passed"
    assert not [f.why for f in found.values() if f.outcome == "failed"]


def of_persons():
    rows = patients(24, 2)
    for place, row in enumerate(rows):
        row["patient_id"] = f"p{place // 4:02d}"
    return rows


def test_rows_of_a_patient_are_in_one_part(tmp_path):
    rows = of_persons()
    plan = plan_of(write(tmp_path / "a.csv", rows), options={"group": "patient_id"})
    assert "patient_id" not in [column.name for column in form_of(plan.data).columns]
    split, names = plan.split(0), plan.data.columns["patient_id"]
    for client in range(2):
        train, test = ({*names[part(client)]} for part in (split.train, split.test))
        assert len(train) + len(test) == 6 and not train & test
    _, shown = command(
        "partition", "show", "--dataset", f"csv:{tmp_path / 'a.csv'}",
        "--set", "dataset.label=grade", "--set", "dataset.client=hospital",
        "--set", "dataset.group=patient_id",
        "--data-dir", str(tmp_path / "d"), "--out", str(tmp_path / "p.png"),
    )  # fmt: skip
    assert "rows of one patient_id are in one part: 12 groups" in shown
    assert "note: numbers: age, pressure; categories: city (3), smoker (2)" in shown
    rows[5]["patient_id"] = ""
    with pytest.raises(pf.UsageError, match="no group in 1 of 48 rows"):
        decode(write(tmp_path / "b.csv", rows), group="patient_id")


def test_texts_that_name_persons_are_noted(tmp_path):
    note = decode(write(tmp_path / "a.csv", of_persons())).note
    assert "identify the rows: patient_id;" in note and "dataset.group=patient_id" in note
    rows = of_persons()
    for place, row in enumerate(rows):
        row["patient_id"] = f"p{place * 2 // 3}"
    text = refused(write(tmp_path / "b.csv", rows))
    assert "32 different values" in text and "dataset.group=patient_id" in text


def test_columns_that_may_name_the_clients_are_noted(table, tmp_path):
    note = decode(table).note
    assert "features: hospital (3 values), city (3 values); if hospital names the clients" in note
    assert note.endswith("--set dataset.client=hospital")
    assert "names the clients" not in decode(table, client="hospital").note
    few = write(tmp_path / "few.csv", patients(count=13))  # 39 rows, so 2 clients at most
    assert "names the clients" not in decode(few, drop="city").note
