"""Tests of accounts: traffic and FLOPs without training, against rounds and published numbers."""

from __future__ import annotations

import pytest

import protofl as pf
from protofl.runs.request.request import read_request
from protofl_workbench.reproductions.account import traffic
from protofl_workbench.reproductions.cells import Change, cells_of
from protofl_workbench.reproductions.finding import find_reproduction
from protofl_workbench.reproductions.reproduction_execution import run_reproduction
from protofl_workbench.reproductions.reproduction_plan import plan_reproduction

TRAFFIC = ("upload_floats", "download_floats")


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("fedproto", {"variant": "official"}),  # takes prototypes during training
        ("fedmd", {}),
    ],
)
def test_traffic_is_that_of_a_run(tmp_path, few, method, given):
    options = {
        "method": method,
        "models": "cnn4",
        "dataset": few,
        "partition": "pathological",
        "clients": 5,
        "participation": 0.6,
        "set": given,
        "public": 20 if method == "fedmd" else 0,
    }
    run = {"rounds": 2, "trials": 1, "batch_size": 10, "eval_every": 5, "backend": "local"}
    lines = traffic(read_request({**options, "rounds": 1000}))
    pf.run(**options, **run, out=tmp_path / "run", progress=False, dry_run=False)
    rows = pf.load_run(tmp_path / "run").rows
    assert [[line[key] for key in TRAFFIC] for line in lines] == [
        [row[key] for key in TRAFFIC] for row in rows
    ]


@pytest.mark.slow
def test_an_account_needs_no_data_that_are_not_here(tmp_path):
    """FedProto's traffic follows from Σ|C_i| of the split of Table 5."""
    reproduction = find_reproduction("fedtgp/table-5")
    # Traffic of prototypes does not depend on the model.
    change = Change(only=("fedproto",), options={"data_dir": tmp_path, "models": "cnn4"})
    (cell,) = cells_of(reproduction, change)
    line = traffic(cell.request())[1]
    assert line["upload_floats"] == 898 * 512
    assert line["download_floats"] == 20 * 100 * 512
    assert not [*tmp_path.iterdir()], "nothing was downloaded or kept"


def test_table_12_is_printed_from_table_8():
    """Four times the forward FLOPs of each client, in 1e9; client i of 20 has net i mod 8."""
    printed = find_reproduction("fedtgp/table-12").published
    cnn4, twice = 0.013, (0.218, 1.305, 2.532, 5.330)
    alone = 4 * (3 * (cnn4 + 1.530 + 0.314 + 0.117) + 2 * sum(twice))
    generator = 331_776 / 1e9
    expected = dict.fromkeys(("lg-fedavg", "feddistill", "fedproto", "fedtgp"), alone)
    expected |= {"fedgen": alone + 20 * 2 * generator}
    expected |= dict.fromkeys(("fml", "fedkd"), alone + 4 * 20 * cnn4)
    for (row, _), text in printed.items():
        assert f"{expected[row]:.2f}B" == text.rstrip("†"), row
    assert len(printed) == len(expected)


@pytest.mark.slow
def test_table_5_to_the_digit(tmp_path):
    reproduction = find_reproduction("fedtgp/table-5")
    # Of the clients' models only the heads are sent, K × C in all of them: small nets are enough.
    options = {"data_dir": tmp_path, "models": "cnn4"}
    result = run_reproduction(reproduction, Change(options=options), start=False)
    own = Change(only=("lg-fedavg", "fml"), options={"data_dir": tmp_path})
    for entry in run_reproduction(reproduction, own, start=False).entries.values():
        assert entry.figures == entry.text == result[entry.row, "practice"].figures
    for row in result.rows:
        entry = result[row, "practice"]
        assert (entry.figures == entry.text) == (row != "fedkd"), row
    assert result["fedtgp", "practice"].ours == "1.48M (seed chosen to fit)"


@pytest.mark.slow
def test_a_plan_needs_no_data_that_are_not_here(tmp_path):
    """Steps follow from data sizes, hours from a timed step; BatchNorm needs images that differ."""
    reproduction = find_reproduction("fedtgp/table-11")
    options = {"data_dir": tmp_path / "data", "clients": 2, "feature_dim": 8, "device": "cpu"}
    change = Change(only=("fedproto",), columns=("resnet10",), rounds=2, trials=1, options=options)
    (run,) = plan_reproduction(reproduction, change, tmp_path / "runs").runs
    assert "cifar100 is not here yet" in run.missing
    assert run.steps == pytest.approx(2 * 60_000 * 0.75 / 10, abs=8)
    assert run.seconds is not None and run.seconds > 1
    assert not [*tmp_path.iterdir()]


def test_a_cell_whose_data_are_not_here_is_an_error_or_left_empty(tmp_path):
    reproduction = find_reproduction("fedtgp/table-1")
    change = Change(
        only=("fml",), columns=("practical-cifar10",), datasets={"cifar10": "npz:no.npz"}
    )
    with pytest.raises(pf.UsageError, match=r"no\.npz") as found:
        run_reproduction(reproduction, change, tmp_path)
    assert "needed by fml, practical-cifar10" in found.value.near
    assert "--skip-missing" in found.value.do
    result = run_reproduction(reproduction, change, tmp_path, skip_missing=True)
    assert result["fml", "practical-cifar10"].state == "missing"
    assert "no.npz" in result.notes[-1]
