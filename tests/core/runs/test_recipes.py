"""Tests of recipes: published under a name, written to a file, and overridden by options."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from runtime_toys import install, train, without_times

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.runs.recipes import with_recipe, write_recipe
from protofl.runs.request import read_request
from protofl.system.files.tables import parse_toml, read_table, to_toml

MIX = """
description = "FedProto with a term of FedSA"
method = "fedproto"
local-epochs = 2
add = ["local_loss=fedsa.mcl"]
[use]
inference = "local"
[set]
lambda = 0.5
fedsa.lambda_2 = 0.25
"""


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Return a function that installs recipes: ``publish("cook", stew=TEXT)``."""

    def make(name, group="recipes", **recipes):
        site = tmp_path / name
        package = site / f"{name}_recipes"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("class M:\n    'A method.'\n")
        info = site / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"[protofl.{group}]"]
        for recipe, text in recipes.items():
            target = f"{name}_recipes" + (":M" if group == "methods" else "")
            lines.append(f"{recipe} = {target}")
            (package / f"{recipe}.toml").write_text(text)
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(site)
        return package

    yield make
    for name in [name for name in sys.modules if name.endswith("_recipes")]:
        del sys.modules[name]


def error_of(call, *given, **options):
    with pytest.raises(pf.UsageError) as caught:
        call(*given, **options)
    return caught.value


def test_a_recipe_stands_below_what_is_given(publish):
    publish("cook", stew=MIX)
    found = with_recipe({"method": "stew", "lr": 0.5})
    assert (found["method"], found["lr"], found["local_epochs"]) == ("fedproto", 0.5, 2)
    assert found["add"] == ["fedsa.mcl"] and found["use"] == {"inference": "local"}
    assert found["options"] == {"fedproto": {"lambda": 0.5}, "fedsa": {"lambda_2": 0.25}}
    assert found["recipe"] == {"name": "stew", "version": "1.2", "distribution": "cook"}
    given = {
        "method": "stew",
        "local_epochs": 1,
        "use": {"server_train": "fedtgp"},
        "add": [],
        "options": {"stew": {"lambda": 2}, "fedsa": {"alpha": 0.5}},
    }
    found = with_recipe(given)
    assert found["local_epochs"] == 1 and found["add"] == []
    assert found["use"] == {"inference": "local", "server_train": "fedtgp"}
    assert found["options"]["fedproto"] == {"lambda": 2}
    assert found["options"]["fedsa"] == {"alpha": 0.5, "lambda_2": 0.25}
    assert with_recipe(found) == found  # resolving twice changes nothing


@pytest.mark.slow
def test_a_run_of_a_recipe_and_its_record(publish, tmp_path, monkeypatch):
    install(monkeypatch)
    package = publish("cook", stew=MIX)
    first = train("stew", tmp_path / "first", set={"lambda": 0.75})
    config = json.loads((tmp_path / "first/config.json").read_text())
    assert config["recipe"] == {"name": "stew", "version": "1.2", "distribution": "cook"}
    assert config["method"] == "fedproto" and config["local_epochs"] == 2
    assert config["options"]["fedproto"]["lambda"] == 0.75
    assert set(first.record[-1]["loss_terms"]) == {"ce", "align", "fedsa.mcl"}
    by_hand = train(
        "fedproto",
        tmp_path / "hand",
        local_epochs=2,
        add=["fedsa.mcl"],
        use={"inference": "local"},
        set={"lambda": 0.75, "fedsa.lambda_2": 0.25},
    )
    assert without_times(by_hand.record) == without_times(first.record)
    # It is repeated and resumed from its own record, although the recipe has changed.
    shutil.copy(tmp_path / "first/config.json", tmp_path / "copy.json")
    (package / "stew.toml").write_text(MIX.replace("fedsa.lambda_2", "fedsa.lambda_1"))
    again = pf.run(config=tmp_path / "copy.json", out=tmp_path / "again", backend="local")
    assert without_times(again.record) == without_times(first.record)
    record = json.loads((tmp_path / "again/config.json").read_text())
    assert record == config
    done = pf.run("stew", resume=True, out=tmp_path / "first", backend="local")
    assert done.summary == first.summary


