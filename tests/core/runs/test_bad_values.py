"""Tests that nonsense in options and files is refused with a clear message."""

from __future__ import annotations

import json

import pytest

import protofl as pf

BASE = {"method": "fedsa", "models": "cnn4"}


def said(**given):
    with pytest.raises(pf.UsageError) as caught:
        pf.run(**given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clients": True}, "clients is true, expected a number"),
        ({"rounds": 10**20}, "--rounds 100000000000000000000 is not possible"),
        ({"local_epochs": 10**20}, "--local-epochs 100000000000000000000 is not possible"),
        ({"local_epochs": 0}, "--local-epochs 0 is not possible: Input should be greater than 0"),
        ({"subset": "1e400"}, "--subset 1e400 is not possible"),
        ({"lr": False}, "lr is false, expected a number"),
        ({"dataset": True}, "dataset is true, expected a number or a text"),
        ({"set": {"alpha": "true"}}, "alpha='true' is not possible"),
        ({"partition": "dirichlet", "set": {"partition.beta": True}}, "beta is true"),
        ({"public": "²"}, "--public '²': expected a number"),
        ({"checkpoint_every": "²"}, "--checkpoint-every ² is not possible"),
        ({"device": "vulkan"}, "--device vulkan: this torch cannot compute there"),
        ({"device": "meta"}, "--device meta: this torch cannot compute there"),
        ({"device": "tpu"}, "--device tpu is not a device"),
        ({"block": ["nope"]}, "unknown plugin in --block 'nope'"),
        ({"block": ["fedsaa"]}, "did you mean 'fedsa' or"),
        ({"generator": "nope"}, "unknown generator 'nope'"),
        ({"dataset": "npz:a\0b"}, "a character that no name"),
        ({"data_dir": "\ud800"}, "a character that no name"),
        ({"out": "x" * 300}, "cannot be written"),
    ],
)
def test_options(tmp_path, monkeypatch, given, words):
    monkeypatch.chdir(tmp_path)
    assert words in said(**{**BASE, "data_dir": tmp_path, **given})
    assert not [path for path in tmp_path.iterdir() if path.name != "digits.safetensors"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.json", "[" * 100_000, "too deep to read"),
        ("c.json", '{"a":' * 100_000, "too deep to read"),
        ("c.toml", "a = " + "[" * 100_000, "too deep to read"),
        ("c.json", json.dumps({"quiet": "false"}), "quiet is 'false'"),
        ("c.json", json.dumps({"clients": True}), "clients is true"),
        ("c.json", json.dumps({"out": "a\0b"}), "a character that no name"),
        ("c.json", json.dumps({"set": {"x": ["\0"]}}), "a character that no name"),
    ],
)
def test_files(tmp_path, name, text, words):
    file = tmp_path / name
    file.write_text(text)
    assert words in said(config=file, **BASE)


def test_true_and_false_where_they_belong(few, tmp_path):
    found = pf.run(
        "local",
        models="cnn4",
        dataset=few,
        clients=2,
        rounds=1,
        drop_last=True,
        augment="false",
        backend="local",
        dry_run=False,
        data_dir=tmp_path,
        out=tmp_path / "r",
    )
    config = json.loads((found.folder / "config.json").read_text())
    assert config["drop_last"] is True and config["augment"] is False
