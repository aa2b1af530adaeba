"""A limit on how long work may take, so that a hook that never returns is named."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from protofl.errors import Late, Overtime


@contextmanager
def at_most(seconds: float, what: str, do: str = "") -> Iterator[None]:
    """Interrupt what takes longer, and again after as long where it goes on all the same.

    It works where a signal can interrupt: in the main thread of a process, not on Windows, and not
    inside of compiled code that never comes back. Elsewhere, and where the program has set the
    alarm clock already, nothing is limited.

    Args:
        seconds: How long it may take; 0 for any time.
        what: What it is, for the error; a `naming` inside says more.
        do: What to do about it, for the error.

    Raises:
        Late: It took longer.
    """
    main = threading.current_thread() is threading.main_thread()
    able = main and hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    if not seconds or not able:
        yield
        return

    def late(number: int, frame: Any) -> None:  # noqa: ANN401 - as Python calls it
        where = f"process {os.getpid()} on {socket.gethostname()}"
        raise Overtime(f"no end after {seconds:g} s (--job-limit) in {where}")

    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        yield
    except Overtime as error:
        raise Late(f"{what}: {error}", do=do) from error
    except Late as error:
        error.do = do or error.do
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
