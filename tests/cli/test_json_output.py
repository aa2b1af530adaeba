"""Tests of ``--json``: commands that print a table have it, and print what their schema says."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_cli.json.json_output import json_output, model_of, print_json, schema_of
from protofl_cli.pages.schema_pages import OTHERS, commands, models

PROTOFL = [sys.executable, "-c", "from protofl_cli.start import main; main()"]

WITHOUT = {
    "report": "writes a page",
    "plot": "writes a picture",
    "runs rm": "removes files",
    "new-plugin": "writes a package",
    "deploy add-site": "writes a file",
    "deploy link": "runs until it is interrupted",
    "deploy run": "its run folder has the results: protofl runs show --json",
    "deploy stop": "stops runs",
    "node start": "runs until it is interrupted",
}
"""Commands without ``--json``, and what they do instead of printing a table."""


@pytest.fixture(scope="module")
def root():
    return typer.main.get_command(app).make_context("protofl", [], resilient_parsing=True)


def test_every_command_has_it_or_prints_no_table(root):
    flags = {
        words: {flag for parameter in command.params for flag in parameter.opts}
        for words, command in commands(root)
    }
    with_json = {words for words, found in flags.items() if "--json" in found}
    assert with_json.isdisjoint(WITHOUT) and flags.keys() <= with_json | WITHOUT.keys()
    described = {words for words, command in commands(root) if model_of(command)}
    assert described == with_json, "commands with --json and without a schema, or the reverse"


@pytest.mark.slow
def test_every_value_has_a_description(root):
    """Fields of the record have theirs on its page."""
    of_record = ("Config", "Summary", "Line")
    for name, (words, model) in models(root).items():
        schema = schema_of(model, words)
        for title, each in {"": schema, **schema.get("$defs", {})}.items():
            if title in of_record or title.startswith("_"):
                continue
            for key, field in each.get("properties", {}).items():
                assert field.get("description") or field.get("const"), (name, title, key)
            closed = each.get("additionalProperties") is False
            assert closed or not each.get("properties"), (name, title)


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


# --- schemas --------------------------------------------------------------------------------------


def test_show_schema(cli):
    listed = cli("show", "schema")
    assert listed.exit_code == 0 and "protofl show schema/runs-list" in listed.stdout
    schema = json.loads(cli("show", "schema/runs-list").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == "protofl runs list"
    wrong = cli("show", "schema/runs-lst")
    assert wrong.exit_code == 2 and "runs-list" in wrong.stderr


def test_other_values_are_refused():
    """The schemas are strict, so a changed key fails the tests below."""
    schema = schema_of("protofl_cli.json.runs:ListedRuns", "runs list")
    keys = schema["$defs"]["ListedRun"]["properties"]
    assert set(keys) == set(schema["$defs"]["ListedRun"]["required"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{"folder": "a"}], schema)


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
        pf.run(method, out=folder / "runs" / method, record_uploads=True, keep="last", **given)
    (folder / "table.toml").write_text(TOML, encoding="utf-8")
    np.savez(
        folder / "few.npz",
        x_train=np.random.default_rng(0).integers(0, 256, (128, 32, 32, 3), np.uint8),
        y_train=np.arange(128) % 4,
    )
    return folder


RUN = "fedproto --models mlp --dataset wine --clients 3 --rounds 1 --backend local --no-dry-run"

CASES = [
    ("run", f"run {RUN} --out new"),
    ("run", f"run {RUN} --reuse reused"),
    ("run", f"run {RUN} --quiet --profile --out other"),
    ("run", f"run {RUN} --plan"),
    ("sweep", f"sweep {RUN} --grid lr=0.1,0.2 --runs swept --at-once 0 --out sweep"),
    ("sweep", f"sweep {RUN} --grid lr=0.1,0.2 --runs swept --at-once 0 --plan"),
    ("reproduce", "reproduce --list"),
    ("reproduce", "reproduce table.toml --runs repeated --at-once 0"),
    ("reproduce", "reproduce table.toml --runs repeated --plan"),
    ("reproduce", "reproduce benchmark/htfl --scale smoke --no-run --columns digits-series"),
    ("watch", "watch runs"),
    ("compare", "compare runs"),
    ("compare", "compare runs --out comparison.md"),
    ("evaluate", "evaluate runs/fedproto wine"),
    ("replay", "replay runs/fedproto --set aggregate=uniform"),
    ("list-plugins", "list-plugins --kind partitioner"),
    ("show", "show fedproto"),
    ("show", "show mlp"),
    ("show", "show torchvision"),
    ("show", "show digits"),
    ("show", "show fedsa-tgp"),
    ("show", "show trimmed-mean"),
    ("show", "show reproduction/fedtgp"),
    ("show", "show hook/partition"),
    ("show", "show wire"),
    ("show", "show machine"),
    ("show", "show schema"),
    ("card", "card local"),
    (
        "generator-train",
        "generator train npz:few.npz --set epochs=1 --set steps=1 --out a.safetensors",
    ),
    ("check", "check iid"),
    ("runs-list", "runs list"),
    ("runs-show", "runs show fedproto local"),
    ("runs-diff", "runs diff fedproto local"),
    ("data-list", "data list"),
    ("partition-show", "partition show --dataset wine --clients 3"),
    ("publish", "publish runs/local --out published --force"),
    ("verify", "verify published"),
    ("verify", "verify published --no-run --digest 0123"),
]
OF_SATELLITES = [
    ("show", "show leak"),
    ("leak", "leak runs/fedproto --budget 60 --clients 1"),
    ("node-check", "node check nowhere"),
]
CODES = {"runs-diff": 1, "node-check": 2, "verify published --no-run --digest 0123": 1}
"""Exit codes that differ from 0: the runs differ, and the node cannot start."""


def checked(result, name, root, code=0):
    """Return the value that a command has printed, after comparing it with its schema."""
    assert result.exit_code == code, result.output
    assert "\x1b" not in result.stdout
    value = json.loads(result.stdout, parse_constant=pytest.fail)
    schema = schema_of(models(root)[name][1], name)
    jsonschema.Draft202012Validator(schema).validate(value)
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(pytest.param(*case, id=case[1][:40]) for case in CASES),
        *(
            pytest.param(*case, id=case[1][:40], marks=pytest.mark.satellites)
            for case in OF_SATELLITES
        ),
    ],
)
def test_output_has_its_schema(name, words, folder, data_dir, root, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(data_dir))
    if name == "leak":
        pytest.importorskip("skimage")
    if name == "verify" and not Path("published").exists():
        pf.publish("runs/local", "published")
    result = CliRunner().invoke(app, [*words.split(), "--json"])
    assert checked(result, name, root, CODES.get(words, CODES.get(name, 0)))


@pytest.mark.slow
def test_files_have_theirs(folder, data_dir, root, monkeypatch, tmp_path):
    """An exported client and its scores, and an imported data set."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(tmp_path))
    np.savez("mnist.npz", x_train=np.zeros((20, 28, 28), np.uint8), y_train=np.arange(20) % 10)
    imported = CliRunner().invoke(app, ["data", "import", "mnist", "mnist.npz", "--json"])
    assert checked(imported, "data-import", root)["train"] == 20
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(data_dir))
    words = ["export", "runs/fedproto", "client.pt2", "--json"]
    assert checked(CliRunner().invoke(app, words), "export", root)["file"] == "client.pt2"
    np.save("rows.npy", np.ones((2, 13)))
    words = ["score", "client.pt2", "rows.npy", "--trust-pickle", "--json"]
    assert len(checked(CliRunner().invoke(app, words), "score", root)["samples"]) == 2


