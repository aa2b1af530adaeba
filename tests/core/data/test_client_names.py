"""Tests of the names that the data give the clients: hospitals in records, tables and pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import protofl as pf
from protofl.data.split import Split, client_names
from protofl.datasets import Dataset
from protofl_cli.app import app

NAMES = ["Charité", "St Mary", "UCL_1 $x$"]


def arrays():
    draws = np.random.default_rng(0)
    return {
        "x_train": draws.normal(size=(120, 6)).astype("float32"),
        "y_train": np.arange(120) % 4,
        "age": draws.integers(20, 90, 120),
        "hospital": np.array(NAMES)[draws.integers(0, 3, 120)],
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals") / "run"
    pf.run(
        "local", models="mlp", dataset=arrays(), partition="column:hospital", rounds=2, out=folder,
        batch_size=10, metrics="macro-f1", progress=False, device="cpu", backend="local",
    )  # fmt: skip
    return pf.load_run(folder)


def test_the_split_has_the_names(run):
    assert run.client_names == run.split().client_names == tuple(NAMES)
    assert run.split().name_of(1) == "St Mary"
    record = json.loads((run.folder / "partition.json").read_text("utf-8"))
    assert record["client_names"] == NAMES and record["clients"] == 3


def test_columns_and_frames_have_the_names(run):
    columns = run.columns
    assert columns["client_accuracies.St Mary"][-1] == run.accuracies[0][1]
    assert "client_accuracies.1" not in columns
    assert "metrics.macro-f1.clients.Charité" in columns
    pytest.importorskip("pandas")
    assert {*run.frame().columns} == {*columns}


@pytest.mark.slow
def test_reports_and_pictures_have_the_names(run):
    page = pf.report(run.folder)
    assert all(name in page for name in NAMES)
    assert all(f'<th scope="row">{name}</th>' in page for name in NAMES)
    (axes,) = (a for a in pf.plots.split(run).axes)
    assert [text.get_text() for text in axes.get_xticklabels()] == NAMES


def test_a_split_is_shown_with_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    np.savez("data.npz", **arrays())
    words = ["--dataset", "npz:data.npz", "--set", "dataset.kind=table"]
    shown = CliRunner().invoke(app, [
        "partition", "show", *words, "--partition", "column:hospital", "--out", "x.png",
    ])  # fmt: skip
    assert shown.exit_code == 0, shown.output
    rows = [line for line in shown.output.splitlines() if line.startswith(tuple(NAMES))]
    assert len(rows) == 3


def split_of(owners):
    parts = [torch.tensor([n for n, own in enumerate(owners) if own == c]) for c in (0, 1)]
    pieces = [piece for part in parts for piece in (part[:-1], part[-1:])]
    offsets = torch.tensor([0, *map(len, pieces)]).cumsum(0)
    return Split(torch.cat(pieces), offsets)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({}, []),
        ({"site": ["a", "a", "b", "b"]}, ["a", "b"]),
        ({"site": [7, 7, 3, 3]}, ["site 7", "site 3"]),
        ({"site": [7, 7, 3, 3], "town": ["x", "x", "y", "y"]}, ["x", "y"]),
        ({"site": ["a", "b", "c", "c"]}, []),  # a client of two sites
        ({"domain": ["a", "a", "a", "a"]}, []),  # two clients of one domain
    ],
)
def test_a_column_names_clients_one_to_one(columns, names):
    data = Dataset(torch.zeros(4, 2), torch.zeros(4).long(), 4, ["0"], columns=columns)
    assert client_names(split_of([0, 0, 1, 1]), data.columns) == names
