"""Hook specifications: the hooks of each kind of plugin, their markers and their version."""

from __future__ import annotations

import re

import pluggy

hookspec = pluggy.HookspecMarker("protofl")


hookimpl = pluggy.HookimplMarker("protofl")
"""Marks a plugin's method as the implementation of the hook of the same name."""

HOOKSPEC_VERSION = "1.0"
"""The version MAJOR.MINOR of the hooks that this protofl calls.

MINOR grows when a hook, an argument, a kind or a public name is added; older plugins still run.
MAJOR grows when something is removed or changes its meaning (docs/reference/compatibility.md). A
plugin states the version that it needs: ``requires_hookspec = "1.0"``.
"""


_FORM = re.compile(r"(\d+)\.(\d+)")


def parse_version(text: object) -> tuple[int, int] | None:
    """Return ``MAJOR.MINOR`` as two numbers, or None if the form is wrong."""
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else None


def serves(required: tuple[int, int], have: tuple[int, int]) -> bool:
    """Return True if hooks of version ``have`` serve a plugin that requires ``required``."""
    return required[0] == have[0] and required[1] <= have[1]
