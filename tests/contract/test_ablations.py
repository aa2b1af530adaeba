"""Tests that every ablation that a method lists runs, as `protofl show METHOD` prints it."""

from __future__ import annotations

import shlex

import pytest
from slowness import quick

from protofl.hooks.discovery.registry import Registry
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.system.options.parsing import parse_options
from protofl.system.options.table import flag_of
from protofl.testing import MethodContract
from protofl.testing import toy as toyfed
from protofl.testing.donors import methods_to_run
from protofl.testing.method_federations import expect_finite

REGISTRY = Registry()
ABLATIONS = [
    (method, name)
    for method in methods_to_run(REGISTRY)
    for name in getattr(REGISTRY.load("method", method), "ablations", {})
]


SOME = ("ds-fl", "fedpkd", "fedsa", "heterofl")
"""Methods of which one ablation runs by default."""


def typed(text, method):
    """Return the options of a run that are typed as ``--FLAG VALUE …``."""
    words, given = shlex.split(text), {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        assert flag.startswith("--"), f"{flag} is not an option"
        name = flag[2:].replace("-", "_")
        assert name in ("set", "with") or flag_of(name) == flag
        given.setdefault(name, []).append(value)
    many = ("set", "use", "add", "drop", "with")
    given = {k: v if k in many else int(v[0]) for k, v in given.items()}
    return parse_options(given, owner=method)


@pytest.mark.parametrize(
    ("method", "name"), quick(ABLATIONS, *(dict((p[0], p) for p in ABLATIONS)[m] for m in SOME))
)
def test_an_ablation_runs(method, name):
    contract = type("Installed", (MethodContract,), {"plugin": method})()
    contract.setup_method()
    try:
        options = typed(contract.cls.ablations[name], method)
        parts = options.pop("options", {})
        if "clients" in options:
            options["data"] = toyfed.make_images(toyfed.MIXED, given_split=False)
        own = parts.pop(method, {})
        dry_run(contract.plan(set=own, parts=parts, **options))  # as every run begins
        fed = contract.fed(set=own, parts=parts, **options)
        expect_finite(fed.rounds(1))
    finally:
        contract.teardown_method()


def test_every_method_of_the_papers_ablations_is_covered():
    assert {method for method, _ in ABLATIONS} >= {"fedsa", "fedtgp", "fedktl", "fedpkd", "fedorgp"}
