"""Tests of every kind of file that protofl reads: planted code and folders need consent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import protofl as pf
from protofl.system import consent
from protofl_cli.app import app

CODE = """
from pathlib import Path
Path(__file__).with_name("RAN").touch()
import protofl as pf

class Evil:
    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload()
"""


@pytest.fixture(autouse=True)
def _no_consents(monkeypatch):
    monkeypatch.setattr(consent, "_files", set())
    monkeypatch.setattr(consent, "_modules", set())
    monkeypatch.setattr(consent, "_folders", set())


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Return a file whose import leaves a mark; the working directory is another folder."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    (folder / "payload.py").write_text(CODE)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder / "payload.py"


def said(*words):
    """Run a command; return its exit code and output."""
    found = CliRunner().invoke(app, [*map(str, words)])
    text = " ".join(found.output.replace("│", " ").split())
    return found.exit_code, text + str(found.exception or "")


def refused(planted, file, key, *words):
    """Check that a command refuses the planted code and names file, key, path and digest."""
    code, text = said(*words)
    assert code != 0
    text = text.replace(" ", "")
    for word in (str(file), key, f"{planted}:Evil", "SHA-256", f"--trust-code{planted}"):
        assert word.replace(" ", "") in text, (word, text)
    assert not planted.with_name("RAN").exists()


# --- code -----------------------------------------------------------------------------------------

FORMS = {
    "method": '"{0}:Evil"',
    "models": '"{0}:Evil"',
    "use": '{{upload_payload = "{0}:Evil"}}',
    "with": '["{0}:Evil"]',
    "metrics": '["{0}:Evil"]',
    "add": '["upload_payload={0}:Evil"]',
    "classes": '["{0}:Evil"]',
    "class": '["method/{0}:Evil"]',
}


@pytest.mark.parametrize("key", [*FORMS])
def test_a_reproduction_runs_no_code(planted, key):
    table = f"{key} = {FORMS[key].format(planted)}"
    reproduction = planted.with_name("reproduction.toml")
    if key in ("class", "classes"):
        text = f'title = "t"\n[options]\nmodels = "cnn4"\n{table}\n[rows.local]\n'
    else:
        text = f'title = "t"\n[options]\nmodels = "cnn4"\n[rows.local]\n{table}\n'
    reproduction.write_text(text)
    refused(planted, f"{reproduction}, ", key, "reproduce", reproduction, "--plan")


def test_a_plan_lists_the_code_that_is_imported(planted):
    reproduction = planted.with_name("reproduction.toml")
    options = 'models = "cnn4"\nclients = 2\nrounds = 1\nbackend = "local"'
    rows = f'[rows.one]\nmethod = "{planted}:Evil"\n'
    reproduction.write_text(f'title = "t"\n[options]\n{options}\n{rows}')
    code, text = said("reproduce", reproduction, "--plan", "--trust-code", planted.parent)
    assert code == 0 and "imported code" in text and "SHA-256" in text, text


@pytest.mark.parametrize("name", ["c.toml", "c.json"])
@pytest.mark.parametrize("key", [*FORMS])
def test_a_config_runs_no_code(planted, key, name):
    file = planted.with_name(name)
    text = "" if key == "models" else 'models = "cnn4"\n'
    text += f"{key} = {FORMS[key].format(planted)}\n"
    if name.endswith("json"):
        from protofl.system.files.tables import parse_toml

        text = json.dumps(parse_toml(text))
    file.write_text(text)
    method = () if key == "method" else ("local",)
    refused(planted, file, key, "run", *method, "--config", file)
    code, text = said("run", *method, "--config", file, "--trust-code", planted.parent, "--help")
    assert code == 0, text


def test_a_module_outside_the_installed_plugins_needs_consent(planted, monkeypatch):
    monkeypatch.syspath_prepend(str(planted.parent))
    file = planted.with_name("c.toml")
    file.write_text('method = "payload:Evil"\nmodels = "cnn4"\n')
    with pytest.raises(pf.UsageError, match=r"payload:Evil.*outside the installed plugins"):
        pf.run(config=file)
    assert not planted.with_name("RAN").exists()
    assert consent.is_allowed("protofl_plugins.methods.fedproto:FedProto")


QUICK = {"models": "cnn4", "clients": 2, "rounds": 1, "backend": "local", "dry_run": False}


def test_trusted_code_runs(planted, few):
    file = planted.with_name("c.toml")
    file.write_text(f'method = "{planted}:Evil"\nmodels = "cnn4"\n')
    consent.trust_code(planted)
    pf.run(config=file, dataset=few, out="r", progress=False, **QUICK)
    assert planted.with_name("RAN").exists()


def test_the_command_line_is_consent(planted, few):
    pf.run(f"{planted}:Evil", dataset=few, out="r", progress=False, **QUICK)
    assert planted.with_name("RAN").exists()


@pytest.fixture
def recorded(few, planted):
    """Return a run folder whose record names the planted class."""
    folder = Path("r").absolute()
    pf.run("local", dataset=few, out=folder, progress=False, **QUICK)
    config = json.loads((folder / "config.json").read_text())
    config |= {"method": "evil", "classes": {"method/evil": f"{planted}:Evil"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_run_folder_runs_no_code(planted, recorded):
    file, key = recorded / "config.json", "classes.method/evil"
    refused(planted, file, key, "run", "--config", file)
    run = pf.load_run(recorded)
    with pytest.raises(pf.UsageError, match="is code"):
        run.model(0)
    for words in (["runs", "list", recorded.parent], ["runs", "show", recorded]):
        said(*words)
    for words in (["report", recorded, "--out", "p.html"], ["compare", recorded, recorded]):
        said(*words)
    assert not planted.with_name("RAN").exists()


def test_a_resumed_run_folder_runs_no_code(planted, few):
    consent.trust_code(planted)

    def stop(event):
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    more = {**QUICK, "rounds": 2}
    with pytest.raises(KeyboardInterrupt):
        pf.run(f"{planted}:Evil", dataset=few, out="r", progress=stop, **more)
    planted.with_name("RAN").unlink()
    consent._files.clear()
    refused(planted, "r/config.json", "classes.method/evil", "run", "--resume", "--out", "r")
    code, text = said("run", "--resume", "--out", "r", "--trust-code", planted)
    assert code == 0, text


@pytest.mark.parametrize("grid", ["method = 'local,{0}:Evil'", "'models' = '{0}:Evil,cnn4'"])
def test_a_sweep_runs_no_code(planted, grid):
    folder = planted.with_name("sweep")
    folder.mkdir()
    own = f'trials = 1\nfigure = "best"\nruns = "{Path("runs").absolute()}"\nwhere = "{Path.cwd()}"'
    lines = [f"[grid]\n{grid.format(planted)}\n[sweep]\n{own}\n"]
    (folder / "sweep.toml").write_text("\n".join(['models = "cnn4"', *lines]))
    refused(planted, folder / "sweep.toml", "", "sweep", "--resume", folder)


# --- output locations -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data_dir", "out"])
def test_a_config_names_no_folder_elsewhere(planted, few, name):
    target, file = planted.parent / "target", planted.parent / "own" / "c.toml"
    file.parent.mkdir()
    file.write_text(f'{name} = "{target}"\n')
    code, text = said("run", "local", "--models", "cnn4", "--dataset", few, "--config", file)
    assert code == 2 and f"{name} = {target} is a folder" in text, text
    assert not target.exists()


def test_a_reproduction_names_no_folder_elsewhere(planted):
    target, file = planted.parent / "target", planted.parent / "own" / "reproduction.toml"
    file.parent.mkdir()
    text = 'title = "t"\n[options]\nmodels = "cnn4"\ndata-dir = "{}"\n[rows.local]\n'
    file.write_text(text.format(target))
    code, text = said("reproduce", file, "--plan")
    assert code == 2 and f"{target} is a folder" in text and "options.data-dir" in text, text
    assert not target.exists()


def test_a_config_may_name_a_folder_beside_it(planted, few):
    file = planted.with_name("c.toml")
    own = planted.with_name("cache")
    file.write_text(f'data_dir = "{own}"\n')
    result = pf.run("local", config=file, dataset=few, out="r", progress=False, **QUICK)
    assert json.loads((result.folder / "config.json").read_text())["data_dir"] == str(own)


def test_the_data_folder_of_a_record_does_not_count(planted, recorded, few):
    target = planted.with_name("target")
    config = json.loads((recorded / "config.json").read_text())
    config |= {"method": "local", "data_dir": str(target)}
    del config["classes"]
    (recorded / "config.json").write_text(json.dumps(config))
    pf.run(config=recorded / "config.json", out="again", backend="local", progress=False)
    pf.load_run(recorded).model(0)
    assert not target.exists()


@pytest.mark.slow
def test_a_resumed_run_names_the_data_folder_that_it_does_not_use(planted, few, monkeypatch):
    pf.run("local", out="r", data_dir="first", dataset=few, progress=False, **QUICK)
    monkeypatch.setattr(consent, "_folders", set())  # as in another process
    lines = []

    def note(event):
        lines.extend([event.text] if isinstance(event, pf.events.Note) else [])

    pf.run(out="r", resume=True, rounds=3, backend="local", progress=note)
    folder = Path("first").absolute()
    assert [line for line in lines if f"--data-dir {folder}" in line] == lines[:1]
    assert f"it uses {os.environ['PROTOFL_DATA_DIR']} now" in lines[0]
    lines.clear()
    pf.run(out="r", resume=True, rounds=4, backend="local", data_dir="first", progress=note)
    assert not [line for line in lines if "data folder" in line]


@pytest.mark.parametrize(
    ("tracker", "key", "value"),
    [
        ("tensorboard", "tensorboard.folder", "/elsewhere"),
        ("mlflow", "mlflow.uri", "http://stranger:5000"),
        ("wandb", "wandb.entity", "stranger"),
        ("wandb", "wandb.project", "stranger"),
        ("wandb", "wandb.folder", "/elsewhere"),
    ],
)
def test_a_tracker_of_a_file_sends_nothing_elsewhere(planted, few, tracker, key, value):
    file = planted.with_name("c.json")
    file.write_text(json.dumps({"track": [tracker], "set": {key: value}}))
    with pytest.raises(pf.UsageError, match=rf'{key}="?{value}"? comes from a file'):
        pf.run("local", config=file, dataset=few, out="r", **QUICK)
