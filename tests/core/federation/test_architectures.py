"""Tests of ``--architectures``: the architecture of each client."""

from __future__ import annotations

import pytest
from torch import nn

import protofl as pf
from protofl.records.layout import architectures_in
from protofl_workbench.comparing.trials import accuracies_by_architecture

BASE = {"dataset": "digits", "subset": 300, "clients": 5, "batch_size": 64, "rounds": 2}
BASE |= {"local_epochs": 1, "device": "cpu", "backend": "local", "progress": False}
BASE |= {"feature_dim": 16}
BASE |= {"measure": ["flops"], "observe": ["prototypes"], "devices": "uniform"}


class Reordered:
    """The fourth and the first architecture of htcnn8, in this order."""

    min_side = 28

    @pf.hookimpl
    def architectures(self) -> list[pf.Architecture]:
        """Return two architectures."""
        found = {a.name: a for a in architectures_of()}
        return [found["htcnn8-4"], found["htcnn8-1"]]


def architectures_of():
    from protofl.hooks.discovery.registry import Registry
    from protofl.hooks.plugin.members import choose

    return choose(Registry(), "model-group", "htcnn8").call("architectures")


def lines(run):
    times = ("seconds", "time")
    return [{k: v for k, v in row.items() if k not in times} for row in run.record]


@pytest.mark.parametrize("server", ["", "the server's net too"])
def test_the_option_norm_of_a_group(server):
    given = {"models": "htfe2", "dataset": "digits", "subset": 300, "clients": 2, "public": 20}
    given |= {"method": "fedpkd" if server else "fedavg", "architectures": "resnet18,resnet18"}
    plans = [
        pf.backends.Plan.make(given | {"options": {"models": {"norm": norm}}})
        for norm in ("batch", "group")
    ]
    for plan, norm in zip(plans, (nn.BatchNorm2d, nn.GroupNorm), strict=True):
        built = [plan.initial_model(0, 0)]
        built += [plan.info.build(plan.info.server_architecture, 0)] if server else []
        for model in built:
            found = {type(m) for m in model.modules() if "Norm" in type(m).__name__}
            assert found == {norm}
    assert plans[1].choices["model-group"].dump()["norm"] == "group"


def test_a_group_without_batch_norm_refuses_another_norm():
    with pytest.raises(pf.UsageError, match="no net of cnn4 has BatchNorm"):
        pf.run("fedavg", models="cnn4", dataset="digits", set={"models.norm": "group"})


@pytest.mark.slow
def test_a_list_equals_a_group_in_that_order(tmp_path):
    """Models, costs, virtual time and FLOPs follow each client's architecture."""
    listed = pf.run(
        "fedproto", models="htcnn8", architectures="3,htcnn8-1,3,0,3", out=tmp_path / "a", **BASE
    )
    turns = pf.run("fedproto", models=Reordered, out=tmp_path / "b", **BASE)
    assert lines(listed) == lines(turns)
    listed, turns = pf.load_run(listed.folder), pf.load_run(turns.folder)
    names = ["htcnn8-4", "htcnn8-1", "htcnn8-4", "htcnn8-1", "htcnn8-4"]
    assert architectures_in(listed.config) == names
    assert accuracies_by_architecture(listed) == accuracies_by_architecture(turns)
    for run in (listed, turns):
        seen = run.observed.prototypes()
        assert [seen.architecture_of(client) for client in range(5)] == names
    assert listed.identity != turns.identity


@pytest.mark.slow
def test_weights_of_a_run_with_a_list_start_another(tmp_path):
    base = BASE | {"rounds": 1, "devices": None, "measure": [], "observe": []}
    first = pf.run("local", models="htcnn8", architectures="3,0,0,3,3", out=tmp_path / "a", **base)
    more = base | {"architectures": "3,0,0,3,0", "init": first.folder}
    second = pf.run("local", models="htcnn8", out=tmp_path / "b", **more)
    assert pf.load_run(second.folder).settings.architectures[4] == "htcnn8-1"
    more |= {"architectures": "1,0,0,3,0"}
    with pytest.raises(pf.UsageError, match="htcnn8-2"):
        pf.run("local", models="htcnn8", out=tmp_path / "c", **more)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0,1", ["--architectures lists 2, and the run has 5 clients", "--clients 2"]),
        (
            "0,1,2,3,8",
            ["unknown architecture in --architectures: '8'", "the group has: 0 htcnn8-1"],
        ),
        ("0,1,2,3,-1", ["unknown architecture in --architectures: '-1'"]),
        ("0,1,2,3,htcnn8-9", ["'htcnn8-9'", "did you mean"]),
        ("0,1,,2,3", ["unknown architecture in --architectures: ''"]),
        ([0, 1, 2, 3, 1.5], ["--architectures"]),
        (3, ["--architectures"]),
    ],
)
def test_a_wrong_list_is_refused_in_a_line(given, words, tmp_path):
    with pytest.raises(pf.UsageError) as caught:
        pf.run("fedproto", models="htcnn8", architectures=given, out=tmp_path / "x", **BASE)
    text = str(caught.value)
    assert all(each in text for each in words), text
    assert not (tmp_path / "x").exists()
