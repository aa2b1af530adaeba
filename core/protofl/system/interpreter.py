"""State of the interpreter that a hook may change for everything that runs after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from protofl.system.torch_state import TorchState


class InterpreterState:
    """State of torch, recursion limit, current folder and standard output at one moment."""

    def __init__(self) -> None:
        self._torch, self._limit = TorchState(), sys.getrecursionlimit()
        self._folder, self._stdout, self._copy = "", sys.stdout, -1
        self._number = -1
        with suppress(OSError, AttributeError):
            self._number = sys.stdout.fileno()
        with suppress(OSError):  # a folder that was removed, or no standard output
            self._folder = os.getcwd()
            self._copy = os.dup(1)

    def restore(self) -> list[str]:
        """Restore the state; return the changes, such as "changed the recursion limit to 50"."""
        result = self._torch.restore()
        if (limit := sys.getrecursionlimit()) != self._limit:
            sys.setrecursionlimit(self._limit)
            result.append(f"changed the recursion limit to {limit}")
        with suppress(OSError):
            if self._folder and os.getcwd() != self._folder:
                os.chdir(self._folder)
                result.append("changed the current folder")
        result += ["closed the standard output"] * self._reopen()
        if self._copy >= 0:
            os.close(self._copy)
        return result

    def _reopen(self) -> bool:
        """Open the standard output again; return True if it was closed."""
        lost = False
        if self._copy >= 0:
            try:
                os.fstat(1)
            except OSError:
                os.dup2(self._copy, 1)
                lost = True
        before = self._stdout
        if before is None or not (sys.stdout is None or sys.stdout.closed):
            return lost
        if before.closed:
            is_stdout = self._number == 1  # else one of a test or a notebook
            place = 1 if is_stdout else os.devnull
            before = open(place, "w", 1, before.encoding, before.errors, closefd=not is_stdout)
        sys.stdout = before
        return True


@contextmanager
def unchanged_interpreter(doing: str) -> Iterator[list[str]]:
    """Restore what hooks in the block have changed; yield a list for lines about it."""
    notes, state = list[str](), InterpreterState()
    try:
        yield notes
    finally:
        notes += [f"{doing}: a hook {change}; it is restored" for change in state.restore()]
