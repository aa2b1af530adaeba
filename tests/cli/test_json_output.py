"""Tests of ``--json``: commands that print a table have it, and print one JSON value."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_cli.json.json_output import json_output, print_json

SCRIPTS = Path(__file__).parents[2] / "docs" / "how-to" / "use-in-scripts.md"
PROTOFL = [sys.executable, "-c", "from protofl_cli.start import main; main()"]

WITHOUT = {
    "report": "writes a page",
    "plot": "writes a picture",
    "runs rm": "removes files",
    "new-plugin": "writes a package",
    "deploy add-node": "writes a file",
    "deploy server": "runs until it is interrupted",
    "deploy run": "its run folder has the results: protofl runs show --json",
    "deploy stop": "stops runs",
    "node start": "runs until it is interrupted",
}
"""Commands without ``--json``, and what they do instead of printing a table."""


def commands(context, before=""):
    """Yield the words of each command and the command, also those of plugins."""
    for name in context.command.list_commands(context):
        _, command, _ = context.command.resolve_command(context, [name])
        words = f"{before} {name}".strip()
        if hasattr(command, "list_commands"):
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            yield from commands(inner, words)
        else:
            yield words, command


@pytest.fixture(scope="module")
def with_json():
    """Return the words of the commands with ``--json``."""
    root = typer.main.get_command(app).make_context("protofl", [], resilient_parsing=True)
    flags = {
        words: {flag for parameter in command.params for flag in parameter.opts}
        for words, command in commands(root)
    }
    result = {words for words, found in flags.items() if "--json" in found}
    assert result.isdisjoint(WITHOUT) and flags.keys() <= result | WITHOUT.keys()
    return result


# --- the writer -----------------------------------------------------------------------------------


def test_numbers_keep_all_digits_and_json_has_no_nan(capsys):
    third = 1 / 3
    print_json({"a": third, "b": [math.nan, -math.inf], "c": Path("x"), 4: ("τ", True)})
    values = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert values == {"a": third, "b": [None, None], "c": "x", "4": ["τ", True]}
    with pytest.raises(TypeError, match="JSON has no object"):
        print_json(object())


@pytest.mark.parametrize(("encoding", "text"), [("utf-8", "τ"), ("ascii", r"\u03c4")])
def test_characters_that_the_encoding_lacks_are_escaped(monkeypatch, encoding, text):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    print_json({"option": "τ", "file": "\udcff"} if encoding == "ascii" else {"option": "τ"})
    written = stream.buffer.getvalue().decode(encoding)
    assert text in written and json.loads(written)["option"] == "τ"


def test_other_output_goes_to_standard_error(capsys):
    with json_output():
        print("a note")
        print_json([1])
    streams = capsys.readouterr()
    assert json.loads(streams.out) == [1] and streams.err == "a note\n"


# --- every command --------------------------------------------------------------------------------

TOML = """
title = "Accuracy (%)"
paper = "Ours"
place = "Table 1"
kind = "table"
figure = "best"
[options]
models = "mlp"
dataset = "wine"
clients = 3
rounds = 2
partition = "iid"
backend = "local"
[columns]
iid = { label = "iid", partition = "iid" }
[published]
local = "50.0"
fedproto = "60.00±1.25"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """Return a folder with runs, an exported client and a reproduction."""
    folder = tmp_path_factory.mktemp("json")
    given = {"dataset": "wine", "models": "mlp", "clients": 3, "rounds": 2, "dry_run": False}
    given |= {"data_dir": data_dir, "backend": "local", "progress": False, "partition": "iid"}
    for method in ("local", "fedproto"):
        pf.run(method, out=folder / "runs" / method, keep="last", **given)
    (folder / "table.toml").write_text(TOML, encoding="utf-8")
    np.savez(
        folder / "few.npz",
        x_train=np.random.default_rng(0).integers(0, 256, (128, 32, 32, 3), np.uint8),
        y_train=np.arange(128) % 4,
    )
    return folder


