"""Tests of the progress that a run shows by default."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import protofl as pf


def test_lines_on_standard_error(run, capsys, tmp_path):
    run("local", progress=True)
    out, lines = capsys.readouterr()
    assert out == ""
    found = lines.splitlines()
    assert found[0].startswith("note: preparing arrays-")
    assert found[1].startswith("local · mlp · arrays:") and found[1].endswith("2 clients, 2 rounds")
    rounds = [line for line in found if line.startswith("round ")]
    assert [line.split(":")[0] for line in rounds] == ["round 1/2", "round 2/2"]
    assert "(best), loss" in rounds[0]
    assert found[-1].startswith("best on test samples: ") and str(tmp_path / "run") in found[-1]


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_few_samples_are_noted_for_nets_with_batchnorm(run, table, capsys, norm):
    def build(sample, num_classes, feature_dim):
        first = nn.Linear(sample.shape[0], feature_dim)
        net = nn.Sequential(first, norm(feature_dim), nn.ReLU())
        return pf.models.SplitModel(net, nn.Linear(feature_dim, num_classes), feature_dim)

    class Group:
        kinds = ("table",)

        @pf.hookimpl
        def architectures(self):
            return [pf.models.Architecture("net", build)]

    x, y = table
    run("local", models=Group, dataset=(x[:10], y[:10]), progress=True)
    line = "note: 2 clients have fewer than 4 training samples: BatchNorm in eval mode"
    assert (line in capsys.readouterr().err) == (norm is nn.BatchNorm1d)


def test_nothing_where_nothing_is_wanted(run, capsys):
    run("local", progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_run_that_goes_on_knows_its_best(run, capsys, tmp_path):
    def stop(event):
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("local", progress=stop, rounds=3, trials=2)
    pf.run(resume=True, out=tmp_path / "run", backend="local")
    lines = capsys.readouterr().err.splitlines()
    assert "resuming after 1 finished round" in lines
    assert any(
        line.startswith("trial 2/2 round 1/3: accuracy") and "(best)" in line for line in lines
    )
    assert ", mean of 2 trials (majority guess" in lines[-1]


def test_a_result_and_a_data_set_are_shown_in_a_line(run):
    x, y = torch.zeros(20, 1, 8, 8, dtype=torch.uint8), torch.arange(20) % 2
    rows = [(torch.arange(5), torch.arange(5, 10)), (torch.arange(10, 15), torch.arange(15, 20))]
    found = pf.datasets.Dataset(x, y, 20, ["a", "b"], rows)
    assert repr(found) == (
        "Dataset(20 samples (1, 8, 8), 2 classes, 20 for training, split over 2 clients)"
    )
    result = run("local")
    last = result.summary["final_test_accuracy"]
    assert repr(result) == f"Result(2 rounds, last test accuracy {last:.4f}, '{result.folder}')"
