"""From what a user writes to the contract of a plugin: a name, a module's class, a file's class."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from protofl.discovery.kinds import KINDS
from protofl.discovery.registry import Registry
from protofl.errors import ProtoflError, UsageError, last_place, unknown
from protofl.testing import CONTRACTS
from protofl.testing.contract import Contract, kind_of


def contract_for(
    text: str,
    options: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
) -> type[Contract]:
    """The contract of the plugin that a user means, with the plugin in it.

    Args:
        text: ``NAME``, ``KIND/NAME`` or either with ``:ARGUMENT`` for an installed plugin (of
            several kinds that have the name, the first); ``MODULE:CLASS`` or ``FILE.py:CLASS``,
            either behind ``KIND/``, for a class that need not be installed.
        options: Options of the plugin, over its ``check_options``.
        data_dir: Where data sets and generators keep downloads.

    Raises:
        UsageError: There is no such plugin or class, or it breaks the rules of its kind.
    """
    kind, rest = _split_kind(text)
    left, colon, right = rest.partition(":")
    values: dict[str, Any] = {}
    if colon and (left.endswith(".py") or _means_module(left, right)):
        plugin = _class_in(_file(left) if left.endswith(".py") else _module(left), left, right)
        kind = kind or kind_of(plugin)
        values["plugin"] = plugin
    else:
        kind = kind or _kind_of_name(left)
        values |= {"plugin": left, "argument": right}
    if kind not in CONTRACTS:
        raise UsageError(f"there are no checks for a {kind}", f"there are: {', '.join(CONTRACTS)}")
    if data_dir is not None and hasattr(CONTRACTS[kind], "data_dir"):
        values["data_dir"] = data_dir
    made: type[Contract] = type("Chosen", (CONTRACTS[kind],), values)
    if options:
        made.options = {**made().chosen, **options}
    found = made()
    found.choice() if kind not in ("method", "wrapper") else found.cls
    return made


def _split_kind(text: str) -> tuple[str, str]:
    kind, slash, rest = text.partition("/")
    if not slash or Path(text.partition(":")[0]).is_file():
        return "", text
    if kind in KINDS:
        return kind, rest
    if ".py" in text:
        return "", text
    raise unknown("kind", kind, KINDS, "see: protofl list-plugins")


def _means_module(left: str, right: str) -> bool:
    """Whether ``LEFT:RIGHT`` is a module and its class, not a plugin and its argument."""
    if not all(part.isidentifier() for part in (*left.split("."), *right.split("."))):
        return False
    return "." in left or left not in {p.name for p in Registry().plugins()}


def _kind_of_name(name: str) -> str:
    plugins = Registry().plugins()
    kinds = [p.kind for p in plugins if p.name == name]
    if not kinds:
        do = "give an installed plugin, MODULE:CLASS or FILE.py:CLASS"
        raise unknown("plugin", name, {p.name for p in plugins}, do)
    return kinds[0]


def _class_in(module: ModuleType, place: str, name: str) -> type:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            classes = [n for n, v in vars(module).items() if isinstance(v, type)]
            raise unknown(f"class in {place}:", name, classes, f"write {place}:CLASS")
        found = getattr(found, part)
    if not isinstance(found, type):
        raise UsageError(f"{place}:{name} is {found!r}", do="name a class with hooks")
    return found


def _module(name: str) -> ModuleType:
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


def _file(name: str) -> ModuleType:
    """A file as a module: of its package where it lies in one, else of its own name."""
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
    module = ".".join(names)
    loaded = sys.modules.get(module)
    if loaded is not None and Path(loaded.__file__ or "").resolve() == path:
        return loaded
    try:
        if len(names) > 1:
            return importlib.import_module(module)
        spec = importlib.util.spec_from_file_location(module, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[module] = made  # dataclasses and pydantic look their module up
        spec.loader.exec_module(made)
    except (Exception, SystemExit) as error:
        sys.modules.pop(module, None)
        raise _broken(name, error) from error
    return made


def _broken(name: str, error: BaseException) -> UsageError:
    if isinstance(error, ProtoflError):
        return UsageError(f"{name}: {error.what}", error.near, error.do)
    return UsageError(
        f"{name} can't be imported: {type(error).__name__}: {error}",
        f"raised at {last_place(error)}",
        "mend it; --debug shows the whole traceback",
    )
