"""``protofl matrix``: a stranger's method among two others, as tables, JSON and a page."""

from __future__ import annotations

import json
import os

import pytest
from protofl.discovery.registry import Registry
from protofl_cli.mixing_page import read

SOURCE = """
import protofl as pf

class Mine:
    "Reads prototypes of the server."
    @pf.hookimpl
    def inference(self, client, x):
        client.received.table("prototypes", client.num_classes)
        return client.head(client.features(x))
"""


@pytest.fixture(autouse=True)
def few(strangers, monkeypatch):
    """Two methods of ours and a stranger's."""
    strangers("mix", {"method": {"mine": "mix_module:Mine"}}, SOURCE)
    names = {plugin.name for plugin in Registry().plugins("method")}
    blocked = sorted(f"method/{name}" for name in names - {"local", "fedproto", "mine"})
    monkeypatch.setenv("PROTOFL_BLOCK", ",".join(blocked))


def test_row_and_column(cli):
    result = cli("matrix", "mine")
    assert result.exit_code == 0, result.output
    takes, gives = result.output.split("mine gives: --use")
    assert "mine takes: --use HOOK=METHOD" in takes and "local.ce" in takes
    assert "fedproto" in gives and "lacks the key prototypes" in gives
    assert max(map(len, result.output.splitlines())) <= 100


def test_json(cli):
    cells = json.loads(cli("matrix", "mine", "--json").stdout)
    found = {(c["main"], c["place"], c["donor"]): c for c in cells}
    assert found["fedproto", "inference", "mine"]["outcome"] == "runs"
    refused = found["local", "inference", "mine"]
    assert (refused["outcome"], refused["lacks"], refused["name"]) == (
        "refused",
        "key",
        "prototypes",
    )
    assert found["mine", "", "mine"]["outcome"] == "refused"  # nobody sends it prototypes


def test_the_page_of_all(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("PROTOFL_BLOCK", os.environ["PROTOFL_BLOCK"] + ",method/local")
    result = cli("matrix", "--out", "page.md")
    assert result.exit_code == 0, result.output
    assert "hooks in all" in result.output
    cells = read((tmp_path / "page.md").read_text(encoding="utf-8"))
    assert {cell.main for cell in cells} == {"fedproto", "mine"}
    assert len([cell for cell in cells if cell.place != "add"]) == 2 * (6 + 4)


def test_an_unclear_outcome_ends_with_1(cli, monkeypatch, strangers):
    blocked = os.environ["PROTOFL_BLOCK"] + ",method/fedproto,method/mine"
    monkeypatch.setenv("PROTOFL_BLOCK", blocked)
    broken = SOURCE.replace('client.received.table("prototypes", client.num_classes)', "1 / 0")
    strangers("bad", {"method": {"bad": "bad_module:Mine"}}, broken)
    result = cli("matrix", "bad")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr


def test_what_it_refuses(cli):
    assert cli("matrix", "mine", "--out", "page.md").exit_code == 2
    assert "did you mean 'mine'" in cli("matrix", "minne").stderr
    assert cli("matrix", "--out", "no/such/page.md").exit_code == 2
