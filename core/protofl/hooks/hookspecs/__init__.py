"""Hook specifications: the hooks of each kind of plugin, and their markers."""

from __future__ import annotations

import pluggy

hookspec = pluggy.HookspecMarker("protofl")


hookimpl = pluggy.HookimplMarker("protofl")
"""Marks a plugin's method as the implementation of the hook of the same name."""
