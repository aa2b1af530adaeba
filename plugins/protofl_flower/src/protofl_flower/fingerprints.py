"""Facts that must be equal for equal results: versions, code of plugins, data."""

from __future__ import annotations

import inspect
import json
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import protofl as pf
from protofl_flower.files import write_json

FILE = "facts.json"


def facts_of(plan: pf.backends.Plan) -> dict[str, str]:
    """Return the versions, the digest of the data, and digests of the code of the plan's plugins.

    The digest of a plugin's code is that of the file in which its class stands.
    """
    result = {name: metadata.version(name) for name in ("protofl", "torch")}
    result["data"] = plan.data.digest
    for name, member in plan.composition.members.items():
        with suppress(OSError, TypeError):
            code = Path(inspect.getfile(member.plugin)).read_bytes()
            result[f"code of {name}"] = sha256(code).hexdigest()[:12]
    return result


def changes_of(folder: Path, facts: dict[str, str]) -> list[str]:
    """Compare with the facts that a run's folder on a node has, and write them.

    Returns:
        A line for each that has changed.

    Raises:
        UsageError: The data have changed.
    """
    file, before = folder / FILE, dict[str, str]()
    with suppress(OSError, ValueError):
        before = dict(json.loads(file.read_text(encoding="utf-8")))
    if before.get("data", facts["data"]) != facts["data"]:
        raise pf.UsageError(
            "the data of this node have changed since the run started",
            do="restore the node's data, or start a new run",
        )
    write_json(file, facts)
    return [
        f"its {name} was {before[name]} and is {value}"
        for name, value in facts.items()
        if before.get(name, value) != value
    ]
