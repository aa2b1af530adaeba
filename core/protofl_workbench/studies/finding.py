"""Find studies: installed collections (entry points ``protofl.studies``) and files.

A collection is a package with files ``NAME.toml``, named in an entry point::

    [project.entry-points."protofl.studies"]
    fedtgp = "my_package.fedtgp"

Its studies are called ``fedtgp/NAME``. A file without a title is none: others extend it.
"""

from __future__ import annotations

import importlib
import importlib.resources
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from protofl.errors import ProtoflError, UsageError, unknown
from protofl.hooks.discovery.kinds import Plugin
from protofl.hooks.discovery.registry import Registry
from protofl.system.files.tables import parse_toml
from protofl_workbench.studies.study import Study
from protofl_workbench.studies.study_files import ExtendedFile
from protofl_workbench.studies.study_reader import read_study


class Collection:
    """An installed collection of studies; its subclasses, one for a package, carry the files.

    Attributes:
        name: Its name.
        texts: {name: content} of its files.
        origin: Distribution and version.
    """

    name: ClassVar[str] = ""
    texts: ClassVar[Mapping[str, str]] = {}
    origin: ClassVar[str] = ""

    @classmethod
    def names(cls) -> list[str]:
        """Its studies, ``COLLECTION/NAME``, by the numbers in their names."""
        found = [name for name, text in cls.texts.items() if "title" in _values(text)]
        return [f"{cls.name}/{name}" for name in sorted(found, key=_by_number)]

    @classmethod
    def study(cls, name: str) -> Study:
        """One of its studies, by the name of its file.

        Raises:
            UsageError: Its file is none of a study.
        """
        text = cls.texts[name]
        return read_study(text, f"{cls.name}/{name}", f"{name}.toml", cls.load, cls.origin)

    @classmethod
    def load(cls, other: str) -> ExtendedFile:
        """Return the file that a study of the collection extends.

        Raises:
            UsageError: There is no such file.
        """
        if other in cls.texts:
            return ExtendedFile(f"{other}.toml", cls.texts[other], cls.load)
        return installed(other, cls.texts)


def load_collection(plugin: Plugin) -> type[Collection]:
    """Read an installed collection; what is wrong with it is any exception."""
    package = plugin.target.partition(":")[0]
    importlib.import_module(package)
    files = [f for f in importlib.resources.files(package).iterdir() if f.name.endswith(".toml")]
    texts = {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in files}
    count = sum("title" in _values(text) for text in texts.values())
    papers = [
        v["paper"] for text in texts.values() if isinstance((v := _values(text)).get("paper"), str)
    ]
    noun = "study" if count == 1 else "studies"
    about = f"{count} {noun}{f' of {papers[0]}' if papers else ''}"
    origin = f"{plugin.distribution} {plugin.version}"
    found = {"__doc__": about, "name": plugin.name, "texts": texts, "origin": origin}
    return type("Collection", (Collection,), found)


def collections() -> dict[str, type[Collection]]:
    """The installed collections that are in order, by name."""
    registry = Registry()
    found: dict[str, type[Collection]] = {}
    for plugin in registry.plugins("study"):
        try:
            loaded = registry.load("study", plugin.name)
        except ProtoflError:
            continue  # list-plugins tells
        if issubclass(loaded, Collection):
            found[plugin.name] = loaded
    return found


def find_study(name: str) -> Study:
    """Return an installed study, ``COLLECTION/NAME``, or the study of a ``FILE.toml``.

    Raises:
        UsageError: There is none of that name, or its file is none of a study.
    """
    if name.endswith(".toml"):
        return study_of_file(Path(name).expanduser())
    collection, _, own = name.partition("/")
    registry = Registry()
    if own and collection in {plugin.name for plugin in registry.plugins("study")}:
        loaded = registry.load("study", collection)
        if issubclass(loaded, Collection) and f"{collection}/{own}" in loaded.names():
            return loaded.study(own)
    known = [study for found in collections().values() for study in found.names()]
    raise unknown("study", name, known, "see: protofl reproduce --list; or give a FILE.toml")


def study_of_file(path: Path) -> Study:
    """Return the study of a file; it may extend a file next to it or an installed study.

    Raises:
        UsageError: It can't be read, or is none of a study.
    """

    def load(other: str) -> ExtendedFile:
        beside = path.parent / f"{other.removesuffix('.toml')}.toml"
        if beside.is_file():
            return ExtendedFile(str(beside), _text(beside), load)
        return installed(other, ())

    return read_study(_text(path), path.stem, str(path), load, str(path))


def holds_study(path: Path) -> bool:
    """Return True for the file of a study; a file with a method is a recipe."""
    return "title" in _values(_text(path))


def collection_of_file(path: Path) -> type[Collection]:
    """A collection of the one study in a file, with what is beside it to be extended.

    Raises:
        UsageError: The file can't be read.
    """
    texts = {file.stem: _text(file) for file in path.absolute().parent.glob("*.toml")}

    class OfFile(Collection):
        """The study of a file."""

        @classmethod
        def names(cls) -> list[str]:
            return [f"{cls.name}/{path.stem}"]

    OfFile.name, OfFile.texts = "file", texts
    return OfFile


def installed(name: str, beside: Iterable[str]) -> ExtendedFile:
    """The file that ``extends = "COLLECTION/NAME"`` means.

    Args:
        name: What is extended.
        beside: Files that could have been meant too.

    Raises:
        UsageError: There is none.
    """
    found = collections()
    collection, _, own = name.partition("/")
    if collection in found and own in found[collection].texts:
        loaded = found[collection]
        return ExtendedFile(f"{name}.toml", loaded.texts[own], loaded.load)
    known = {f"{c}/{n}" for c, loaded in found.items() for n in loaded.texts}
    raise unknown("study to extend", name, {*known, *beside})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} can't be read: {why}", do="give a study's FILE.toml") from None


def _values(text: str) -> Mapping[str, object]:
    """What a file holds; a title where it is no TOML, which whoever reads the study tells."""
    try:
        values = parse_toml(text)
    except ValueError:
        return {"title": ""}
    return {} if "method" in values else values


def _by_number(name: str) -> list[tuple[int, str]]:
    """``table-2`` before ``table-10``; figures behind tables."""
    parts = name.replace("fig-", "zfig-").replace("figure-", "zfig-").split("-")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