@pytest.mark.slow
@pytest.mark.satellites
def test_commands_of_a_deployment_have_theirs(root, monkeypatch, tmp_path):
    """Flower's programs are replaced: the tests of protofl-flower have their answers."""
    from protofl_flower.deployment import (
        federation_file,
        keys,
        link,
        node_export,
        node_process,
        rehearsal,
        service_files,
    )

    monkeypatch.chdir(tmp_path)
    sites = [SimpleNamespace(name="a", clients=(0, 2)), SimpleNamespace(name="b", clients=(1,))]
    made = SimpleNamespace(sites=sites, folder=tmp_path, public="lab.org:9000")
    monkeypatch.setattr(federation_file, "read_federation", lambda folder: made)
    monkeypatch.setattr(link, "node_states", lambda federation: {"a": "online"})
    monkeypatch.setattr(link, "runs_of", lambda federation: {"17": "finished:completed"})
    status = checked(
        CliRunner().invoke(app, ["deploy", "status", "lab", "--json"]), "deploy-status", root
    )
    assert [site["state"] for site in status["sites"]] == ["online", "not registered"]
    assert status["runs"] == [{"run": "17", "state": "finished:completed"}]

    monkeypatch.setattr(link, "make_federation", lambda *given: made)
    monkeypatch.setattr(service_files, "write_link_files", lambda made: [tmp_path / "link.service"])
    words = ["deploy", "init", "lab", "--public", "lab.org:9000", "--json"]
    rows = checked(CliRunner().invoke(app, words), "deploy-init", root)["rows"]
    assert rows[2] == {"name": "link.service", "value": str(tmp_path / "link.service")}
    until = datetime(2027, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(keys, "renew_certificates", lambda *given: (until, True))
    words = ["deploy", "keys", "renew", "lab", "--json"]
    rows = checked(CliRunner().invoke(app, words), "deploy-keys", root)["rows"]
    assert rows[0] == {"name": "valid until", "value": "2027-01-01"}
    monkeypatch.setattr(node_process, "make_node", lambda *given: "ssh-ed25519 AAAA")
    (tmp_path / "node").mkdir()
    words = ["node", "init", "node", "--link", "lab.org:9000", "--client", "0", "--json"]
    made_node = checked(CliRunner().invoke(app, words), "node-init", root)
    assert made_node["public_key"] == "ssh-ed25519 AAAA"

    def rehearse(folder, options, sites, say):
        say("link at 127.0.0.1")
        return [("record", "equal")]

    monkeypatch.setattr(rehearsal, "rehearse", rehearse)
    words = ["deploy", "rehearse", "fedproto", "--models", "mlp", "--json"]
    rehearsed = checked(CliRunner().invoke(app, words), "deploy-rehearse", root)
    assert rehearsed == {"rows": [{"name": "record", "value": "equal"}], "folder": None}
    monkeypatch.setattr(node_export, "export_client", lambda *given: [("client", "0 of fedproto")])
    words = ["node", "export", "node", "a.pt2", "--client", "0", "--json"]
    assert checked(CliRunner().invoke(app, words), "node-export", root)["file"] == "a.pt2"


def test_every_schema_is_tried(root):
    tried = {name for name, _ in [*CASES, *OF_SATELLITES]} | {"data-import", "export", "score"}
    deployed = {"deploy-status", "deploy-rehearse", "deploy-init", "deploy-keys"}
    deployed |= {"node-export", "node-init"}
    assert {*models(root)} <= tried | deployed | {*OTHERS}


def test_formats_exclude_each_other(cli, tmp_path):
    for words in (["compare", tmp_path], ["score", "a.pt2", "b.npy"], ["reproduce", "--list"]):
        result = cli(*words, "--format", "csv", "--json")
        assert result.exit_code == 2 and "--json and --format csv exclude" in result.stderr


@pytest.mark.slow
def test_an_error_prints_nothing_on_standard_output(tmp_path):
    words = [*PROTOFL, "run", "fedproto", "--models", "nosuch", "--json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and "nosuch" in done.stderr
