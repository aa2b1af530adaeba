"""Tests of ``protofl list-plugins`` with valid, broken, clashing and blocked plugins."""

from __future__ import annotations

import json

import pytest

from protofl.hooks.discovery.kinds import KINDS

TOY = """
print("a plugin that prints when it is imported")
class Fine:
    "A method that does nothing of its own."
class Other:
    "Another method of a name that is taken."
"""


def listed(cli, *words):
    result = cli("list-plugins", "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_table(cli):
    result = cli("list-plugins")
    assert result.exit_code == 0
    for name in ("fedsa", "htfe8", "dirichlet", "digits", "gaussian-noise", "eager", "process"):
        assert name in result.output
    assert "``" not in result.output, "a table is no RST"
    assert max(map(len, result.output.splitlines())) <= 100


def test_names(cli):
    names = cli("list-plugins", "--names").output.splitlines()
    assert {"fedsa", "htfe8", "digits"} <= set(names)
    assert len(names) == len(set(names))
    methods = cli("list-plugins", "--names", "--kind", "method").output.splitlines()
    assert "fedsa" in methods and "digits" not in methods


def test_json_is_one_list_of_objects(cli):
    found = listed(cli)
    assert all(
        plugin.keys() == {"kind", "name", "version", "distribution", "hooks", "status"}
        for plugin in found
    )
    assert {plugin["status"] for plugin in found} == {"ok"}
    assert {plugin["kind"] for plugin in found} <= {*KINDS, "defence"}
    fedsa = next(plugin for plugin in found if plugin["name"] == "fedsa")
    assert fedsa["distribution"] == "protofl" and "local_loss" in fedsa["hooks"]


@pytest.mark.parametrize("kind", KINDS)
def test_kind(cli, kind):
    assert cli("list-plugins", "--kind", kind).exit_code == 0
    assert {plugin["kind"] for plugin in listed(cli, "--kind", kind)} <= {kind}


def test_defences_are_not_listed_among_methods(cli):
    methods, defences = (
        {p["name"] for p in listed(cli, "--kind", k)} for k in ("method", "defence")
    )
    assert {"multi-krum", "trimmed-mean"} <= defences and "fedsa" in methods
    assert not methods & defences
    assert {*cli("list-plugins", "--names", "--kind", "defence").output.split()} == defences


def test_unknown_kind(cli):
    result = cli("list-plugins", "--kind", "methods")
    assert result.exit_code == 2
    assert "did you mean 'method'?" in result.stderr


def test_names_and_json_exclude_each_other(cli):
    assert cli("list-plugins", "--names", "--json").exit_code == 2


ODD = """
class Documented:
    __doc__ = 7

class Named:
    "An argument that is not a text."
    argument = 7

class Meta(type):
    def __getattribute__(cls, name):
        raise ValueError("no attributes")

class Raising(metaclass=Meta):
    "All attributes raise."

class Unprintable(BaseException):
    def __str__(self):
        raise ValueError

class Late(type):
    def __dir__(cls):
        raise Unprintable

class Hidden(metaclass=Late):
    "The list of its attributes raises."

class Shown(type):
    def __repr__(cls):
        raise ValueError("no text")

class Silent(metaclass=Shown):
    "Its text cannot be read."

class Fine:
    "A method that does nothing of its own."
"""

IMPORTED = {
    "base": "class Odd(BaseException): pass\nraise Odd('at import')",
    "closed": "raise GeneratorExit",
    "ended": "raise SystemExit(3)",
    "empty": "class Odd: pass",
}


@pytest.mark.slow
def test_one_odd_plugin_leaves_the_others(cli, strangers):
    names = ("Documented", "Named", "Raising", "Hidden", "Silent", "Fine")
    entries = {name.lower(): f"odd_module:{name}" for name in names}
    odd = {
        "two-colons": "odd_module:Fine:x",
        "no-class": "odd_module",
        "Capital": "odd_module:Fine",
    }
    strangers("odd", {"method": entries | odd, "dataset": {"named": "odd_module:Named"}}, ODD)
    for name, source in IMPORTED.items():
        strangers(name, {"method": {name: f"{name}_module:Odd"}}, source)
    found = {p["name"]: p["status"] for p in listed(cli, "--kind", "method")}
    assert found["fine"] == found["empty"] == found["fedsa"] == "ok"
    for name, words in {
        "documented": "its __doc__ is 7, not a text",
        "named": "its argument is 7, not a text",
        "raising": "ValueError: no attributes",
        "hidden": "Unprintable: (its text cannot be read)",
        "base": "Odd: at import",
        "closed": "GeneratorExit",
        "ended": "sys.exit(3)",
        "no-class": "names <module 'odd_module'",
        "Capital": "a plugin's name is lower-case letters",
    }.items():
        assert found[name].startswith("broken: ") and words in found[name], found[name]
    for words in (["list-plugins"], ["list-plugins", "--kind", "defence"]):
        shown = cli(*words)
        assert shown.exit_code == 0, shown.output
        assert "internal error" not in shown.output
    for name in ("documented", "raising", "base"):
        shown = cli("show", name)
        assert shown.exit_code == 2 and "bug in protofl" not in shown.output
    assert cli("show", "fine").exit_code == 0


def test_a_damaged_distribution_leaves_the_others(cli, strangers, tmp_path):
    strangers(
        "nameless",
        {"method": {"fine": "nameless_module:Fine", "local": "nameless_module:Fine"}},
        ODD,
    )
    (tmp_path / "site-nameless/nameless-1.5.dist-info/METADATA").unlink()
    found = {(p["name"], p["distribution"]): p["status"] for p in listed(cli, "--kind", "method")}
    assert (
        found["fedsa", "protofl"] == "ok"
        and len([name for name, _ in found if name == "local"]) == 2
    )


@pytest.mark.slow
def test_strangers_broken_clashing_and_blocked(cli, strangers, monkeypatch):
    entries = {
        "fine": "toys_module:Fine",
        "broken": "toys_module:Missing",
        "fedsa": "toys_module:Other",
    }
    strangers("toys", {"method": entries}, TOY)
    found = {(p["name"], p["distribution"]): p for p in listed(cli, "--kind", "method")}
    assert found["fine", "toys"]["status"] == "ok"
    assert found["fine", "toys"]["version"] == "1.5"
    broken = found["broken", "toys"]["status"]
    assert broken.startswith("broken: ") and "AttributeError" in broken
    for distribution in ("toys", "protofl"):
        status = found["fedsa", distribution]["status"]
        assert status.startswith("clash: ") and "toys" in status and "protofl" in status

    table = cli("list-plugins", "--kind", "method").output
    assert "broken" in table and "clash" in table and "AttributeError" in table

    # Blocking one plugin resolves the clash; the broken plugin fails only if it is used.
    found = {(p["name"], p["distribution"]) for p in listed(cli, "--block", "fedsa@toys")}
    assert ("fedsa", "protofl") in found and ("fedsa", "toys") not in found
    assert cli("show", "fedsa", "--block", "fedsa@toys").exit_code == 0
    result = cli("show", "broken")
    assert result.exit_code == 2 and "toys 1.5 is broken" in result.stderr
    result = cli("run", "fedsa", "--models", "cnn4")
    assert result.exit_code == 2
    assert (
        "a method of protofl and a method of toys" in result.stderr
        and "--block fedsa@toys" in result.stderr
    )

    monkeypatch.setenv("PROTOFL_BLOCK", "method/fine, fedsa@toys")
    result = cli("list-plugins", "--kind", "method")
    assert "Left out" in result.output
    assert "fine" not in cli("list-plugins", "--names").output.splitlines()
    result = cli("show", "fine")
    assert result.exit_code == 2
    assert "blocked" in result.stderr
