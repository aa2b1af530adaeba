"""Tests that a method's file shows the whole method: all its hooks, in the order of a round."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from pathlib import Path

import pytest

from protofl.hooks.hookspecs.method import MethodSpec

HOOKS = [name for name, value in vars(MethodSpec).items() if callable(value)]
METHODS = {
    point.name: point
    for point in importlib.metadata.entry_points(group="protofl.methods")
    if point.value.startswith("protofl_plugins.methods.")
}


def fault_of(method):
    """Return how a class hides its hooks; empty if a reader sees them all in its file."""
    ours = [base for base in method.__mro__[1:] if base.__module__.startswith("protofl_plugins.")]
    ours = [base for base in ours if base.__module__ != method.__module__]
    brought = [name for base in ours for name in vars(base) if name in HOOKS]
    if len(ours) > 1:
        return f"has {len(ours)} base classes: {', '.join(base.__name__ for base in ours)}"
    if len(brought) > 2:
        return f"its base class brings {len(brought)} hooks: {', '.join(brought)}"
    shown = [name for name in vars(method) if name in HOOKS]
    if shown != sorted(shown, key=HOOKS.index):
        return f"its hooks are not in the order of a round: {', '.join(shown)}"
    return ""


class OneHook:
    def receive(self, client): ...


class ThreeHooks:
    def receive(self, client): ...

    def local_loss(self, client): ...

    def inference(self, client): ...


class OfTheSameFile:
    def receive(self, client): ...

    def local_loss(self, client): ...

    def inference(self, client): ...


OfTheSameFile.__module__ = "protofl_plugins.methods.toy"
for toy in (OneHook, ThreeHooks):
    toy.__module__ = "protofl_plugins.shared.toys"


@pytest.mark.parametrize(
    ("bases", "hooks", "fault"),
    [
        ((), ["setup_server", "local_loss", "server_aggregate", "inference"], ""),
        ((OneHook,), ["local_loss"], ""),
        ((OneHook, ThreeHooks), [], "has 2 base classes: OneHook, ThreeHooks"),
        ((ThreeHooks,), [], "brings 3 hooks: receive, local_loss, inference"),
        ((OfTheSameFile,), ["local_loss"], ""),
        ((), ["local_loss", "resolve"], "not in the order of a round: local_loss, resolve"),
    ],
)
def test_the_check_finds_what_hides_hooks(bases, hooks, fault):
    method = type("Toy", bases, {name: lambda self: None for name in hooks})
    method.__module__ = OfTheSameFile.__module__
    assert fault_of(method).endswith(fault) and bool(fault_of(method)) == bool(fault)


def test_there_are_methods_to_look_at():
    assert len(METHODS) >= 33 and {"fedproto", "fedavg"} <= METHODS.keys()
    assert len(HOOKS) >= 20


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_methods_file_shows_all_its_hooks_in_the_order_of_a_round(name):
    fault = fault_of(METHODS[name].load())
    assert not fault, f"{name}: {fault}"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_methods_file_names_the_options_that_others_share(name):
    config = vars(METHODS[name].load()).get("Config")
    if config is None:
        return
    own = inspect.get_annotations(config)
    options = {f.alias or n: n for n, f in config.model_fields.items()}
    shared = [written for written, n in options.items() if n not in own and n != "variant"]
    named = " ".join(config.__doc__.split()).partition("hared: ")[2].removesuffix(".")
    assert named == ", ".join(shared), config.__qualname__


def test_only_folders_lie_at_the_top_of_the_plugins():
    top = Path(importlib.import_module("protofl_plugins").__file__).parent
    files = {path.name for path in top.iterdir() if path.is_file()}
    assert files == {"__init__.py", "py.typed", "papers.bib"}
