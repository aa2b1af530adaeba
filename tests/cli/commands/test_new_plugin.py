"""Tests of ``protofl new-plugin``: every kind installs, is listed, runs and passes its tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installing import forget_new_plugins, write_dist_info
from slowness import quick
from typer.testing import CliRunner

from protofl import __version__
from protofl.hooks.discovery.kinds import KINDS
from protofl_cli.app import app
from protofl_cli.commands import new_plugin

RUN = {
    "method": ["run", "my-method", "--models", "cnn4"],
    "model-group": ["run", "fedproto", "--models", "my-model-group"],
    "partitioner": ["run", "fedproto", "--models", "cnn4", "--partition", "my-partitioner"],
    "dataset": ["run", "fedproto", "--models", "cnn4", "--dataset", "my-dataset"],
    "generator": ["run", "fedktl", "--models", "cnn4", "--generator", "my-generator"],
    "payload-transform": ["run", "fedproto", "--models", "cnn4", "--with", "my-payload-transform"],
    "metric": ["run", "fedproto", "--models", "cnn4", "--metrics", "my-metric"],
    "client-sampler": ["run", "fedproto", "--models", "cnn4", "--sampling", "my-client-sampler"],
    "device-model": ["run", "fedproto", "--models", "cnn4", "--devices", "my-device-model"],
    "schedule": "run fedproto --models cnn4 --devices tiers --schedule my-schedule".split(),
    "tracker": ["run", "fedproto", "--models", "cnn4", "--track", "my-tracker"],
    "engine": ["run", "fedproto", "--models", "cnn4", "--engine", "my-engine"],
    "backend": ["run", "fedproto", "--models", "cnn4", "--backend", "my-backend"],
}
"""{kind: the words of a run with the new plugin}. The new command reads a run instead."""


VARIANTS = {f"{samples}-{kind[:4]}": (kind, samples) for kind, samples in new_plugin.SAMPLES}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write a new plugin of every kind, installed as by pip; return {kind: folder}."""
    root = tmp_path_factory.mktemp("plugins")
    folders = {}
    every = {kind: (kind, "image") for kind in new_plugin.KINDS} | VARIANTS
    for name, (kind, samples) in every.items():
        folder = root / name
        words = ["new-plugin", f"my-{name}", "--kind", kind, "--samples", samples]
        words += ["--out", str(folder)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        write_dist_info(folder, folder / "src")
        folders[name] = folder
    return folders


@pytest.fixture
def installed(written, monkeypatch):
    for folder in written.values():
        monkeypatch.syspath_prepend(str(folder / "src"))
    forget_new_plugins()
    yield written
    forget_new_plugins()


def test_there_is_a_template_for_every_kind():
    assert {*new_plugin.KINDS} <= {*KINDS}
    assert {*RUN} == {*new_plugin.KINDS} - {"command"}


@pytest.mark.parametrize("kind", RUN)
def test_it_is_listed_and_shown(installed, cli, kind):
    found = json.loads(cli("list-plugins", "--kind", kind, "--json").stdout)
    mine = next(p for p in found if p["name"] == f"my-{kind}")
    assert mine["status"] == "ok" and mine["hooks"]
    assert (mine["distribution"], mine["version"]) == (f"protofl-my-{kind}", "0.1.0")
    shown = cli("show", f"{kind}/my-{kind}")
    assert shown.exit_code == 0, shown.output


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(RUN, "method"))
def test_it_runs(installed, cli, kind, data_dir, few):
    words = "--clients 2 --rounds 1 --batch-size 64 --feature-dim 16 --out run".split()
    words += ["--data-dir", str(data_dir)]
    if kind == "dataset":
        words += ["--set", "dataset.samples=200"]
    else:
        words += ["--dataset", few]
    if kind != "backend":
        words += ["--backend", "local"]
    result = cli(*RUN[kind], *words)
    assert result.exit_code == 0, result.output
    record = Path("run/metrics.jsonl").read_text().splitlines()
    assert len(record) == 1
    if kind not in ("backend", "tracker"):  # not recorded, because results do not depend on it
        assert f"protofl-my-{kind}" in Path("run/config.json").read_text()


@pytest.mark.parametrize(
    "kind",
    quick(
        "partitioner dataset generator client-sampler device-model tracker schedule".split(),
        *"partitioner dataset generator client-sampler device-model tracker".split(),
    ),
)
def test_it_passes_the_check(installed, cli, kind, data_dir):
    result = cli("check", f"my-{kind}", "--data-dir", data_dir)
    assert result.exit_code == 0, result.output
    assert f"protofl-my-{kind} 0.1.0" in result.stdout


