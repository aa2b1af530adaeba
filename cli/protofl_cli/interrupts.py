"""Interruptions: what is said of one, and the exit code."""

from __future__ import annotations

from protofl_cli import render


class Terminated(KeyboardInterrupt):
    """SIGTERM: what ^C is to a person, from a scheduler or ``kill``."""


def interrupted(stop: BaseException, do: str = "") -> int:
    """Say that a command was interrupted; returns the exit code.

    Args:
        stop: What interrupted it.
        do: How to go on.
    """
    terminated = isinstance(stop, Terminated)
    render.error("terminated by SIGTERM" if terminated else "interrupted", do=do)
    return 143 if terminated else 130
