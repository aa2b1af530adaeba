"""Files that say who takes part, and on what devices: what they held when a run began."""

from __future__ import annotations

import hashlib
from pathlib import Path

from protofl.errors import UsageError
from protofl.plan.plan import Plan


def file_digests(plan: Plan) -> dict[str, str]:
    """{option: SHA-256} of the files that ``--selection`` and ``--world`` name.

    Raises:
        UsageError: One can't be read.
    """
    found = {}
    for option in ("selection", "world"):
        choice = plan.choices.get(option)
        if choice is not None and getattr(choice.plugin, "argument", None) == "path":
            try:
                found[option] = hashlib.sha256(Path(choice.argument).read_bytes()).hexdigest()
            except OSError as error:
                raise UsageError(
                    f"--{option} {choice.text} can't be read: {error.strerror}",
                    do="give the path of its file",
                ) from None
    return found
