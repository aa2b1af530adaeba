"""Mistakes of method authors. Each changes one hook or one declaration of a correct method."""

from __future__ import annotations

import importlib
import re
import warnings
from dataclasses import dataclass, field

import protofl as pf
from protofl.hooks.hookspecs.method import LIFECYCLE_HOOKS, ROUND_HOOKS
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy
from protofl.testing.toy_plugins import Prototypes


@dataclass
class Mistake:
    """One mistake.

    Attributes:
        hook: The hook or the declaration with the mistake.
        words: Short description of the mistake.
        plugin: The method.
    """

    hook: str
    words: str
    plugin: type


HOOKS = (*ROUND_HOOKS, *LIFECYCLE_HOOKS)
MISTAKES: list[Mistake] = []


def add(hook, words, **attributes):
    """Add a mistake: a correct method with some attributes replaced."""
    made = {k: pf.hookimpl(v) if k in HOOKS else v for k, v in attributes.items()}
    MISTAKES.append(Mistake(hook, words, type("Mine", (Prototypes,), {"__doc__": words, **made})))


# --- messages -------------------------------------------------------------------------------------


@dataclass
class Said:
    """The error or the notes that a run gave for a mistake."""

    error: Exception | None
    notes: list[str] = field(default_factory=list)


def said(mistake, folder):
    """Plan a run with the mistake and do its dry run."""
    notes = []
    extra = {("method", "mine"): mistake.plugin}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dry_run(toy.make_plan("mine", folder, extra=extra), notes.append)
    except Exception as error:
        return Said(error, notes)
    return Said(None, notes)


def in_a_cell(told):
    """Return what is wrong and what to do; for errors of Python and torch only the type."""
    if told.error is None:
        text = f"note: {told.notes[0]}"
    else:
        what, do = told.error.what, told.error.do.splitlines()[0]
        what = what.removeprefix("the dry run failed: ")
        if raw := re.fullmatch(r"([^:]*?)(?:, client 0)?, [^:]*: (\w+Error): .*", what, re.DOTALL):
            what = f"{raw[1]}: {raw[2]}"
        else:
            what = re.sub(r"^(?:[^:']*: )?mine\.", "mine.", what)
        text = f"{what} **→** {do}"
    return re.sub(r"mistakes_\w+\.py:\d+", "mine.py:12", text).replace("|", "\\|")


def everything(folder):
    """Return every mistake with its error or notes."""
    for module in ("mistakes_of_clients", "mistakes_elsewhere"):
        importlib.import_module(module)  # the import adds the mistakes
    return [(mistake, said(mistake, folder)) for mistake in MISTAKES]
