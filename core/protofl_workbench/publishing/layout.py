"""Layout of a published folder: names of its files, digests, and the check of all digests.

``SHA256SUMS`` has the digest of every other file, in the form of the program ``sha256sum``. Its own
SHA-256 is the digest of the publication: a paper that prints it fixes every byte.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from protofl.errors import ProtoflError, UsageError
from protofl.records.layout import CONFIG
from protofl.records.layout import DIGESTS as DIGESTS  # exported
from protofl.records.schema import check
from protofl.system.files.atomic import parse_json, write_file
from protofl.system.files.checksums import Damaged, check_plain_file

PUBLICATION = "publication.json"
"""Content of a publication: title, authors, license, runs, plugins, and parts left out."""

README, REQUIREMENTS = "README.md", "requirements.txt"
PAGE, PAPERS = "index.html", "papers.bib"
RUNS, PLUGINS = "runs", "plugins"
"""Folders of a publication."""

FORMAT = 1
"""Version of the form of `PUBLICATION`."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Run(_Form):
    name: Name


class Publication(_Form):
    """The content of `PUBLICATION`, as far as the runs do not say it."""

    format: Annotated[int, Field(ge=1)]
    title: str
    description: str
    authors: list[str]
    license: str
    published: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    publisher: str
    packages: dict[str, str]
    drawn_with: dict[str, str]
    included: list[str]
    runs: Annotated[list[_Run], Field(min_length=1)]


class Changed(ProtoflError):
    """A published folder does not have the bytes that were published (exit code 1)."""


@dataclass(frozen=True)
class Digests:
    """The files of a published folder against its digests.

    Attributes:
        files: Number of files with a digest.
        changed: Files with other bytes.
        missing: Files that are not there.
        extra: Files without a digest.
        digest: SHA-256 of `DIGESTS`: the digest of the publication.
    """

    files: int
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    digest: str

    @property
    def whole(self) -> bool:
        """True if every file has the bytes that were published."""
        return not (self.changed or self.missing or self.extra)

    def require(self, folder: Path) -> None:
        """Raise an error that names every file with other bytes.

        Raises:
            Changed: A file was changed, is missing, or was added.
        """
        if self.whole:
            return
        faults = {"changed": self.changed, "missing": self.missing, "not published": self.extra}
        parts = [f"{word}: {_few(names)}" for word, names in faults.items() if names]
        raise Changed(
            f"{folder} is not what was published: {'; '.join(parts)}",
            f"SHA-256 of {self.files} files compared with {DIGESTS}",
            "get the folder again from where it was published",
        )


def _few(names: tuple[str, ...]) -> str:
    more = len(names) - 10
    return ", ".join(names[:10]) + (f" and {more} more" if more > 0 else "")


def is_publication(folder: Path) -> bool:
    """Return True if a folder was written by ``protofl publish``."""
    return (folder / PUBLICATION).is_file() and (folder / DIGESTS).is_file()


def read_publication(folder: Path) -> dict[str, Any]:
    """Return the content of `PUBLICATION`.

    Raises:
        UsageError: The folder is not a published one, or the file is damaged or of a later version.
    """
    path = folder / PUBLICATION
    if not is_publication(folder):
        lacks = PUBLICATION if not path.is_file() else DIGESTS
        near = "there is no such folder" if not folder.is_dir() else f"it has no {lacks}"
        if (folder / CONFIG).is_file():
            near = f"it is a run; publish it: protofl publish {folder} --out DIR"
        raise UsageError(
            f"{folder} is not a published folder", near, "give the --out folder of protofl publish"
        )
    for file in (path, folder / DIGESTS):
        check_plain_file(file)
    try:
        values: dict[str, Any] = parse_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    later = isinstance(values, dict) and values.get("format")
    if type(later) is not int or later <= FORMAT:
        check(values, Publication, str(path))
        names = [run["name"] for run in values["runs"]]
        if len({*names}) < len(names):
            raise UsageError(f"{path} is damaged: two runs have one name")
    else:
        raise UsageError(
            f"{path} has format {values['format']}, and this protofl reads up to {FORMAT}",
            do="install a newer protofl",
        )
    return values


def files_in(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, without `DIGESTS`; links count as files."""
    names = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    ]
    return sorted(name for name in names if name != DIGESTS)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file; nothing is cached.

    Raises:
        Damaged: It is a link, a pipe or a device.
    """
    check_plain_file(path)
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_digests(folder: Path) -> str:
    """Write `DIGESTS` for all files of a folder; return the digest of the publication."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in files_in(folder)]
    write_file(folder / DIGESTS, "".join(lines))
    return sha256(folder / DIGESTS)


def check_digests(folder: Path) -> Digests:
    """Compare the files of a published folder with its digests.

    Raises:
        UsageError: The folder is not a published one.
        Changed: `DIGESTS` has a line that is none.
    """
    if not is_publication(folder):
        read_publication(folder)
    known = _read_digests(folder / DIGESTS)
    there = files_in(folder)
    changed = [name for name in there if name in known and _digest(folder / name) != known[name]]
    return Digests(
        len(known),
        tuple(changed),
        tuple(sorted(known.keys() - {*there})),
        tuple(name for name in there if name not in known),
        sha256(folder / DIGESTS),
    )


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except (OSError, Damaged):
        return ""


def _read_digests(path: Path) -> Mapping[str, str]:
    known: dict[str, str] = {}
    check_plain_file(path)
    *lines, rest = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate([*lines, *([rest] if rest else [])], 1):
        found = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        name = found[2] if found else ""
        fault = ""
        if not name.isprintable() or ".." in Path(name).parts or name[:1] in ("", "/"):
            fault = f"line {number} is not the digest of a file"
        elif name in known:
            fault = f"line {number} has a second digest of {name}"
        if fault or not found:
            raise Changed(
                f"{path.name} is not what was published: {fault}",
                do="get the folder again from where it was published",
            )
        known[name] = found[1]
    return known
