"""Private facts of a machine: paths, user and host names are removed from published texts.

A path is replaced by its last part: ``npz:/home/ann/set.npz`` becomes ``npz:set.npz``. The user's
and the machine's names are replaced in sentences, such as a recorded error. A folder in which one
is still left is not published (`check`).
"""

from __future__ import annotations

import getpass
import json
import re
import socket
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.system.files.home import expand_user

_PART = r"[^\s/\\:*?\"'<>|,;()\[\]{}]"
_POSIX = re.compile(rf"(?<![\w.:/~\\-])~?(?:/{_PART}+)+/({_PART}+)/?")
_WINDOWS = re.compile(rf"(?<![\w])[A-Za-z]:[\\/](?:{_PART}+[\\/])*({_PART}+)[\\/]?")
_HOMES = re.compile(rf"(?:/(?:home|Users)/|[\\/]Users[\\/])({_PART}+)")
_USUAL_NAMES = frozenset({"localhost", "root", "user", "runner"})


class Scrubber:
    """Removes what only this machine, or the machine of a run, is meant to know.

    Args:
        folders: Folders whose paths are private, such as run folders.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        known = [*folders, Path.cwd(), Path(tempfile.gettempdir())]
        with suppress(UsageError):  # a user without a home folder
            known.append(expand_user("~"))
        self._folders = sorted(
            {str(path.absolute()) for path in known} - {Path.cwd().anchor, "/tmp"},
            key=len,
            reverse=True,
        )
        names = {"HOST": socket.gethostname(), "USER": _user()}
        self._names = {
            word: name
            for word, name in names.items()
            if len(name) > 2 and name.lower() not in _USUAL_NAMES
        }

    def option(self, value: str) -> str:
        """Return the value of an option without the folders of its files.

        Args:
            value: Such as ``npz:/home/ann/set.npz``; names with a slash (``hf:ylecun/mnist``) stay.
        """
        form, colon, rest = value.partition(":")
        if colon and re.fullmatch(r"[\w.-]{2,}", form) and not rest.startswith("//"):
            return f"{form}:{','.join(_last(part) for part in rest.split(','))}"
        return _last(value)

    def text(self, text: str) -> str:
        """Return a text with the last part of each path, and without the names of user and host."""
        for folder in self._folders:
            text = re.sub(rf"(?<![\w.:/-]){re.escape(folder)}[/\\]", "", text)
        text = _WINDOWS.sub(r"\1", _POSIX.sub(r"\1", text))
        if " " in text:  # names of users can also be those of methods and options
            for word, name in self._names.items():
                text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, text)
        return text

    def values(self, value: Any) -> Any:  # noqa: ANN401 - any JSON
        """Return a JSON value with scrubbed texts; keys and numbers stay."""
        if isinstance(value, str):
            return self.text(self.option(value))
        if isinstance(value, dict):
            return {key: self.values(one) for key, one in value.items()}
        return [self.values(one) for one in value] if isinstance(value, list) else value

    def line(self, line: str) -> str:
        """Return a line of JSON; one without private facts stays the same to the byte."""
        before = json.loads(line)
        after = self.values(before)
        return line if after == before else json.dumps(after)

    def leaks(self, text: str) -> list[str]:
        """Return the private facts that a text still has: folders, users, and the host."""
        found = [
            folder
            for folder in self._folders
            if re.search(rf"(?<![\w.:/-]){re.escape(folder)}(?![\w-])", text)
        ]
        found += [match[0] for match in _HOMES.finditer(text)]
        host = self._names.get("HOST", "")
        if re.search(r"[\d.-]", host) and re.search(rf"(?<!\w){re.escape(host)}(?!\w)", text):
            found.append(host)
        return list(dict.fromkeys(found))

    def check(self, folder: Path, sources: dict[str, str]) -> None:
        """Check that no file of a folder names a private fact; the bytes of all files are read.

        Args:
            folder: The folder.
            sources: {file in it: the file that the user can change}.

        Raises:
            UsageError: A file has one; the error names the file, the line and the fact.
        """
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            text = path.read_bytes().decode("utf-8", errors="replace")
            if leaks := self.leaks(text):
                name = path.relative_to(folder).as_posix()
                line = text[: text.find(leaks[0])].count("\n") + 1
                raise UsageError(
                    f"{sources.get(name, name)}, line {line} has {leaks[0]}, which names a folder "
                    "or a user of a machine",
                    "nothing was published",
                    "take it out of the file, and run again if the code changes"
                    if name in sources
                    else "leave out the run, or report this as a fault of protofl",
                )


def _last(value: str) -> str:
    """Return the last part of a path; names, and texts with spaces that are no paths, stay."""
    absolute = value.startswith(("/", "~", "\\")) or bool(re.match(r"[A-Za-z]:[\\/]", value))
    relative = value.startswith(("./", "../")) or ("/" in value and _exists(value))
    if not (absolute or relative) or "\n" in value:
        return value
    return re.split(r"[\\/]", value.rstrip("/\\"))[-1] or value


def _exists(value: str) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):  # a long text
        return False


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name in the environment, nor in the system
        return ""
