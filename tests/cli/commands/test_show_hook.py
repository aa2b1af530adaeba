"""Tests of ``protofl show hook/NAME`` for each hook of each kind of plugin."""

from __future__ import annotations

import ast

import pytest

from protofl.hooks.discovery.kinds import KINDS, spec_hooks
from protofl_cli.pages.hook_texts import EXAMPLES, WHEN, example, returns, signature

ALL = [(kind, hook) for kind in KINDS for hook in spec_hooks(kind)]


def test_each_hook_is_told_of():
    found = {(kind, hook) for kind, hooks in WHEN.items() for hook in hooks}
    assert found == {*ALL}
    assert {*EXAMPLES} <= {*ALL}


@pytest.mark.parametrize(("kind", "hook"), ALL)
def test_each_hook_has_an_example_of_its_arguments(kind, hook):
    _, code = example(kind, hook)
    (function,) = ast.parse(code).body
    assert function.name == hook
    assert "hookimpl" in ast.unparse(function.decorator_list[0])
    arguments = [a.arg for a in function.args.args[1:]]
    assert {*arguments} <= {*spec_hooks(kind)[hook]}
    assert len(code.splitlines()) <= 40


def test_what_it_prints(cli):
    for word in ("server_aggregate", "method.server_aggregate"):
        output = cli("show", f"hook/{word}").output
        for text in (
            "server_aggregate(",
            "uploads: Mapping[int, Payload]",
            "called   on the server, after the uploads of a round",
            "returns  Mapping[str, Tensor]",
            "``uploads`` is in ascending".replace("``", "`"),
            "Example from ",
            "@pf.hookimpl",
            "Plugins with this hook: ",
        ):
            assert text in output, text


def test_a_hook_of_several_kinds(cli):
    both = cli("show", "hook/upload_payload").output
    assert "of a method" in both and "of a payload-transform" in both and "wrapper=True" in both
    assert "of a method" not in cli("show", "hook/payload-transform.upload_payload").output


@pytest.mark.parametrize(
    ("typed", "near"),
    [("hook/local_los", "'local_loss'"), ("hook/method.upload", "'method.upload_payload'")],
)
def test_a_near_miss(cli, typed, near):
    result = cli("show", typed)
    assert result.exit_code == 2 and near in result.stderr


def test_a_long_signature_is_broken_and_a_short_one_is_not():
    short, long = (getattr(KINDS["method"].spec, h) for h in ("inference", "local_loss"))
    assert signature(short) == "def inference(self, client: Client, x: Tensor) -> Tensor: ..."
    assert signature(long).splitlines()[1] == "    self,"
    assert returns(long) == "Mapping[str, Tensor]"

    def odd(a, /, *rest: int, b: str = "x", **more: float) -> None: ...

    assert signature(odd, "f") == "def f(a, *rest: int, b: str = 'x', **more: float) -> None: ..."
