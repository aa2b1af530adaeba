"""Interruptions: message, exit code, and postponement."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from protofl_cli.screens import render


class Terminated(KeyboardInterrupt):
    """SIGTERM from a scheduler or ``kill``, handled like ^C."""

    exit_code = 143


def interrupted(stop: BaseException, do: str = "") -> int:
    """Report that a command was interrupted; return the exit code.

    Args:
        stop: The interruption.
        do: How to resume.
    """
    terminated = isinstance(stop, Terminated)
    render.error("terminated by SIGTERM" if terminated else "interrupted", do=do)
    return Terminated.exit_code if terminated else 130


@contextmanager
def put_off() -> Iterator[None]:
    """Postpone interruptions, which would abort the process during the import of torch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)