def test_the_run_folder_has_the_recipe_s_name(publish, tmp_path, monkeypatch):
    install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    publish("cook", stew=MIX)
    result = train("stew", None, rounds=1, dry_run=False)
    assert result.folder.name.startswith("stew-toy-tiny-s0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method = ", ["TOMLDecodeError"]),
        ("models = 'cnn4'", ["it names no method"]),
        ("method = 'local'\nlocal-epoch = 2", ["'local_epoch'", "did you mean 'local_epochs'"]),
        ("method = 'local'\nuse = ['inference']", ["--use", "HOOK=METHOD"]),
    ],
)
def test_a_broken_recipe_hurts_only_those_who_ask_for_it(publish, text, words):
    publish("cook", stew=text)
    error = error_of(with_recipe, {"method": "stew"})
    for word in ["recipe/stew of cook 1.2 is broken", *words]:
        assert word in str(error)
    registry = Registry()
    assert registry.status(registry.find("recipe", "stew"))[0].startswith("broken")
    assert with_recipe({"method": "fedsa"}) == {"method": "fedsa"}


def test_a_recipe_without_its_file(publish):
    package = publish("cook", stew=MIX)
    (package / "stew.toml").unlink()
    assert "FileNotFoundError" in error_of(with_recipe, {"method": "stew"}).what


def test_a_recipe_and_a_method_of_one_name(publish):
    publish("cook", stew=MIX)
    publish("rival", "methods", stew="")
    error = error_of(with_recipe, {"method": "stew"})
    assert error.what == "'stew' is a method of rival and a recipe of cook"
    assert "--block recipe/stew@cook" in error.do
    assert error_of(Registry().load, "method", "stew").what == error.what
    registry = Registry()
    for plugin in [*registry.plugins("method"), *registry.plugins("recipe")]:
        clash = registry.status(plugin)[0].startswith("clash")
        assert clash == (plugin.name == "stew")
    assert with_recipe({"method": "stew", "block": ["recipe/stew"]})["method"] == "stew"
    assert with_recipe({"method": "stew", "block": ["method/stew"]})["method"] == "fedproto"


def test_near_misses_of_methods_know_recipes():
    assert "'fedsa-tgp'" in error_of(Registry().find, "method", "fedsa-tpg").near


@pytest.mark.slow
def test_what_is_saved_can_be_run_and_published(publish, tmp_path, monkeypatch):
    install(monkeypatch)
    path = tmp_path / "mine.toml"
    given = {
        "use": {"inference": "local"},
        "add": ["fedsa.mcl"],
        "drop": ["align"],
        "transforms": ["gaussian-noise"],
        "set": {"fedsa.lambda_2": "0.5", "gaussian-noise.s": "0"},
    }
    first = train("fedproto", tmp_path / "first", save_recipe=path, seed=3, **given)
    text = path.read_text()
    saved = parse_toml(text)
    assert saved["method"] == "fedproto" and saved["use"] == {"inference": "local"}
    assert saved["add"] == ["local_loss=fedsa.mcl"] and saved["drop"] == ["local_loss.align"]
    assert saved["with"] == ["gaussian-noise"]
    assert saved["set"] == {"fedsa.lambda_2": 0.5, "gaussian-noise.s": 0.0}
    assert not saved.keys() & {"seed", "backend", "data_dir", "device"}
    options = {"seed": 3, "backend": "local", "device": "cpu", "data_dir": first.folder.parent}
    again = pf.run(config=path, out=tmp_path / "again", **options)
    assert without_times(again.record) == without_times(first.record)
    publish("cook", mine=text)
    third = pf.run("mine", out=tmp_path / "third", **options)
    assert without_times(third.record) == without_times(first.record)


