"""Try every hook and loss term of each method in every other method.

Each combination is planned on a tiny federation with the ``check_options`` of the methods. It goes
through the dry run, as any run does, and runs, or is refused with the name of what is missing.
``python tests/update.py NAME`` writes the outcomes to ``mixing.txt`` in this folder;
``docs/how-to/mix-methods.md`` has their counts.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from protofl import ProtoflError
from protofl.backends import Plan
from protofl.errors import Refused
from protofl.hooks.discovery.kinds import hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.hookspecs.method import MERGED_HOOKS, ROUND_HOOKS
from protofl.hooks.plugin.providers import Baseline
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy

FILE = Path(__file__).with_name("mixing.txt")

RUNS, ALIKE = "runs", "runs with one architecture"
TERM = "--add local_loss"
FOUND = (RUNS, ALIKE, "runs with one net in depths", "runs with one net with exits")
"""Outcomes of combinations that run, by the group that the clients need."""
PLACES = [
    *(f"--use {hook}" for hook in ROUND_HOOKS),
    *(f"--add {hook}" for hook in MERGED_HOOKS),
    TERM,
]
HOOK_PLACES = PLACES[:-1]
FITTING = {"fedet": {}}
"""Options of a method on the tiny federation, if not its ``check_options``."""


class Mixer:
    """Tries combinations on a tiny federation with public data."""

    def __init__(self, registry, folder):
        self.registry = registry
        data = {("dataset", "toy"): toy.dataset(toy.make_images(toy.MIXED))}
        members = ([toy.CNN, toy.NORM], [toy.NORM], toy.EXITS, toy.EXITS[:1])
        groups = [toy.group(*nets) for nets in members]
        self.registries = [
            Registry(registry.block, registry.extra | data | {("model-group", "toy"): group})
            for group in groups
        ]
        public = folder / "public.npz"
        x = np.random.default_rng(0).standard_normal((12, toy.SIDE, toy.SIDE))
        np.savez(public, x_train=x.astype(np.float32), y_train=np.arange(12) % 4)
        self.given = {
            "models": "toy", "dataset": "toy", "device": "cpu", "backend": "local", "batch_size": 5,
            "lr": 0.05, "rounds": 3, "data_dir": folder, "public": f"npz:{public}",
        }  # fmt: skip

    def terms(self, method):
        """Return the loss terms of a method in the form of ``--add``."""
        plugin = self.registry.load("method", method)
        own = "local_loss" in hooks_of("method", plugin)
        return [f"{method}.{t}" for t in (getattr(plugin, "terms", {}) if own else Baseline.terms)]

    def outcome(self, main, place="", donor=""):
        """Return ``runs``, ``refused: …`` or another error: a fault of a method or of protofl."""
        option, _, hook = place.partition(" ")
        options = {"use": {hook: donor}} if option == "--use" else {}
        if option == "--add":
            options["add"] = [donor if place == TERM else f"{hook}={donor}"]
        methods = {main, donor.partition(".")[0] or main}
        plugins = {name: self.registry.load("method", name) for name in methods}
        fitting = {n: FITTING.get(n, getattr(p, "check_options", {})) for n, p in plugins.items()}
        options["options"] = {name: own for name, own in fitting.items() if own}
        for registry, found in zip(self.registries, FOUND, strict=True):
            try:
                given = {**self.given, **options, "method": main}
                dry_run(Plan.make(given, report=lambda line: None, registry=registry))
                return found
            except Refused as error:
                refused = f"refused: {error.lacks} {error.name}"
                if error.lacks == "requirement":
                    continue  # clients of one architecture may meet it
                if f"'{error.name.removesuffix('*')}" not in str(error):
                    return f"it does not name {error.name}: {error}"
                return refused
            except ProtoflError as error:
                return str(error)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        return refused

    def row(self, main, donors):
        """Return {(place, main, donor): outcome} of one method with hooks and terms of others."""
        found = {}
        for donor in donors:
            for place in PLACES:
                for name in self.terms(donor) if place == TERM else [donor]:
                    found[place, main, name] = self.outcome(main, place, name)
        return found


@contextmanager
def mixer(registry=None):
    """Provide a `Mixer` with a temporary folder for its data."""
    with tempfile.TemporaryDirectory() as folder:
        yield Mixer(registry or Registry(), Path(folder))


def read():
    """Return the stored outcomes: {(place, main, donor): outcome}."""
    found, place = {}, ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("--"):
            place = line
        elif line:
            main, *groups = line.split(" | ")
            for outcome, _, donors in (group.rpartition(" = ") for group in groups):
                found |= {(place, main, donor): outcome for donor in donors.split()}
    return found


def text(found):
    """Return outcomes as text: for each place a line per main method, with donors by outcome."""
    lines, mains = [], {}
    for place, main, donor in sorted(found):
        groups = mains.setdefault(place, {}).setdefault(main, {})
        groups.setdefault(found[place, main, donor], []).append(donor)
    for place in PLACES:
        lines += ["", place]
        for main, groups in mains.get(place, {}).items():
            cells = (f"{outcome} = {' '.join(groups[outcome])}" for outcome in sorted(groups))
            lines.append(" | ".join([main, *cells]))
    return "\n".join(lines[1:]) + "\n"


def tried(methods, changed, stored):
    """Return the outcomes of all combinations: those with changed methods tried, others as stored.

    Args:
        methods: All methods.
        changed: Those whose combinations with all methods are tried.
        stored: {(place, main, donor): outcome}.
    """
    kept = {*methods} - {*changed}
    found = {c: o for c, o in stored.items() if {c[1], c[2].partition(".")[0]} <= kept}
    with mixer() as made:
        for name in methods:
            others = [donor for donor in methods if donor != name]
            found |= made.row(
                name, others if name in changed else [d for d in others if d in changed]
            )
    return found
