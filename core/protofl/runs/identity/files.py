"""Files on whose content results depend, beside the data: their digests as a run begins."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan


def file_digests(plan: Plan) -> dict[str, str]:
    """{option: SHA-256} of files that ``--selection`` and ``--world`` name, and a generator's.

    The files of a generator are those that its options name, ``generator.weights``.

    Raises:
        UsageError: One can't be read.
    """
    found = {}
    for option, shown, path in _files_of(plan):
        try:
            about = os.stat(path)
            found[option] = _digest(path, about.st_mtime_ns, about.st_size, about.st_ino)
        except OSError as error:
            raise UsageError(
                f"{shown} can't be read: {error.strerror}", do="give the path of its file"
            ) from None
    return found


def _files_of(plan: Plan) -> Iterator[tuple[str, str, Path]]:
    """Options, how one types them, and the files that they name."""
    for option in ("selection", "world"):
        choice = plan.choices.get(option)
        if choice is not None and getattr(choice.plugin, "argument", None) == "path":
            yield option, f"--{option} {choice.text}", Path(choice.argument)
    generator = plan.choices.get("generator")
    if generator is not None:
        for name, field in type(generator.config).model_fields.items():
            path = getattr(generator.config, name)
            if isinstance(path, Path) and path.is_file():
                option = f"generator.{field.alias or name}"
                yield option, f"--set {option}={path}", path


@lru_cache(maxsize=64)
def _digest(path: Path, *stamps: int) -> str:
    """The SHA-256 of a file as long as it is the same; weights are large, and asked for often."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