RUN = "fedproto --models mlp --dataset wine --clients 3 --rounds 1 --backend local --no-dry-run"

CASES = [
    f"run {RUN} --out new",
    f"run {RUN} --reuse reused",
    f"run {RUN} --quiet --profile --out other",
    f"run {RUN} --plan",
    f"sweep {RUN} --grid lr=0.1,0.2 --runs swept --at-once 0 --out sweep",
    f"sweep {RUN} --grid lr=0.1,0.2 --runs swept --at-once 0 --plan",
    "reproduce --list",
    "reproduce table.toml --runs repeated --at-once 0",
    "reproduce table.toml --runs repeated --plan",
    "reproduce benchmark/regimes --scale smoke --no-run --columns four-b05-n30",
    "compare runs",
    "compare runs --out comparison.md",
    "evaluate runs/fedproto wine",
    "evaluate runs/fedproto --cross",
    "join runs/fedproto wine",
    "list-plugins --kind partitioner",
    "show fedproto",
    "show mlp",
    "show torchvision",
    "show digits",
    "show trimmed-mean",
    "show reproduction/fedtgp",
    "show machine",
    "generator train npz:few.npz --set epochs=1 --set steps=1 --out a.safetensors",
    "check iid",
    "runs list",
    "runs show fedproto local",
    "runs diff fedproto local",
    "partition show --dataset wine --clients 3",
    "publish runs/local --out published --force",
    "verify published",
    "verify published --no-run --digest 0123",
]
OF_SATELLITES = ["show leak", "leak runs/fedproto --budget 60 --clients 1", "node check nowhere"]
CODES = {
    "runs diff fedproto local": 1,
    "node check nowhere": 2,
    "verify published --no-run --digest 0123": 1,
}
"""Exit codes that differ from 0: the runs differ, and the node cannot start."""


def printed(result, code=0):
    """Return the value that a command has printed."""
    assert result.exit_code == code, result.output
    assert "\x1b" not in result.stdout
    return json.loads(result.stdout, parse_constant=pytest.fail)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        *(pytest.param(words, id=words[:40]) for words in CASES),
        *(pytest.param(w, id=w[:40], marks=pytest.mark.satellites) for w in OF_SATELLITES),
    ],
)
def test_output_is_one_json_value(words, folder, data_dir, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(data_dir))
    if words.startswith("leak"):
        pytest.importorskip("skimage")
    if words.startswith("verify") and not Path("published").exists():
        pf.publish("runs/local", "published")
    result = CliRunner().invoke(app, [*words.split(), "--json"])
    assert printed(result, CODES.get(words, 0))


OF_PAGE = {
    "run": f"run {RUN} --out page",
    "run --plan": f"run {RUN} --plan",
    "runs list": "runs list",
    "runs show": "runs show fedproto",
    "compare": "compare runs",
    "evaluate": "evaluate runs/fedproto wine",
    "evaluate --cross": "evaluate runs/fedproto --cross",
    "join": "join runs/fedproto wine",
    "list-plugins": "list-plugins --kind partitioner",
    "show": "show fedproto",
}
"""{command in the table of the page: what the test calls}."""


@pytest.mark.slow
@pytest.mark.parametrize("command", OF_PAGE)
def test_the_page_names_the_keys(command, folder, data_dir, monkeypatch):
    text = SCRIPTS.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| an object[^|]* \| (.*) \|$", text, re.MULTILINE))
    assert rows.keys() == OF_PAGE.keys()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(data_dir))
    value = printed(CliRunner().invoke(app, [*OF_PAGE[command].split(), "--json"]))
    keys = (value[0] if isinstance(value, list) else value).keys()
    assert {*re.findall(r"`(\w+)`", rows[command])} == {*keys}


