"""Tests of the texts about hooks on the site."""

from __future__ import annotations

import ast

import pytest
from site_hook_texts import WHEN, example, returns, signature

from protofl.hooks.discovery.kinds import KINDS, spec_hooks

ALL = [(kind, hook) for kind in KINDS for hook in spec_hooks(kind)]


def test_the_page_says_when_each_hook_is_called():
    assert {(kind, hook) for kind, hooks in WHEN.items() for hook in hooks} == {*ALL}


@pytest.mark.parametrize(("kind", "hook"), ALL)
def test_examples_have_the_arguments_of_the_hook(kind, hook):
    owner, code = example(kind, hook)
    if not owner:
        return
    (function,) = ast.parse(code).body
    assert function.name == hook
    assert "hookimpl" in ast.unparse(function.decorator_list[0])
    assert {a.arg for a in function.args.args[1:]} <= {*spec_hooks(kind)[hook]}
    assert len(code.splitlines()) <= 40


def test_a_long_signature_is_broken_and_a_short_one_is_not():
    short, long = (getattr(KINDS["method"].spec, h) for h in ("inference", "local_loss"))
    assert signature(short) == "def inference(self, client: Client, x: Tensor) -> Tensor: ..."
    assert signature(long).splitlines()[1] == "    self,"
    assert returns(long) == "Mapping[str, Tensor]"

    def odd(a, /, *rest: int, b: str = "x", **more: float) -> None: ...

    assert signature(odd, "f") == "def f(a, *rest: int, b: str = 'x', **more: float) -> None: ..."