def test_a_recipe_keeps_neither_what_is_measured_nor_what_is_observed(tmp_path, monkeypatch):
    install(monkeypatch)
    path = tmp_path / "mine.toml"
    recorded = {
        "measure": ["train-accuracy"],
        "metrics": ["ece"],
        "observe": ["prototypes"],
        "observe_every": 2,
        "observe_samples": 3,
        "observe_limit": 10,
        "record_uploads": True,
        "record_predictions": ["last"],
    }
    own = {"lambda": "0.5", "ece.bins": "5"}
    out = tmp_path / "run"
    train("fedproto", out, save_recipe=path, validation="1/4", set=own, **recorded)
    saved = parse_toml(path.read_text())
    assert not saved.keys() & recorded.keys()
    assert saved["validation"] == "1/4" and saved["rounds"] == 2
    assert saved["set"] == {"fedproto.lambda": 0.5}
    here = {"out": tmp_path / "again", "data_dir": out, "device": "cpu", "backend": "local"}
    again = pf.run(config=path, **here)
    assert [row["train_loss"] for row in again.record] == [
        row["train_loss"] for row in pf.load_run(out).rows
    ]


def test_json_is_as_good_as_toml(tmp_path):
    options = {"method": "fedsa", "lr": 0.5, "drop": ["mcl"], "options": {"fedsa": {"alpha": 1}}}
    for name in ("r.toml", "r.json"):
        write_recipe(tmp_path / name, options)
    one, two = (read_table(tmp_path / name, "--config", "options") for name in ("r.toml", "r.json"))
    assert one == two


def test_where_a_recipe_is_not_written(tmp_path, monkeypatch):
    install(monkeypatch)
    (tmp_path / "there.toml").write_text("x = 1\n")
    for name in ("there.toml", "recipe.txt", "no/folder.toml"):
        error = error_of(train, "local", tmp_path / "run", save_recipe=tmp_path / name)
        assert "--save-recipe" in error.what
        assert not (tmp_path / "run").exists()
    assert (tmp_path / "there.toml").read_text() == "x = 1\n"
    bad = {"use": {"inference": "fedproto"}, "save_recipe": tmp_path / "bad.toml"}
    with pytest.raises(pf.UsageError, match="'prototypes'"):
        train("local", tmp_path / "run", **bad, dry_run=True)
    assert not (tmp_path / "bad.toml").exists()  # the dry run failed


def test_toml_is_written_as_it_is_read():
    values = {
        "text": 'a "quoted" \\ word\nλ',
        "numbers": [1, 2.5, -3],
        "yes": True,
        "table": {"plain": 1, "with.dot": "x", "umläut": []},
    }
    assert parse_toml(to_toml(values)) == values


def test_a_file_with_a_key_that_is_none(tmp_path):
    (tmp_path / "r.toml").write_text("method = 'local'\nmodles = 'cnn4'\n")
    error = error_of(pf.run, config=tmp_path / "r.toml")
    assert "r.toml" in error.what and "'modles'" in error.what
    assert "did you mean 'models'" in error.near


# --- plugins that a recipe needs ------------------------------------------------------------------

GUEST = 'method = "fedproto"\n[use]\ninference = "fedx"\n'


@pytest.mark.parametrize(
    ("needs", "requires", "words"),
    [
        ("", "", ["the recipe does not name the distribution", "pip install protofl-fedx"]),
        (
            "",
            "Requires-Dist: protofl\nRequires-Dist: fedx-of-a-friend>=2\n"
            "Requires-Dist: other; extra == 'dev'\n",
            ["cook requires fedx-of-a-friend>=2", "pip install fedx-of-a-friend>=2"],
        ),
        ('[needs]\nfedx = "friends-methods"\n', "", ["pip install friends-methods"]),
    ],
    ids=["nothing is said", "its distribution requires it", "it says so"],
)
def test_what_it_lacks_is_named_with_what_to_install(needs, requires, words, publish):
    package = publish("cook", stew=GUEST + needs)
    metadata = package.parent / "cook-1.2.dist-info/METADATA"
    metadata.write_text(metadata.read_text() + requires)
    error = error_of(with_recipe, {"method": "stew"})
    wanted = "recipe 'stew' of cook 1.2 needs the method 'fedx', which is not installed"
    assert error.what == wanted
    assert all(text in f"{error.near} {error.do}" for text in words), (error.near, error.do)


