"""The screen of a run, as a thing of its own."""

from __future__ import annotations

import threading

from protofl_cli.screen import Screen


def test_it_leaves_no_thread_behind():
    """A thread that outlives a run frees its tensors while the interpreter ends, which aborts."""
    before = set(threading.enumerate())
    with Screen():
        assert set(threading.enumerate()) - before
    assert set(threading.enumerate()) == before