@pytest.mark.slow
def test_a_new_command_reads_a_run(installed, cli, tiny):
    assert cli("run", "fedproto", *tiny, "--out", "run").exit_code == 0
    found = cli("my-command", "run", "--accuracy", "0.01")
    assert found.exit_code == 0 and found.output.startswith("round 1: 0.")
    found = cli("my-command", "run", "--accuracy", "0.01", "--json")
    assert json.loads(found.stdout).keys() == {"round", "test_accuracy"}
    found = cli("my-command", "run", "--accuracy", "1")
    assert found.exit_code == 2 and "did not reach an accuracy of 1" in found.stderr
    checked = cli("check", "command/my-command")
    assert checked.exit_code == 0, checked.output
    assert "Print the first round" in cli("list-plugins", "--kind", "command").output
    assert "protofl my-command --help" in (installed["command"] / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(VARIANTS, "table-data", "tokens-mode"))
def test_one_for_other_samples_than_images(installed, cli, name, data_dir):
    kind, samples = VARIANTS[name]
    checked = cli("check", f"{kind}/my-{name}", "--data-dir", data_dir)
    assert checked.exit_code == 0, checked.output
    run = new_plugin.run_command(kind, f"my-{name}", samples).split()[1:]
    small = ["--clients", "3", "--rounds", "1", "--backend", "local", "--data-dir", str(data_dir)]
    small.append("--no-dry-run")  # the check has already run one
    run = [word for word in run if word not in ("--rounds", "3")]
    result = cli(*run, *small, "--out", "run")
    assert result.exit_code == 0, result.output
    readme = (installed[name] / "README.md").read_text()
    assert f"--{'models' if kind == 'model-group' else 'dataset'} my-{name}" in readme


@pytest.mark.slow
def test_they_pass_their_own_tests(installed):
    """`pytest` passes in the folder of every new plugin."""
    folders = [*installed.values()]
    paths = os.pathsep.join([*(str(folder / "src") for folder in folders), *sys.path])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-W", "error::pytest.PytestWarning", *(str(f / "tests") for f in folders)],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=folders[0].parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 80


def test_it_is_clean(written):
    """The new plugins pass ruff with strict rules."""
    pytest.importorskip("ruff")
    rules = "E,F,W,I,UP,B,ANN,D,RUF"
    style = ["--config", 'lint.pydocstyle.convention="google"', "--select", rules]
    style += ["--ignore", "RUF001,RUF002,RUF003,RUF012,D105,D107"]
    ruff = [sys.executable, "-m", "ruff"]
    common = ["--isolated", "--line-length=100", "--no-cache"]
    sources = [str(folder / "src") for folder in written.values()]
    for words in (["check", *style], ["format", "--check"]):
        command = [*ruff, *words, *common, *sources]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_names_that_the_module_uses_are_left_to_it(cli):
    """The name of a class is never one that its module imports."""
    for name, kind in (("tensor", "payload-transform"), ("none", "method"), ("path", "dataset")):
        assert cli("new-plugin", name, "--kind", kind).exit_code == 0
        source = Path(f"protofl-{name}/src/protofl_{name}/__init__.py").read_text()
        expected = name.title() + kind.title().replace("-", "")
        assert f"class {expected}:" in source
        compile(source, name, "exec")


def test_an_underscore(cli):
    assert cli("new-plugin", "fed_x-2", "--kind", "dataset").exit_code == 0
    source = Path("protofl-fed_x-2/src/protofl_fed_x_2/__init__.py").read_text()
    assert "class FedX2:" in source and 'f"fed-x-2-{' in source


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Fed X"], "try: protofl new-plugin fed-x"),
        (["9lives"], "expected lower-case letters"),
        (["fed-"], "try: protofl new-plugin fed"),
        (["protofl-mine"], "leave protofl out: protofl new-plugin mine"),
        (["fedsa"], f"method 'fedsa' is taken: protofl {__version__} provides it"),
        (["digits", "--kind", "dataset"], "dataset 'digits' is taken"),
        (["mine", "--kind", "metod"], "did you mean 'method'"),
        (["mine", "--samples", "table"], "there is one template of a method for all samples"),
        (["mine", "--kind", "dataset", "--samples", "tables"], "did you mean 'table'"),
        (["mine", "--out", "used"], "used exists already"),
        (["mine", "--out", "used/file.txt"], "used/file.txt exists already"),
    ],
)
def test_refusals(cli, words, said):
    Path("used").mkdir()
    Path("used/file.txt").write_text("mine")
    result = cli("new-plugin", *words)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())
    assert [*Path().rglob("*.toml")] == []


def test_a_distribution_of_that_name(installed, cli):
    result = cli("new-plugin", "my-method", "--kind", "payload-transform")
    assert result.exit_code == 2
    assert "a package protofl-my-method is installed" in result.stderr


def test_an_empty_folder_will_do(cli):
    Path("mine").mkdir()
    assert cli("new-plugin", "mine", "--out", "mine").exit_code == 0
    assert Path("mine/pyproject.toml").is_file()
    shutil.rmtree("mine")
