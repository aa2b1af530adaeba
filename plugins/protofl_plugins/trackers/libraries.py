"""Trackers: checks of libraries that come with an extra."""

from __future__ import annotations

from importlib.util import find_spec

import protofl as pf


def expect_library(module: str, extra: str) -> None:
    """Check that a library is installed, without importing it.

    Args:
        module: Its module.
        extra: The extra of protofl that brings it.

    Raises:
        UsageError: It is not.
    """
    if find_spec(module) is None:
        raise pf.UsageError(
            f"--track {extra} needs the library {module}, which is not installed",
            f"it comes with protofl's extra {extra!r}",
            f"pip install 'protofl[{extra}]', or leave {extra} out of --track",
        )
