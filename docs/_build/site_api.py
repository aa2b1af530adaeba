"""The Python reference, from signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
from functools import cached_property, partial
from types import FunctionType, ModuleType
from typing import Any

import protofl
from protofl_cli.hook_texts import signature
from site_text import code, prose

PAGE = "python.md"


def api(*names: str) -> str:
    """Return the sections of several names: public names, or paths ``protofl.ROOM.MODULE.NAME``."""
    return "\n\n".join(section(n if n.startswith("protofl.") else f"protofl.{n}") for n in names)


def section(path: str) -> str:
    """Return the section of one name."""
    name = path.rpartition(".")[2]
    found = named(path)
    head = [f'<a id="protofl.{name}"></a>', "", f"### `{name}`", "", ""]
    apart = path.startswith(("protofl.functional.", "protofl.plots."))  # on pages of their own
    if path.count(".") > 1 and not apart:
        head += [f"Defined in `{path.rpartition('.')[0]}`.", ""]
    elif apart:
        head[0] = f'<a id="{path}"></a>'
    return "\n".join(head) + about(name, found, PAGE if "plots" in path else "")


def members_of(package: str) -> str:
    """All public names of a package, under a heading for each module that defines them."""
    public = importlib.import_module(package)
    modules: dict[str, list[str]] = {}
    for name in public.__all__:
        modules.setdefault(getattr(public, name).__module__, []).append(name)
    parts = []
    for module in sorted(modules):
        first = (inspect.getdoc(importlib.import_module(module)) or "").partition("\n")[0]
        parts.append(f"## {module.rpartition('.')[2].replace('_', ' ').capitalize()}\n\n{first}")
        parts += [section(f"{package}.{name}") for name in modules[module]]
    return "\n\n".join(parts)


def named(path: str) -> Any:  # noqa: ANN401 - it may be anything
    """Return the object at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def about(name: str, found: Any, page: str = "") -> str:  # noqa: ANN401 - it may be anything
    """Return the body of a section; links to public names lead to the given page."""
    if isinstance(found, ModuleType):
        parts = [documented(found)]
        for inner, value in vars(found).items():
            own = isinstance(value, type) and value.__module__ == found.__name__
            if own and not inner.startswith("_"):
                parts.append(f"**`{name}.{inner}`** {documented(value)}")
        return "\n\n".join(parts)
    if isinstance(found, type):
        return "\n\n".join([*constructor(name, found), documented(found, page), *members(found)])
    return f"```py\n{signature(found, name)}\n```\n\n{documented(found, page)}"


def constructor(name: str, found: type) -> list[str]:
    """Return the signature of a class whose docstring documents its arguments."""
    made = vars(found).get("__init__")
    told = "Args:" in (inspect.getdoc(found) or "")  # others are made by the runtime
    if not (told and isinstance(made, FunctionType)):
        return []
    line = signature(made, name, bound=True).removeprefix("def ")
    return [f"```py\n{line.replace(' -> None: ...', '')}\n```"]


def members(found: type) -> list[str]:
    """Return the attributes of a class as a list, then each method."""
    ours = [c for c in found.__mro__ if c.__module__.partition(".")[0] == "protofl"]
    all_: dict[str, Any] = {}
    for each in ours:
        all_ = all_ | {n: v for n, v in vars(each).items() if n[0] != "_" and n not in all_}
    attributes, methods = [], []
    for name, value in all_.items():
        inner = getattr(value, "func", None) if isinstance(value, cached_property) else None
        read = getattr(value, "fget", inner)
        if read is not None and read.__doc__:
            kind = inspect.signature(read).return_annotation
            words = " ".join(documented(read).split())
            attributes.append(f"- {code(name)} ({code(str(kind))}): {words}")
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and function.__doc__:
            bound = not isinstance(value, staticmethod)
            line = signature(function, name, bound=bound)
            methods.append(f"```py\n{line}\n```\n\n{documented(function)}")
    return (["\n".join(attributes)] if attributes else []) + methods


def documented(found: object, page: str = "") -> str:
    """Return a docstring as Markdown, with public names as links to their sections."""
    return prose(inspect.getdoc(found) or "", partial(linked, page=page))


def linked(name: str, page: str = PAGE) -> str:
    """Return a name in code, with a link if it is public."""
    bare = name.removesuffix("()").removeprefix("protofl.").removeprefix("pf.").partition(".")[0]
    is_argument = name == "report"  # of a hook
    if bare in protofl.__all__ and bare not in ("functional", "plots") and not is_argument:
        return f"[`{name}`]({page}#protofl.{bare})"
    return code(name)
