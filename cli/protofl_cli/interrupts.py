"""Interruptions: what is said of one, and the exit code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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


@contextmanager
def put_off() -> Iterator[None]:
    """Interruptions wait until the end: one while torch is imported would abort the process."""
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
