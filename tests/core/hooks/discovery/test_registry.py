"""Tests of plugin discovery, with fake distributions on ``sys.path``."""

from __future__ import annotations

import shutil
import sys

import pytest

import protofl as pf
from protofl.hooks.discovery.kinds import KINDS, check_class, hooks_of, spec_hooks
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import choose

GOOD = '''
import protofl as pf

class Good:
    """A method."""

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload()

    @pf.hookimpl(wrapper=True)
    def download_payload(self, server):
        return (yield)

number = 3
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a fake distribution: ``install(name, source, entries)``."""
    monkeypatch.delenv("PROTOFL_BLOCK", raising=False)
    modules = set(sys.modules)

    def make(name, source, entries, group="protofl.methods", version="1.2"):
        site = tmp_path / name
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{name.replace('-', '_')}_module.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "\n".join(f"{key} = {value}" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")
        monkeypatch.syspath_prepend(site)

    yield make
    for name in set(sys.modules) - modules:
        if name.endswith("_module"):
            del sys.modules[name]


def error_of(call, *arguments):
    with pytest.raises(pf.UsageError) as caught:
        call(*arguments)
    assert caught.value.exit_code == 2
    return caught.value


def test_installed_plugins_are_found_without_importing_them(install):
    install("far-away", "raise RuntimeError('imported')", {"distant": "far_away_module:Good"})
    registry = Registry()
    plugin = registry.find("method", "distant")
    assert (plugin.kind, plugin.name, plugin.version) == ("method", "distant", "1.2")
    assert (plugin.distribution, plugin.target) == ("far-away", "far_away_module:Good")
    assert plugin.label == "method/distant"
    assert plugin in registry.plugins("method")
    assert "far_away_module" not in sys.modules


def test_a_folder_that_is_removed_and_made_again_has_its_new_plugins_alone(install, tmp_path):
    before = [*sys.path]
    for name in ("first", "second"):
        install("far-away", GOOD, {name: "far_away_module:Good"})
        found = {p.name for p in Registry().plugins("method") if p.distribution == "far-away"}
        assert found == {name}
        shutil.rmtree(tmp_path / "far-away")
        sys.path[:] = before


def test_kinds_and_their_groups():
    registry = Registry()
    assert {p.kind for p in registry.plugins()} <= set(KINDS)
    assert {p.name for p in registry.plugins("method")} >= {"local", "fedavg", "fedproto", "fedsa"}
    assert {p.name for p in registry.plugins("backend")} >= {"local", "process"}
    assert [p.label for p in registry.plugins("engine")] == sorted(
        p.label for p in registry.plugins("engine")
    )
    for kind in KINDS:
        assert kind in ("generator", "reproduction", "command") or spec_hooks(kind)
    error = error_of(registry.plugins, "metod")
    assert "unknown kind 'metod'" in error.what
    assert "'method'" in error.near


def test_own_plugins_come_through_the_same_door():
    for plugin in Registry().plugins():
        if plugin.distribution.startswith("protofl"):
            assert Registry().status(plugin)[0] == "ok", plugin.label


def test_loading_and_the_hooks_of_a_plugin(install):
    install("good", GOOD, {"good-one": "good_module:Good"})
    found = Registry().load("method", "good-one")
    assert found.__name__ == "Good"
    assert hooks_of("method", found) == ["download_payload", "upload_payload"]
    plugin = Registry().find("method", "good-one")
    assert Registry().status(plugin) == ("ok", ["download_payload", "upload_payload"])


@pytest.mark.parametrize(
    "source",
    [
        "raise ZeroDivisionError('at import')",
        "import no_such_module_here",
        "x =",
        "raise SystemExit",
    ],
)
def test_a_broken_plugin_is_listed_and_hurts_nobody_else(install, source):
    install("bad-dist", source, {"bad": "bad_dist_module:Bad"})
    registry = Registry()
    plugin = registry.find("method", "bad")
    status, hooks = registry.status(plugin)
    assert status.startswith("broken: method/bad of bad-dist 1.2")
    assert "\n" not in status
    assert hooks == []
    assert registry.load("method", "local")
    error = error_of(registry.load, "method", "bad")
    assert "broken" in error.what
    assert "bad-dist" in error.do


def test_a_missing_attribute_is_a_broken_plugin(install):
    install("gone", GOOD, {"gone": "gone_module:Missing"})
    assert "AttributeError" in error_of(Registry().load, "method", "gone").what


def test_an_unknown_name_names_what_is_near():
    error = error_of(Registry().find, "method", "fedprot")
    assert "unknown method 'fedprot'" in error.what
    assert "'fedproto'" in error.near
    assert "list-plugins --kind method" in error.do
    assert "local" in error_of(Registry().find, "backend", "xyzzy").near


def test_one_name_in_two_distributions(install):
    install("first", GOOD, {"twin": "first_module:Good"})
    install("second", GOOD, {"twin": "second_module:Good"})
    registry = Registry()
    assert [p.distribution for p in registry.plugins("method") if p.name == "twin"] == [
        "first",
        "second",
    ]
    error = error_of(registry.load, "method", "twin")
    assert error.what == "'twin' is a method of first and a method of second"
    assert "--block twin@second" in error.do
    assert registry.status(registry.plugins("method")[-1])[0] in ("ok", f"clash: {error.what}")
    statuses = [registry.status(p)[0] for p in registry.plugins("method") if p.name == "twin"]
    assert all(s.startswith("clash: ") for s in statuses)
    assert registry.load("method", "local")
    for blocked, left in (("twin@second", "first"), ("twin@first", "second")):
        assert Registry([blocked]).find("method", "twin").distribution == left
        assert Registry([f"method/{blocked}"]).find("method", "twin").distribution == left


def test_the_same_name_in_two_kinds_is_no_clash(install):
    install("both", GOOD, {"local": "both_module:Good"}, group="protofl.payload_transforms")
    assert Registry().find("payload-transform", "local").distribution == "both"
    assert Registry().find("method", "local").distribution == "protofl"
    assert Registry().find("backend", "local").distribution == "protofl"


@pytest.mark.parametrize(
    "pattern", ["fedsa", "method/fedsa", "fedsa@protofl", "method/fedsa@protofl"]
)
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_blocking(monkeypatch, pattern, by):
    monkeypatch.delenv("PROTOFL_BLOCK", raising=False)
    if by == "environment":
        monkeypatch.setenv("PROTOFL_BLOCK", f"other, {pattern} ,")
    registry = Registry([pattern] if by == "argument" else [])
    assert "fedsa" not in {p.name for p in registry.plugins("method")}
    error = error_of(registry.load, "method", "fedsa")
    assert "blocked" in error.what
    assert "PROTOFL_BLOCK" in error.do
    assert registry.load("method", "fedproto")


@pytest.mark.parametrize("pattern", ["model-group/fedsa", "fedsa@other", "local@other", ""])
def test_blocking_something_else(monkeypatch, pattern):
    """PROTOFL_BLOCK may name plugins that are not installed; ``--block`` may not."""
    monkeypatch.setenv("PROTOFL_BLOCK", pattern)
    assert Registry().load("method", "fedsa")
    if pattern:
        with pytest.raises(pf.UsageError, match="unknown plugin in --block"):
            Registry([pattern])


def test_blocking_one_kind_leaves_the_other(monkeypatch):
    monkeypatch.delenv("PROTOFL_BLOCK", raising=False)
    registry = Registry(["backend/local"])
    assert registry.find("method", "local")
    assert "blocked" in error_of(registry.find, "backend", "local").what


class _Unmarked:
    def upload_payload(self, client):
        return pf.Payload()


class _WrongArgument:
    @pf.hookimpl
    def upload_payload(self, clients):
        return pf.Payload()


class _WrongHook:
    @pf.hookimpl
    def upload_paylod(self, client):
        return pf.Payload()


class _WrongConfig:
    class Config:
        pass


class _Default:
    @pf.hookimpl
    def upload_payload(self, client=None):
        return pf.Payload()


class _Constant:
    inference = "head"


class _Condition:
    after_batch_if = {"collects": "online"}

    class Config(pf.Config):
        collect: str = "eval"

    @pf.hookimpl
    def after_batch(self, client):
        pass


@pytest.mark.parametrize(
    ("plugin", "what", "near"),
    [
        (_Condition, "option in after_batch_if of method/x: 'collects'", "'collect'"),
        (_Unmarked, "upload_payload lacks @hookimpl", "@pf.hookimpl"),
        (_WrongArgument, "argument of method/x.upload_payload: 'clients'", "'client'"),
        (_WrongHook, "hook of method/x: 'upload_paylod'", "'upload_payload'"),
        (_WrongConfig, "Config", "pf.Config"),
        (3, "names 3", "class"),
        (lambda: None, "names <function", "class"),
        (_Default, "client", "default"),
        (_Constant, "inference", "@pf.hookimpl"),
    ],
)
def test_a_class_that_breaks_the_rules(plugin, what, near):
    error = error_of(check_class, "method", "x", plugin)
    assert what in error.what
    assert near in str(error)


@pytest.mark.parametrize("name", ["Fed", "9lives", "a b", "a.b", "", "-a", "é"])
def test_a_name_that_breaks_the_rules(name):
    assert "name" in error_of(check_class, "method", name, type("Plain", (), {})).what


@pytest.mark.parametrize("name", ["a", "fed-x_2"])
def test_a_name_that_keeps_the_rules(name):
    check_class("method", name, type("Plain", (), {}))


def test_an_entry_point_that_is_no_class(install):
    install("plain", GOOD, {"plain": "plain_module:number"})
    error = error_of(Registry().load, "method", "plain")
    assert "the entry point names 3" in error.what


def test_classes_given_in_the_program():
    class Mine:
        """Mine."""

    registry = Registry(extra={("method", "mine"): Mine})
    assert registry.load("method", "mine") is Mine
    assert registry.find("method", "mine").distribution == "this program"
    clash = Registry(extra={("method", "fedsa"): Mine})
    assert "a method of this program" in error_of(clash.load, "method", "fedsa").what


class _Wrapping:
    """Marks a hook as a transform, in a kind of plugin that cannot wrap."""

    @pf.hookimpl(wrapper=True)
    def train(self, job):
        return (yield)


def test_a_transform_where_there_is_nothing_to_wrap():
    error = error_of(check_class, "engine", "x", _Wrapping)
    assert "engine/x: train is marked as a wrapper" in error.what
    assert "without wrapper=True" in error.do


def test_a_choice_gives_a_hook_what_it_names():
    class Group:
        class Config(pf.Config):
            width: int = pf.Field(3, ge=1, description="width")

        @pf.hookimpl
        def architectures(self, config):
            return [config.width]

    registry = Registry(extra={("model-group", "mine"): Group})
    chosen = choose(registry, "model-group", "mine", {"width": 5})
    assert (chosen.text, chosen.hooks) == ("mine", ["architectures"])
    assert chosen.call("architectures") == [5]
    assert chosen.call("server_architectures") is None
