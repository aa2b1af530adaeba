"""Plugin classes by their place: ``MODULE:CLASS``, ``FILE.py:CLASS``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from protofl.errors import ProtoflError, UsageError, ends_hook, error_text, unknown
from protofl.system.consent import check_code
from protofl.system.files.home import expand_user
from protofl.system.sources import digest_of_code, error_location, loaded_files


def load(place: str, whose: str = "") -> type:
    """Load the class at ``MODULE:CLASS`` or ``FILE.py:CLASS``.

    A file that was changed since it was last loaded is loaded again.

    Args:
        place: The place; empty for a class without one.
        whose: The plugin of the class, for errors.

    Raises:
        UsageError: The module, file or class does not exist, or can't be imported.
    """
    if not place:
        raise UsageError(
            f"{whose} was a class of another program",
            do="give it again: protofl.run(CLASS, …), or write it into a file of its own",
        )
    name, _, inner = place.rpartition(":")
    result: Any = _module_of_file(name) if name.endswith(".py") else _module(name)
    classes = [n for n, v in vars(result).items() if isinstance(v, type)]
    for attribute in inner.split("."):
        if not hasattr(result, attribute):
            raise unknown(f"class in {name}:", inner, classes, f"write {name}:CLASS")
        result = getattr(result, attribute)
    if not isinstance(result, type):
        raise UsageError(f"{place} is {result!r}", do="name a class with hooks")
    return result


def load_class(place: str) -> type:
    """Load the class of an option with ``consent="code"``.

    Args:
        place: ``MODULE:CLASS`` or ``FILE.py:CLASS``.

    Raises:
        UsageError: The user has not allowed the code (`trust_code`), or `load` fails.
    """
    check_code({"class": [place]}, "the options of the run")
    return load(place)


def place_of_class(plugin: type) -> str:
    """Return the place where a new interpreter finds a class; empty if there is none.

    Classes made by a function, or in a program's main module (a script, a notebook), have none.
    """
    name = plugin.__module__
    module = sys.modules.get(name)
    if name in ("__main__", "__mp_main__") or "<" in plugin.__qualname__:
        return ""
    resolved: Any = module
    for attribute in plugin.__qualname__.split("."):
        resolved = getattr(resolved, attribute, None)
    if resolved is not plugin:
        return ""
    if name in loaded_files:
        return f"{loaded_files[name][0]}:{plugin.__qualname__}"
    spec = getattr(module, "__spec__", None)
    return f"{name}:{plugin.__qualname__}" if spec is not None and spec.origin else ""


def _module(name: str) -> ModuleType:
    """Import a module by its name."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if not ends_hook(error):
            raise
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and name.startswith(missing):
            raise UsageError(
                f"there is no module {name!r}",
                f"looked for in {Path.cwd()} and in Python's packages",
                "install its distribution (pip install -e .), or give FILE.py:CLASS",
            ) from None
        raise _broken(name, error) from error


def _module_of_file(name: str) -> ModuleType:
    """Import a file as a module, in its package if it lies in one."""
    path = expand_user(name).resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {name}", do="give the path of a Python file")
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if names[-1] == "__init__":
        names.pop()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that its files hide no installed module
    if len(names) > 1 and not _finds(names[0], folder / names[0] / "__init__.py"):
        what = f"{name}: another installed package is called {names[0]!r}"
        raise UsageError(what, do="rename the folder")
    module = ".".join(names) if len(names) > 1 else _free_name(path)
    now = (path, digest_of_code(path), path.read_bytes())
    loaded = sys.modules.get(module)
    if loaded is not None and _is_of(loaded, path):
        if loaded_files.setdefault(module, now) == now:
            return loaded
        del sys.modules[module]  # the file was changed
    try:
        made = importlib.import_module(module) if len(names) > 1 else _executed(module, path)
    except BaseException as error:
        sys.modules.pop(module, None)
        if not ends_hook(error):
            raise
        raise _broken(name, error) from error
    loaded_files[module] = now
    return made


def _is_of(module: ModuleType, path: Path) -> bool:
    return Path(module.__file__ or "").resolve() == path


def _free_name(path: Path) -> str:
    """Return the stem of a file, or a longer name if another module is called so."""
    if path.stem in sys.modules:
        free = _is_of(sys.modules[path.stem], path)
    else:
        free = _finds(path.stem, path)
    return path.stem if free else f"{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}"


def _finds(name: str, path: Path) -> bool:
    """Return True if importing a module by its name imports this file."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a loaded module without a spec, such as __main__
        return False
    return spec is None or (bool(spec.origin) and Path(str(spec.origin)).resolve() == path)


class _Uncached(SourceFileLoader):
    """Compiles a file each time it is loaded, and writes no bytecode.

    Python's bytecode counts as up to date if the file has the same size and the same second of its
    last change, so a file that changes twice in a second would run its former code.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file as it is now."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _executed(module: str, path: Path) -> ModuleType:
    loader = _Uncached(module, str(path))
    spec = importlib.util.spec_from_file_location(module, path, loader=loader)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made  # dataclasses and pydantic look their module up
    spec.loader.exec_module(made)
    return made


def _broken(name: str, error: BaseException) -> UsageError:
    if isinstance(error, ProtoflError):
        return UsageError(f"{name}: {error.what}", error.near, error.do)
    return UsageError(
        f"{name} cannot be imported: {error_text(error)}",
        f"raised at {error_location(error)}",
        "fix it; --debug shows the whole traceback",
    )
