"""Tests of options from the command line, a file or a program, and their precedence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runtime_toys import make_plan

import protofl as pf
from protofl.errors import unknown
from protofl.runs.request.request import read_request
from protofl.system.files.atomic import default_data_dir
from protofl_workbench.sweeps.sweep import as_typed


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a --config file."""

    def write(**values):
        path = tmp_path / "options.json"
        path.write_text(json.dumps(values))
        return path

    return write


def test_typed_words_and_a_program_s_values_are_the_same():
    typed = {
        "method": "fedsa",
        "set": ["alpha=0.5", "fedtgp.tau=50"],
        "use": ["server_train=fedtgp"],
        "add": ["local_loss=fedproto.align"],
        "drop": ["local_loss.mcl"],
        "with": ["gaussian-noise"],
        "lr": None,
    }
    program = {
        "method": "fedsa",
        "set": {"alpha": "0.5", "fedtgp.tau": "50"},
        "use": {"server_train": "fedtgp"},
        "add": "fedproto.align",
        "drop": ["mcl"],
        "transforms": ["gaussian-noise"],
    }
    found = read_request(typed).options
    assert found == read_request(as_typed(program)).options
    assert found == {
        "method": "fedsa",
        "use": {"server_train": "fedtgp"},
        "add": ["fedproto.align"],
        "drop": ["mcl"],
        "transforms": ["gaussian-noise"],
        "options": {"fedsa": {"alpha": "0.5"}, "fedtgp": {"tau": "50"}},
    }
    assert read_request(as_typed(found)).options == found  # parsing twice changes nothing


@pytest.mark.parametrize("key", ["alpha", "fedsa.alpha"])
@pytest.mark.parametrize("below", ["alpha", "fedsa.alpha"])
def test_a_key_wins_over_the_file_s_however_it_is_written(file, key, below):
    config = file(method="fedsa", set={below: 1, "lambda_2": 2}, use={"inference": "local"})
    typed = {"set": [f"{key}=3"], "use": ["server_train=fedtgp"]}
    options = read_request(typed, config=config).options
    assert options["options"] == {"fedsa": {"alpha": "3", "lambda_2": 2}}
    assert options["use"] == {"inference": "local", "server_train": "fedtgp"}


def test_bare_keys_of_a_file_belong_to_the_method_that_is_run(file):
    config = file(method="fedproto", set={"lambda": 1})
    assert read_request({}, config=config).options["options"] == {"fedproto": {"lambda": 1}}
    options = read_request({"method": "fedtgp"}, config=config).options
    assert options["options"] == {"fedtgp": {"lambda": 1}}


def test_out_and_quiet_of_a_file(file, tmp_path):
    config = file(method="local", out="there", quiet=True)
    request = read_request({}, config=config)
    assert (str(request.out), request.quiet) == ("there", True)
    assert read_request({}, config=config, out=tmp_path).out == tmp_path
    assert "out" not in request.options


def test_a_loss_term_needs_no_hook():
    bare = {"add": ["fedsa.mcl", "upload_payload=fedsa"], "drop": ["ce"]}
    full = {"add": ["local_loss = fedsa.mcl", "upload_payload = fedsa"], "drop": "local_loss.ce"}
    one, two = (read_request({"method": "fedproto", **typed}) for typed in (bare, full))
    assert one.options == two.options and one.options["add"] == bare["add"]


def test_a_separator_may_be_a_space():
    request = read_request({"method": "fedsa", "set": ["dataset.separator= ", "tau= 2 "]})
    assert request.options["options"] == {"dataset": {"separator": " "}, "fedsa": {"tau": "2"}}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"use": ["inference"]}, "write --use HOOK=METHOD"),
        ({"set": ["=1"]}, "[NAME.]KEY=VALUE"),
        ({"set": ["dataset.drop=a", "dataset.drop=b"]}, "given twice: 'a' and 'b'"),
        ({"with": [3]}, "--with: expected a string or a list of strings, got [3]"),
    ],
)
def test_what_is_not_written_as_it_should_be(typed, words):
    with pytest.raises(pf.UsageError) as caught:
        read_request({"method": "fedsa", **typed})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("learning_rate", "did you mean 'lr'?"),
        ("learning-rate", "did you mean 'lr'?"),
        ("momentun", "did you mean 'momentum'?"),
        ("scale", "known: lr, momentum, s"),
        ("lr_rate", "did you mean 'lr'?"),
    ],
)
def test_unknown_names_are_told_with_near_ones_and_abbreviations(name, words):
    assert unknown("option", name, {"momentum", "lr", "s"}).near.startswith(words)


@pytest.mark.parametrize("file", ["r.toml", "runs/a/config.json"])
def test_a_file_in_the_place_of_the_method_is_for_config(file):
    with pytest.raises(pf.UsageError) as caught:
        read_request({"method": file})
    assert caught.value.do == f"write --config {file}"


def test_a_file_with_an_unknown_option(file):
    with pytest.raises(pf.UsageError, match="'modles'") as caught:
        read_request({}, config=file(method="local", modles="cnn4"))
    assert "did you mean 'models'" in caught.value.near


def test_the_environment_says_where_data_are(monkeypatch, tmp_path):
    monkeypatch.delenv("PROTOFL_DATA_DIR", raising=False)
    assert default_data_dir() == Path("~/.cache/protofl")
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(tmp_path / "there"))
    plan = make_plan("local", data_dir=None)
    assert plan.settings.data_dir == tmp_path / "there" and [*(tmp_path / "there").iterdir()]
