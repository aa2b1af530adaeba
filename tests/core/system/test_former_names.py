"""Tests of former names: each door takes them, says the current name once, and changes nothing."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

import protofl as pf
from protofl.hooks.discovery.kinds import KINDS
from protofl.hooks.discovery.registry import Registry
from protofl.runs.request import read_request
from protofl.system import former_names
from protofl.system.former_names import (
    RenamedWarning,
    as_hashed,
    current_label,
    current_options,
    current_words,
)
from protofl.system.options.table import OPTIONS, build
from protofl_cli.app import app


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """Former names are told again in each test, as warnings."""
    monkeypatch.setattr(former_names, "_told", set())
    monkeypatch.setattr(former_names, "show", None)


def test_the_current_names_exist():
    assert {*former_names.OPTIONS.values()} <= OPTIONS.keys()
    assert not {*former_names.OPTIONS} & OPTIONS.keys()
    assert {*former_names.KINDS.values()} == former_names.GROUPS.keys() <= KINDS.keys()
    for (kind, _), name in former_names.PLUGINS.items():
        assert Registry().find(kind, name).name == name
    for module, names in former_names.PUBLIC.items():
        space = importlib.import_module(f"protofl.{module}".rstrip("."))
        assert all(hasattr(space, name) for name in names.values())


FORMER = {
    "method": "fedproto",
    "models": "mlp",
    "dataset": "breast-cancer",
    "world": "tiers",
    "selection": "size",
    "wrappers": ["quantise"],
    "dry_step": False,
    "engine": "captured",
    "set": {"world.spread": 0, "selection.power": 0.5},
    "block": ["wrapper/top-k"],
}
NOW = {
    "method": "fedproto",
    "models": "mlp",
    "dataset": "breast-cancer",
    "devices": "tiers",
    "sampling": "size",
    "transforms": ["quantise"],
    "dry_run": False,
    "engine": "cuda-graphs",
    "set": {"devices.spread": 0, "sampling.power": 0.5},
    "block": ["payload-transform/top-k"],
}


def test_arguments_of_a_program():
    with pytest.warns(RenamedWarning) as told:
        former = read_request(FORMER).options
    assert former == read_request(NOW).options
    said = [str(one.message) for one in told]
    assert "--world is now --devices" in said and "kind wrapper is now payload-transform" in said
    assert len(said) == len({*said})
    assert build(former).devices == "tiers"


def test_both_names_of_one_option():
    with pytest.warns(RenamedWarning), pytest.raises(pf.UsageError, match="the same option"):
        current_options({"world": "tiers", "devices": "uniform"})


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('world = "tiers"\nset = ["world.spread=0"]', {"devices": {"spread": "0"}}),
        ('world = "tiers"\nset."world.spread" = 0', {"devices": {"spread": 0}}),
        ('world = "tiers"\n[set.world]\nspread = 0', {"devices": {"spread": 0}}),
        ('world = "tiers"\n[options.world]\nspread = 0', {"devices": {"spread": 0}}),
    ],
)
def test_a_file_of_options(tmp_path, text, options):
    file = tmp_path / "run.toml"
    file.write_text(f'method = "fedproto"\nmodels = "mlp"\ndry-step = false\n{text}\n')
    with pytest.warns(RenamedWarning):
        found = read_request({}, config=file).options
    assert (found["devices"], found["dry_run"], found["options"]) == ("tiers", False, options)


def test_classes_of_former_kinds():
    class Mine:
        """Devices."""

        @pf.hookimpl
        def device(self, client, config):
            return {}

    with pytest.warns(RenamedWarning, match="kind world is now device-model"):
        registry = Registry(extra={("world", "mine"): Mine})
    assert registry.load("device-model", "mine") is Mine


def test_entry_points_of_former_groups(tmp_path, monkeypatch):
    info = tmp_path / "older-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: older\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[protofl.worlds]\nolder = older_module:Older\n")
    source = (
        "import protofl as pf\n\nclass Older:\n    @pf.hookimpl\n"
        "    def device(self, client):\n        return {}\n"
    )
    (tmp_path / "older_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    told = "protofl.worlds of older is now protofl.device_models"
    with pytest.warns(RenamedWarning, match=told):
        found = Registry().find("device-model", "older")
    assert (found.distribution, found.label) == ("older", "device-model/older")
    sys.modules.pop("older_module", None)


def test_a_loss_with_the_former_argument():
    class Pulls:
        """pluggy passes only arguments of the specification, so the author has to rename it."""

        terms = {"ce": "cross-entropy"}

        @pf.hookimpl
        def local_loss(self, client, batch, output, given):
            return {}

    with pytest.raises(pf.UsageError, match="the argument given is now constants") as error:
        Registry(extra={("method", "pulls"): Pulls}).load("method", "pulls")
    assert "rename it at test_former_names.py:" in error.value.do


def test_a_server_with_the_former_attribute(tmp_path):
    class Reads:
        """Sends what the server knows."""

        @pf.hookimpl
        def download_payload(self, server, client_id):
            return pf.Payload(server.knowledge)

    with pytest.warns(RenamedWarning, match=r"server.knowledge is now server.global_state"):
        pf.run(
            Reads, models="mlp", dataset="breast-cancer", clients=2, rounds=1, batch_size=256,
            backend="local", device="cpu", out=tmp_path / "run", progress=False,
        )  # fmt: skip


def test_public_names():
    for name, now in (("Given", "LossData"), ("study", "reproduction")):
        with pytest.warns(RenamedWarning, match=f"protofl.{name} is now protofl.{now}"):
            assert getattr(pf, name) is getattr(pf, now)
    with pytest.warns(RenamedWarning):
        assert pf.events.DryStepStarted is pf.events.DryRunStarted
    import protofl.testing as testing

    with pytest.warns(RenamedWarning):
        assert testing.WrapperContract is testing.PayloadTransformContract
    with pytest.raises(AttributeError):
        _ = testing.NoContract


@pytest.mark.parametrize(
    ("typed", "now"),
    [
        ("run fedproto --world tiers --no-dry-step", "run fedproto --devices tiers --no-dry-run"),
        ("run x --selection=size --dry-step", "run x --sampling=size"),
        ("show world/tiers", "show device-model/tiers"),
        ("check wrapper/a.py:B --set x=1", "check payload-transform/a.py:B --set x=1"),
        ("show hook/wrapper.upload_payload", "show hook/payload-transform.upload_payload"),
        ("show engine/captured", "show engine/cuda-graphs"),
        ("list-plugins --kind study", "list-plugins --kind reproduction"),
        ("new-plugin a --kind=selection", "new-plugin a --kind=client-sampler"),
        ("run x --block wrapper/top-k", "run x --block payload-transform/top-k"),
    ],
)
def test_the_command_line(typed, now):
    with pytest.warns(RenamedWarning):
        assert current_words(typed.split()) == now.split()
    assert current_words(now.split()) == now.split()


def test_words_that_are_no_names_stay():
    words = "run world --out selection/a --config study/b.toml --set fedproto.world=1".split()
    assert current_words(words) == words
    assert current_label("my/world") == "my/world"


def test_the_line_on_standard_error(capsys):
    with pytest.raises(SystemExit) as end:
        app(["list-plugins", "--kind", "world", "--names"])
    shown = capsys.readouterr()
    assert end.value.code == 0 and "tiers" in shown.out
    assert shown.err == "note: kind world is now device-model\n"


def test_a_dry_run_is_not_asked_for(capsys):
    with pytest.raises(SystemExit) as end:
        app(["run", "fedproto", "--models", "mlp", "--dry-run"])
    assert end.value.code == 2
    assert "--plan" in (said := capsys.readouterr().err) and "--no-dry-run" in said


def test_an_identity_does_not_depend_on_names():
    """The hash of a run is that of version 0.1.0, where its options had other names."""
    now = (
        {"devices": "tiers", "engine": "cuda-graphs", "lr": 0.1},
        {"sampling": {"power": 1.0}, "fedproto": {"lambda": 1.0}},
        {"devices": "aa", "text_encoder/x.json": "bb", "digest": "cc"},
        [["device-model", "tiers", "protofl", "1"], ["engine", "cuda-graphs", "protofl", "1"]],
    )
    assert as_hashed(*now) == [
        {"world": "tiers", "engine": "captured", "lr": 0.1},
        {"selection": {"power": 1.0}, "fedproto": {"lambda": 1.0}},
        {"world": "aa", "text_encoder/x.json": "bb", "digest": "cc"},
        [["engine", "captured", "protofl", "1"], ["world", "tiers", "protofl", "1"]],
    ]


def test_a_reproduction_and_a_grid(tmp_path):
    from protofl_workbench.reproductions.finding import reproduction_of_file
    from protofl_workbench.sweeps.axes import read_axes

    file = tmp_path / "table.toml"
    file.write_text(
        'title = "T"\n[options]\nmodels = "mlp"\nworld = "tiers"\ndry_step = false\n'
        '[rows.local]\nselection = "size"\n[scales.smoke]\nrounds = 1\n'
    )
    with pytest.warns(RenamedWarning):
        found = reproduction_of_file(file)
    assert found.options == {"models": "mlp", "devices": "tiers", "dry_run": False}
    assert found.rows["local"].options == {"sampling": "size", "method": "local"}
    (axis,) = read_axes(["world.spread=0,1"])  # told already
    assert axis.key == "devices.spread"


def test_a_new_run_has_current_names(tmp_path):
    with pytest.warns(RenamedWarning):
        options = FORMER | {"engine": "eager", "block": [], "clients": 2, "rounds": 1}
        options |= {"backend": "local", "device": "cpu", "out": tmp_path / "run"}
        pf.run(**options, batch_size=256, progress=False)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["devices"], config["sampling"], config["transforms"]) == (
        "tiers",
        "size",
        ["quantise"],
    )
    assert not {*former_names.OPTIONS} & {*config, *config["options"], *config["set_by"]}
    assert {"device-model", "client-sampler"} <= {p["kind"] for p in config["plugins"]}
    starts = {name.partition("/")[0] for name in pf.read_weights(tmp_path / "run").server}
    assert "global_state" in starts and "knowledge" not in starts
