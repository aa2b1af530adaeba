"""Collections of reproductions: entry points ``protofl.reproductions``, and files.

A collection is a package with files ``NAME.toml``, named in an entry point::

    [project.entry-points."protofl.reproductions"]
    fedtgp = "my_package.fedtgp"

Its reproductions are called ``fedtgp/NAME``. A file without a title is not a reproduction; others
extend it.
"""

from __future__ import annotations

import importlib
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from protofl.errors import ProtoflError, UsageError, unknown
from protofl.hooks.discovery.kinds import Plugin
from protofl.hooks.discovery.registry import Registry
from protofl.system.files.atomic import regular_file
from protofl.system.files.home import expand_user
from protofl.system.files.tables import parse_toml
from protofl_workbench.reproductions.reproduction import Reproduction
from protofl_workbench.reproductions.reproduction_files import ExtendedFile
from protofl_workbench.reproductions.reproduction_reader import read_reproduction

FILE = "file"
"""Name of the collection of a reproduction that is not installed."""


class Collection:
    """A collection of reproductions; each collection is a subclass with its files.

    Attributes:
        name: Name of the collection.
        files: Names of the files that are reproductions.
        texts: {name: content} of all files.
        origin: Distribution and version.
    """

    name: ClassVar[str] = ""
    files: ClassVar[Sequence[str]] = ()
    texts: ClassVar[Mapping[str, str]] = {}
    origin: ClassVar[str] = ""

    @classmethod
    def names(cls) -> list[str]:
        """Return the reproductions as ``COLLECTION/NAME``."""
        return [f"{cls.name}/{name}" for name in cls.files]

    @classmethod
    def reproduction(cls, name: str) -> Reproduction:
        """Return the reproduction of a file.

        Raises:
            UsageError: The file is not a reproduction.
        """
        text = cls.texts[name]
        return read_reproduction(text, f"{cls.name}/{name}", f"{name}.toml", cls.load, cls.origin)

    @classmethod
    def load(cls, other: str) -> ExtendedFile:
        """Return the file that a reproduction of the collection extends.

        Raises:
            UsageError: There is no such file.
        """
        if other in cls.texts:
            return ExtendedFile(f"{other}.toml", cls.texts[other], cls.load)
        return installed(other, cls.texts)


def load_collection(plugin: Plugin) -> type[Collection]:
    """Read an installed collection.

    Raises:
        Exception: Importing the package or reading its files failed.
    """
    package = plugin.target.partition(":")[0]
    importlib.import_module(package)
    files = [f for f in importlib.resources.files(package).iterdir() if f.name.endswith(".toml")]
    texts = {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in files}
    values = {name: _values(text) for name, text in texts.items()}
    reproductions = sorted(
        (name for name, content in values.items() if "title" in content), key=_by_number
    )
    papers = [
        content["paper"] for content in values.values() if isinstance(content.get("paper"), str)
    ]
    about = f"{len(reproductions)} {'reproduction' if len(reproductions) == 1 else 'reproductions'}"
    about += f" of {papers[0]}" if papers else ""
    origin = f"{plugin.distribution} {plugin.version}"
    return _collection(plugin.name, reproductions, texts, origin=origin, __doc__=about)


def collection_of_file(path: Path) -> type[Collection]:
    """Return a collection of the one reproduction in a file, which may extend files next to it.

    Raises:
        UsageError: A file cannot be read.
    """
    texts = {file.stem: _text(file) for file in path.absolute().parent.glob("*.toml")}
    return _collection(FILE, [path.stem], texts)


def _collection(
    name: str, files: Sequence[str], texts: Mapping[str, str], **about: str
) -> type[Collection]:
    attributes = {
        "__doc__": Collection.__doc__,
        "name": name,
        "files": files,
        "texts": texts,
        **about,
    }
    return type("Collection", (Collection,), attributes)


def collections() -> dict[str, type[Collection]]:
    """Return the installed collections without errors, by name."""
    registry = Registry()
    result: dict[str, type[Collection]] = {}
    for plugin in registry.plugins("reproduction"):
        try:
            loaded = registry.load("reproduction", plugin.name)
        except ProtoflError:
            continue  # `protofl list-plugins` shows the error
        if issubclass(loaded, Collection):
            result[plugin.name] = loaded
    return result


def find_reproduction(name: str) -> Reproduction:
    """Return an installed reproduction, ``COLLECTION/NAME``, or that of a ``FILE.toml``.

    Raises:
        UsageError: There is no such reproduction, or the file is not a reproduction.
    """
    if name.endswith(".toml"):
        return reproduction_of_file(expand_user(name))
    collection, _, local_name = name.partition("/")
    registry = Registry()
    if local_name and collection in {plugin.name for plugin in registry.plugins("reproduction")}:
        loaded = registry.load("reproduction", collection)
        if issubclass(loaded, Collection) and f"{collection}/{local_name}" in loaded.names():
            return loaded.reproduction(local_name)
    known = [
        reproduction
        for known_collection in collections().values()
        for reproduction in known_collection.names()
    ]
    raise unknown("reproduction", name, known, "see: protofl reproduce --list; or give a FILE.toml")


def reproduction_of_file(path: Path) -> Reproduction:
    """Return the reproduction of a file; it may extend a neighbour or an installed one.

    Raises:
        UsageError: The file cannot be read, or it is not a reproduction.
    """

    def load(other: str) -> ExtendedFile:
        neighbour = path.parent / f"{other.removesuffix('.toml')}.toml"
        if neighbour.is_file():
            return ExtendedFile(str(neighbour), _text(neighbour), load)
        return installed(other, ())

    return read_reproduction(_text(path), path.stem, str(path), load, str(path))


def installed(name: str, neighbours: Iterable[str]) -> ExtendedFile:
    """Return the file that ``extends = "COLLECTION/NAME"`` names.

    Args:
        name: Name of the file.
        neighbours: Files next to the reproduction, which the error suggests too.

    Raises:
        UsageError: There is no such file.
    """
    by_name = collections()
    collection, _, local_name = name.partition("/")
    if collection in by_name and local_name in by_name[collection].texts:
        loaded = by_name[collection]
        return ExtendedFile(f"{name}.toml", loaded.texts[local_name], loaded.load)
    known = {f"{c}/{n}" for c, loaded in by_name.items() for n in loaded.texts}
    raise unknown("reproduction to extend", name, {*known, *neighbours})


def _text(path: Path) -> str:
    try:
        return regular_file(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path} cannot be read: {why}", do="give a reproduction's FILE.toml"
        ) from None


def _values(text: str) -> Mapping[str, object]:
    """Return the values of a file; a title if it is not TOML, so that reading it fails."""
    try:
        return parse_toml(text)
    except ValueError:
        return {"title": ""}


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sort ``table-2`` before ``table-10``, and figures after tables."""
    parts = name.replace("fig-", "zfig-").replace("figure-", "zfig-").split("-")
    return [(int(word), "") if word.isdigit() else (-1, word) for word in parts]