@pytest.mark.slow
def test_commands_that_write_files_print_json(folder, data_dir, monkeypatch):
    """An exported client and its scores."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(data_dir))
    words = ["export", "runs/fedproto", "client.pt2", "--json"]
    assert printed(CliRunner().invoke(app, words))["file"] == "client.pt2"
    np.save("rows.npy", np.ones((2, 13)))
    words = ["score", "client.pt2", "rows.npy", "--trust-pickle", "--json"]
    assert len(printed(CliRunner().invoke(app, words))["samples"]) == 2


@pytest.mark.slow
@pytest.mark.satellites
def test_commands_of_a_deployment_print_json(monkeypatch, tmp_path):
    """Flower's programs are replaced: the tests of protofl-flower have their answers."""
    from protofl_flower.deployment import (
        federation_file,
        node_export,
        node_process,
        rehearsal,
        server_process,
        service_files,
    )

    monkeypatch.chdir(tmp_path)
    nodes = [SimpleNamespace(name="a", clients=(0, 2)), SimpleNamespace(name="b", clients=(1,))]
    made = SimpleNamespace(nodes=nodes, folder=tmp_path, public="lab.org:9000")
    monkeypatch.setattr(federation_file, "read_federation", lambda folder: made)
    monkeypatch.setattr(server_process, "node_states", lambda federation: {"a": "online"})
    monkeypatch.setattr(server_process, "runs_of", lambda federation: {"17": "finished:completed"})
    status = printed(CliRunner().invoke(app, ["deploy", "status", "lab", "--json"]))
    assert [node["state"] for node in status["nodes"]] == ["online", "not registered"]
    assert status["runs"] == [{"run": "17", "state": "finished:completed"}]

    monkeypatch.setattr(server_process, "make_federation", lambda *given: made)
    unit = tmp_path / "server.service"
    monkeypatch.setattr(service_files, "write_server_files", lambda made: [unit])
    words = ["deploy", "init", "lab", "--public", "lab.org:9000", "--json"]
    rows = printed(CliRunner().invoke(app, words))["rows"]
    assert rows[2] == {"name": "server.service", "value": str(unit)}
    monkeypatch.setattr(node_process, "make_node", lambda *given: "ssh-ed25519 AAAA")
    (tmp_path / "node").mkdir()
    words = ["node", "init", "node", "--server", "lab.org:9000", "--client", "0", "--json"]
    made_node = printed(CliRunner().invoke(app, words))
    assert made_node["public_key"] == "ssh-ed25519 AAAA"

    def rehearse(folder, options, count, say):
        say("server at 127.0.0.1")
        return [("record", "equal")]

    monkeypatch.setattr(rehearsal, "rehearse", rehearse)
    words = ["deploy", "rehearse", "fedproto", "--models", "mlp", "--json"]
    rehearsed = printed(CliRunner().invoke(app, words))
    assert rehearsed == {"rows": [{"name": "record", "value": "equal"}], "folder": None}
    monkeypatch.setattr(node_export, "export_client", lambda *given: [("client", "0 of fedproto")])
    words = ["node", "export", "node", "a.pt2", "--client", "0", "--json"]
    assert printed(CliRunner().invoke(app, words))["file"] == "a.pt2"


def test_every_command_that_prints_a_table_has_it(with_json):
    """Commands without ``--json`` are in `WITHOUT`, and all others are tried above."""
    tried = [*CASES, *OF_SATELLITES, "export", "score"]
    tried += ["deploy status", "deploy rehearse", "deploy init"]
    tried += ["node export", "node init"]
    assert all(any(f"{each} ".startswith(f"{words} ") for each in tried) for words in with_json)


def test_formats_exclude_each_other(cli, tmp_path):
    for words in (["compare", tmp_path], ["score", "a.pt2", "b.npy"], ["reproduce", "--list"]):
        result = cli(*words, "--format", "csv", "--json")
        assert result.exit_code == 2 and "--json and --format csv exclude" in result.stderr


@pytest.mark.slow
def test_an_error_prints_nothing_on_standard_output(tmp_path):
    words = [*PROTOFL, "run", "fedproto", "--models", "nosuch", "--json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and "nosuch" in done.stderr
