"""Plugin classes by their place (``MODULE:CLASS``, ``FILE.py:CLASS``), and digests of code."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import os
import sys
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType
from typing import Any

from protofl.errors import ProtoflError, UsageError, error_location, unknown


@dataclass(frozen=True)
class _File:
    """A file that was loaded as a module, what it held then, and what of that is code."""

    path: Path
    digest: str
    code: str


_files: dict[str, _File] = {}
"""{module: the file that `module_of` made it of}."""


def load(place: str, whose: str = "") -> type:
    """Load the class at ``MODULE:CLASS`` or ``FILE.py:CLASS``.

    A file that was changed since it was last loaded is loaded again.

    Args:
        place: The place; empty for a class that has none.
        whose: The plugin that it is, for errors.

    Raises:
        UsageError: There is no such module, file or class, or it can't be imported.
    """
    if not place:
        raise UsageError(
            f"{whose} was a class of a program, which no other one finds",
            do="give it again: protofl.run(CLASS, …), or write it into a file of its own",
        )
    module, _, name = place.rpartition(":")
    return class_in(module_of(module), module, name)


def class_in(module: ModuleType, place: str, name: str) -> type:
    """Return the class ``CLASS`` or ``CLASS.INNER`` of a module.

    Raises:
        UsageError: There is none.
    """
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            classes = [n for n, v in vars(module).items() if isinstance(v, type)]
            raise unknown(f"class in {place}:", name, classes, f"write {place}:CLASS")
        found = getattr(found, part)
    if not isinstance(found, type):
        raise UsageError(f"{place}:{name} is {found!r}", do="name a class with hooks")
    return found


def module_of(name: str) -> ModuleType:
    """Import a module by name or file.

    Raises:
        UsageError: There is none, or it can't be imported.
    """
    return _of_file(name) if name.endswith(".py") else _of_name(name)


def place_of_class(plugin: type) -> str:
    """Return the place where a new interpreter finds a class; empty if there is none.

    It doesn't find what a function made, or a program's main module (a script, a notebook), which
    nobody imports twice.
    """
    name = plugin.__module__
    module = sys.modules.get(name)
    if name in ("__main__", "__mp_main__") or "<" in plugin.__qualname__:
        return ""
    found: Any = module
    for part in plugin.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not plugin:
        return ""
    if name in _files:
        return f"{_files[name].path}:{plugin.__qualname__}"
    spec = getattr(module, "__spec__", None)
    return f"{name}:{plugin.__qualname__}" if spec is not None and spec.origin else ""


UNKNOWN = "?"
"""In place of a digest where there is no file."""


def fingerprint(plugin: type) -> str:
    """Return a digest of the code in a class's file, or `UNKNOWN` if there is no file."""
    name = plugin.__module__
    if name in _files:
        return _files[name].code
    file = getattr(sys.modules.get(name), "__file__", None)
    try:
        return digest_of_code(Path(file)) if file and name != "__main__" else UNKNOWN
    except OSError:
        return UNKNOWN


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _of_name(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise UsageError(
                f"there is no module {name!r}",
                f"looked for in {Path.cwd()} and where Python's packages are",
                "install its distribution (pip install -e .), or give FILE.py:CLASS",
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _of_file(name: str) -> ModuleType:
    """Import a file as a module, in its package if it lies in one."""
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {name}", do="give the path of a Python file")
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if names[-1] == "__init__":
        names.pop()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module, now = ".".join(names), _File(path, _digest(path), digest_of_code(path))
    loaded = sys.modules.get(module)
    if loaded is not None and Path(loaded.__file__ or "").resolve() == path:
        if _files.setdefault(module, now) == now:
            return loaded
        del sys.modules[module]  # the file was changed
    try:
        made = importlib.import_module(module) if len(names) > 1 else _executed(module, path)
    except (Exception, SystemExit) as error:
        sys.modules.pop(module, None)
        raise _broken(name, error) from error
    _files[module] = now
    return made


def _executed(module: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made  # dataclasses and pydantic look their module up
    spec.loader.exec_module(made)
    return made


def _broken(name: str, error: BaseException) -> UsageError:
    if isinstance(error, ProtoflError):
        return UsageError(f"{name}: {error.what}", error.near, error.do)
    return UsageError(
        f"{name} can't be imported: {type(error).__name__}: {error}",
        f"raised at {error_location(error)}",
        "mend it; --debug shows the whole traceback",
    )


_LAYOUT = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)


def digest_of_code(path: Path) -> str:
    """The first digits of the SHA-256 of a file's `code`; a file is read once while it is the same.

    Raises:
        OSError: It can't be read.
    """
    about = os.stat(path)
    return _cached_digest(path, about.st_mtime_ns, about.st_size, about.st_ino)


@lru_cache(maxsize=1024)
def _cached_digest(path: Path, *stamps: int) -> str:
    return hashlib.sha256(code(path.read_bytes())).hexdigest()[:12]


def code(source: bytes) -> bytes:
    """Return source code without comments, empty lines and docstrings.

    So who mends a docstring doesn't make other runs of those that are there. It is cut from the
    text, not printed from a tree, as each version of Python prints another text. What is no Python
    source is returned as it is.
    """
    try:
        text = decode_source(source)
        tokens = [*tokenize.generate_tokens(io.StringIO(text).readline)]
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        return source
    lines = text.split("\n")
    for token in sorted(_beside_code(tokens), key=lambda token: token.start, reverse=True):
        (first, start), (last, end) = token.start, token.end
        kept = lines[first - 1][:start].rstrip() + lines[last - 1][end:]
        lines[first - 1 : last] = [kept] if kept.strip() else []
    return "\n".join(lines).encode()


def _beside_code(tokens: list[tokenize.TokenInfo]) -> list[tokenize.TokenInfo]:
    empty = [token for token in tokens if token.type == tokenize.NL and not token.line.strip()]
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    rest = [token for token in tokens if token.type not in _LAYOUT]
    ends = [True, *(token.type == tokenize.NEWLINE for token in rest)]  # of a statement, before
    alone = [
        token
        for k, token in enumerate(rest)
        if token.type == tokenize.STRING and ends[k] and ends[k + 2 : k + 3] == [True]
    ]
    return empty + comments + alone
