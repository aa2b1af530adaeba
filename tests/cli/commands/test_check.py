"""Tests of ``protofl check``, and of the errors for broken plugins in all commands."""

from __future__ import annotations

import json

import pytest
from small_benchmark import SMALL

GOOD = """
import protofl as pf

class Rounds:
    "Samples by turns."
    class Config(pf.Config):
        "Options."
        start: int = pf.Field(0, ge=0, description="first row")
    @pf.hookimpl
    def partition(self, labels, num_clients, generator, config):
        print("a plugin that prints")
        rows = generator.permutation(len(labels))[config.start:]
        return [rows[i::num_clients].astype("int64") for i in range(num_clients)]

class Nothing:
    "No hooks."
"""

RAISING = "raise ValueError('no such card')"
MISSPELT = """
import protofl as pf
class Broken:
    "Misspelt."
    @pf.hookimpl
    def upload_payload(self, clients):
        return pf.Payload()
"""
UNMARKED = """
import protofl as pf
class Broken:
    "Unmarked."
    def upload_payload(self, client):
        return pf.Payload()
"""
FINE = """
class Broken:
    "Of a name that is taken."
"""


def test_an_installed_plugin(cli):
    result = cli("check", "partitioner/iid")
    assert result.exit_code == 0, result.output
    assert "partitioner/iid" in result.stdout and "12 passed in" in result.stdout
    assert "No sample is lost" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_json(cli):
    result = cli("check", "iid", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["plugin"], found["distribution"]) == ("partitioner/iid", "protofl")
    counts = [found[word] for word in ("passed", "failed", "not_reached", "skipped")]
    assert counts == [12, 0, 0, 0]
    assert len(found["checks"]) == 12
    assert all(
        check.keys() == {"check", "words", "outcome", "why", "seconds"} for check in found["checks"]
    )


@pytest.mark.parametrize("form", ["good.py:Rounds", "partitioner/good.py:Rounds", "good:Rounds"])
def test_a_class_that_is_not_installed(cli, tmp_path, form, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "good.py").write_text(GOOD)
    result = cli("check", form, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["plugin"] == "partitioner/rounds"
    result = cli("check", form, "--set", "start=3", "--debug")
    assert result.exit_code == 1
    assert "no client gets" in result.stdout and "failed" in result.stdout
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedsaa"], "did you mean 'fedsa'"),
        (["methd/fedsa"], "did you mean 'method'"),
        (["npz"], "needs an argument"),
        (["iid", "--set", "stat=1"], "unknown option"),
        (["iid", "--set", "start"], "not of the form KEY=VALUE"),
        (["missing.py:X"], "there is no file missing.py"),
        (["no_such.module:X"], "there is no module 'no_such.module'"),
        (["good.py:Round"], "did you mean 'Rounds'"),
        (["good.py:Nothing"], "Nothing has no hook"),
    ],
)
def test_what_can_t_be_checked(cli, tmp_path, words, said):
    (tmp_path / "good.py").write_text(GOOD)
    result = cli("check", *words)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("source", "name", "lines"),
    [
        (
            RAISING,
            "broken",
            [
                "method/broken of toys 1.5 is broken: ValueError: no such card",
                "raised at toys_module.py:1, while toys_module:Broken was imported",
                "mend or remove toys, or run without 'broken'; --debug shows where it fails",
            ],
        ),
        (
            MISSPELT,
            "broken",
            [
                "unknown argument of method/broken.upload_payload: 'clients' (toys 1.5)",
                "did you mean 'client'?",
                "rename it at toys_module.py:5",
            ],
        ),
        (
            UNMARKED,
            "broken",
            [
                "method/broken: upload_payload lacks @hookimpl and would be ignored (toys 1.5)",
                "it is defined at toys_module.py:5",
                "write @pf.hookimpl above def upload_payload",
            ],
        ),
        (
            FINE,
            "fedsa",
            [
                "'fedsa' is a method of protofl and a method of toys",
                "protofl has protofl_plugins.methods.fedsa:FedSA; toys has toys_module:Broken",
                "block one: --block fedsa@toys, or PROTOFL_BLOCK=fedsa@toys",
            ],
        ),
    ],
)
def test_broken_plugins(cli, strangers, source, name, lines):
    """Commands that use the broken plugin print three lines; other plugins still work."""
    strangers("toys", {"method": {name: "toys_module:Broken"}}, source)
    commands = [
        ["show", name],
        ["check", name],
        ["check", f"method/{name}"],
        ["run", name, "--models", "cnn4"],
        ["run", "fedproto", "--models", "cnn4", "--use", f"inference={name}"],
    ]
    for words in commands:
        result = cli(*words)
        assert result.exit_code == 2, (words, result.output)
        first, *others = result.stderr.splitlines()
        assert [first.removeprefix("error: "), *map(str.strip, others)] == lines
        assert "Traceback" not in result.output
    result = cli("list-plugins", "--json")
    status = {(p["name"], p["distribution"]): p["status"] for p in json.loads(result.stdout)}
    word = "clash: " if name == "fedsa" else "broken: "
    assert status[name, "toys"] == word + lines[0]
    assert status["fedproto", "protofl"] == "ok"
    assert cli("show", "fedproto").exit_code == 0