def test_what_the_user_replaces_is_not_needed(publish):
    publish("cook", stew=GUEST)
    assert with_recipe({"method": "stew", "use": {"inference": "local"}})["method"] == "fedproto"


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ('method = "fedx"', "method", "fedx"),
        ('method = "local"\nadd = ["local_loss=fedx.term"]', "method", "fedx"),
        ('method = "local"\nadd = ["upload_payload=fedx"]', "method", "fedx"),
        ('method = "local"\nwith = ["fog"]', "payload-transform", "fog"),
        ('method = "local"\nmodels = "zoo"', "model-group", "zoo"),
        ('method = "local"\nsampling = "odd:FILE"', "client-sampler", "odd"),
    ],
)
def test_every_kind_of_plugin_is_looked_for(text, kind, name, publish):
    publish("cook", stew=text)
    assert f"needs the {kind} {name!r}, which" in error_of(with_recipe, {"method": "stew"}).what


@pytest.mark.parametrize(
    "file", ['method = "fedx"\n', 'method = "local"\nuse.inference = "fedx"\n']
)
def test_a_file_says_what_to_install(file, tmp_path):
    path = tmp_path / "stew.toml"
    path.write_text(f'{file}models = "cnn4"\n[needs]\nfedx = "friends-methods"\n')
    with pytest.raises(pf.UsageError) as told:
        read_request({}, config=path)
    assert told.value.what == f"--config {path} needs the method 'fedx', which is not installed"
    assert told.value.do == "pip install friends-methods"
    over = {"method": "fedproto", "use": ["inference=local"]}  # overrides both uses of fedx
    assert read_request(over, config=path).options["models"] == "cnn4"


def test_a_recipe_is_checked(publish, tmp_path):
    """By name or as a file: an error fails only the check that it concerns."""
    from protofl.testing import run_checks
    from protofl_cli.check_target import contract_for

    def outcomes(text):
        found = run_checks(contract_for(text))
        return {f.check: f.outcome for f in found}, {f.check: f.why for f in found}

    publish("cook", good="method = 'fedproto'\nlr = 0.1\n", stew=GUEST)
    assert {*outcomes("good")[0].values()} == {"passed"}
    found, why = outcomes("recipe/stew")
    assert {check for check, outcome in found.items() if outcome == "failed"} == {
        "what_it_names_is_installed"
    }
    assert "the method 'fedx'" in why["what_it_names_is_installed"]
    path = tmp_path / "mine.toml"
    path.write_text('method = "local"\nseed = 3\nlr = -1\n')
    found, why = outcomes(str(path))
    assert {check for check, outcome in found.items() if outcome == "failed"} == {
        "it_is_no_run",
        "the_dry_run",
    }
    assert found["two_rounds"] == "not reached"  # because of the same error
    assert "it sets seed" in why["it_is_no_run"] and "--lr -1" in why["the_dry_run"]
    path.write_text('method = "local"\nlocal-epocs = 3\n')
    with pytest.raises(pf.UsageError, match=r"mine\.toml: unknown option 'local_epocs'"):
        contract_for(str(path))


def test_a_recipe_of_others_plugins_says_whose_they_are(publish):
    from protofl.testing import run_checks
    from protofl_cli.check_target import contract_for

    publish("friends", group="methods", fedx="")
    for needs, failed in (("", True), ('[needs]\nfedx = "friends"\n', False)):
        name = "stew" if failed else "soup"
        publish(f"cook{name}", **{name: f'method = "fedx"\n{needs}'})
        found = {f.check: f for f in run_checks(contract_for(f"recipe/{name}"))}
        finding = found["its_distribution_requires_theirs"]
        assert (finding.outcome == "failed") is failed
        assert not failed or "the method 'fedx' is of friends: write 'friends'" in finding.why


def test_the_environment_says_where_data_are(monkeypatch, tmp_path):
    from runtime_toys import make_plan

    from protofl.system.files.atomic import default_data_dir

    monkeypatch.delenv("PROTOFL_DATA_DIR", raising=False)
    assert default_data_dir() == Path("~/.cache/protofl")
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(tmp_path / "there"))
    plan = make_plan("local", data_dir=None)
    assert plan.settings.data_dir == tmp_path / "there" and [*(tmp_path / "there").iterdir()]
