"""Facts that must be equal on all machines of a run for equal results."""

from __future__ import annotations

from importlib import metadata

import protofl as pf


def fingerprint(plan: pf.backends.Plan) -> dict[str, str]:
    """Return the versions of protofl and torch, and the digest of the data."""
    versions = {name: metadata.version(name) for name in ("protofl", "torch")}
    return versions | {"data": plan.data.digest}