ONE_MISTAKE = """
import protofl as pf

class Rows:
    "Sends an array."
    uploads = {"prototypes": "means", "classes": "whose"}
    @pf.hookimpl
    def upload_payload(self, client):
        found = client.class_prototypes().select("prototypes")
        return {**found, "prototypes": found["prototypes"].numpy()}
"""


def test_one_cause_is_one_row(cli, tmp_path):
    (tmp_path / "rows.py").write_text(ONE_MISTAKE)
    result = cli("check", "rows.py:Rows", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["failed"] == 1 and found["not_reached"] > 10
    (failed,) = (check for check in found["checks"] if check["outcome"] == "failed")
    assert "'prototypes' as a numpy.ndarray" in failed["why"]
    assert "torch.as_tensor" in failed["why"]
    result = cli("check", "rows.py:Rows")
    assert "1 failed, 18 not reached" in result.stdout
    assert result.stdout.count("not reached") == 2  # one row, and the count at the end


OWN_REPRODUCTION = """
title = "Two methods"
options = { models = "cnn4", dataset = "digits", clients = 4 }
rows = { fedproto = {}, local = {} }
"""


def test_a_reproduction_of_ones_own_needs_no_smoke_scale(cli, tmp_path):
    (tmp_path / "mine.toml").write_text(OWN_REPRODUCTION)
    result = cli("check", "mine.toml")
    assert result.exit_code == 0, result.output
    assert "skipped" in result.output and "[scales.smoke]" in result.output
    (tmp_path / "mine.toml").write_text(OWN_REPRODUCTION + "[scales.smoke]\nrounds = 30\n")
    result = cli("check", "mine.toml")
    assert result.exit_code == 1 and "scale smoke has 30 rounds" in " ".join(result.output.split())


def test_methods_of_a_benchmark_do_not_train_with_options_of_their_own(cli, tmp_path):
    """FedPKD trains with Adam by default, for which rates of SGD are too large."""
    text = SMALL.replace('"few"', '"digits"')
    (tmp_path / "mine.toml").write_text(text)
    result = cli("check", "mine.toml")
    said = " ".join(result.output.split())
    assert result.exit_code == 1 and "fedpkd: optimizer;" in said, said
    assert "heterofl: optimizer, momentum, weight_decay, clip)" in said
    assert "fedktl: clip, drop_last" in said
    named = (
        '[options]\noptimizer = "sgd"\nmomentum = 0.0\nweight-decay = 0.0\nclip = 0.0\n'
        "drop-last = false\n"
    )
    (tmp_path / "mine.toml").write_text(text.replace("[options]\n", named))
    result = cli("check", "mine.toml")
    assert result.exit_code == 0, result.output
