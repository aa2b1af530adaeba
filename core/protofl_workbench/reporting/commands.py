"""The commands that make a run again: from its folder, and with every option written out."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from protofl.runs.reuse.run import Run
from protofl.system.options.parsing import as_typed, options_in
from protofl.system.options.table import OPTIONS, flag_of, is_repeatable
from protofl_workbench.reporting.parts import Command
from protofl_workbench.reporting.told import own

OWN_PLACE = ("method", "recipe", "data_dir")
"""Options that aren't repeated: where data are cached is a machine's, and a recipe's are listed."""

WIDTH = 78


def commands(run: Run) -> list[Command]:
    """How a run is made again, and gone on with."""
    folder = shown(run.folder)
    config = shown(run.folder / "config.json")
    found = [Command("Repeat it from its folder", f"protofl run --config {config}")]
    if not run.finished:
        text = f"protofl run --resume --out {folder}"
        found.append(Command("Go on with it, once nothing is at work on it", text))
    every = Command("Repeat it without its folder: every option", typed(run.config), folded=True)
    return [*found, every]


def typed(config: Mapping[str, Any]) -> str:
    """The command line that gives a run every option of its ``config.json``.

    Args:
        config: What the file holds.

    Returns:
        Lines for a shell, each but the last with a backslash at its end.
    """
    values = as_typed(options_in(config))
    words = ["protofl run", shlex.quote(str(config["method"])), *_words(values)]
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < WIDTH:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {word}")
    return "\n".join(lines)


def _words(values: Mapping[str, Any]) -> Iterator[str]:
    """Options with their values, those of plugins last."""
    for name, value in values.items():
        if name in OWN_PLACE or name == "options" or name not in OPTIONS:
            continue
        flag = flag_of(name)
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
        elif isinstance(value, Mapping):
            for key, one in value.items():
                yield f"{flag} {shlex.quote(_placed(name, key, one))}"
        elif isinstance(value, list) and not is_repeatable(name):
            yield from [f"{flag} {shlex.quote(','.join(value))}"] if value else []
        elif isinstance(value, list):
            for one in value:
                yield f"{flag} {shlex.quote(own(one))}"
        elif name == "checkpoint_every" and value == 0:
            yield f"{flag} off"
        elif name == "public" and value == 0:
            yield f"{flag} none"
        elif value is not None:
            yield f"{flag} {shlex.quote(exact(value))}"
    for owner, options in values.get("options", {}).items():
        for key, value in options.items():
            if not isinstance(value, Mapping):
                yield f"--set {shlex.quote(f'{owner}.{key}={exact(value)}')}"


def _placed(name: str, key: str, value: Any) -> str:  # noqa: ANN401 - as JSON has it
    """An entry of a table as one types it; a class's place has its kind before it."""
    return f"{key.partition('/')[0]}/{value}" if name == "classes" else f"{key}={own(value)}"


def exact(value: Any) -> str:  # noqa: ANN401 - options are of many types
    """A value as users write it, a number with all its digits."""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, (list, tuple)):
        return ",".join(map(exact, value))
    return own(value)


def shown(path: Path) -> str:
    """A path as one would type it here."""
    whole = path.expanduser().absolute()
    relative = os.path.relpath(whole)
    return shlex.quote(relative if not relative.startswith("..") else str(whole))
