"""Mistakes of a method's author, each in a sound method: one hook or one declaration is changed."""

from __future__ import annotations

import importlib
import re
import warnings
from dataclasses import dataclass, field

import protofl as pf
from protofl.hooks.hookspecs.method import LIFECYCLE_HOOKS, ROUND_HOOKS
from protofl.runs.dry_step.dry_run import dry_step
from protofl.testing import toy
from protofl.testing.toy_plugins import Prototypes


@dataclass
class Mistake:
    """One mistake.

    Attributes:
        hook: The hook, or the declaration, in which it is.
        words: What the author wrote.
        plugin: The method.
    """

    hook: str
    words: str
    plugin: type


HOOKS = (*ROUND_HOOKS, *LIFECYCLE_HOOKS)
MISTAKES: list[Mistake] = []


def add(hook, words, **attributes):
    """A sound method of which something is replaced."""
    made = {k: pf.hookimpl(v) if k in HOOKS else v for k, v in attributes.items()}
    MISTAKES.append(Mistake(hook, words, type("Mine", (Prototypes,), {"__doc__": words, **made})))


# --- what is said ---------------------------------------------------------------------------------


@dataclass
class Said:
    """What a run said of a mistake: an error, or notes."""

    error: Exception | None
    notes: list[str] = field(default_factory=list)


def said(mistake, folder):
    """Plan a run with the mistake, and try its dry step."""
    notes = []
    extra = {("method", "mine"): mistake.plugin}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dry_step(toy.make_plan("mine", folder, extra=extra), notes.append)
    except Exception as error:
        return Said(error, notes)
    return Said(None, notes)


def in_a_cell(told):
    """What is wrong and what to do; of Python's and torch's own errors the type alone."""
    if told.error is None:
        text = f"note: {told.notes[0]}"
    else:
        what, do = told.error.what, told.error.do.splitlines()[0]
        what = what.removeprefix("the dry step failed: ")
        if raw := re.fullmatch(r"([^:]*?)(?:, client 0)?, [^:]*: (\w+Error): .*", what, re.DOTALL):
            what = f"{raw[1]}: {raw[2]}"
        else:
            what = re.sub(r"^(?:[^:']*: )?mine\.", "mine.", what)
        text = f"{what} **→** {do}"
    return re.sub(r"mistakes_\w+\.py:\d+", "mine.py:12", text).replace("|", "\\|")


def everything(folder):
    """Every mistake, and what is said."""
    for module in ("mistakes_of_clients", "mistakes_elsewhere"):
        importlib.import_module(module)  # it adds them
    return [(mistake, said(mistake, folder)) for mistake in MISTAKES]
