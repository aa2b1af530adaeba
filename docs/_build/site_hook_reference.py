"""The hook reference, from the hook specifications."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import protofl
from protofl.hookspecs.method import LIFECYCLE_HOOKS, ROUND_HOOKS
from protofl.discovery.kinds import KINDS, hooks_of, spec_hooks, spec_of
from protofl.discovery.registry import Registry
from site_text import code, first_line, prose, table

WIDTH = 88
WHERE = {"run": "before", "server": "server", "client": "client"}
PROVIDERS = {True: "one", False: "any"}


def hook_reference(kind: str) -> str:
    """All hooks of a kind: a table, then each with its signature and what it must return."""
    spec, hooks = spec_of(kind), list(spec_hooks(kind))
    group = KINDS[kind].group
    link = partial(linked, kind, hooks)
    about = _method_hooks(hooks) if kind == "method" else prose(inspect.getdoc(spec) or "", link)
    parts = [f"Entry-point group: `{group}`.", about]
    for hook in hooks:
        function = getattr(spec, hook)
        parts += [
            f"### `{hook}` {{ #{anchor(kind, hook)} }}",
            f"```python\n{signature(function)}\n```",
            prose(inspect.getdoc(function) or "", link),
        ]
        examples = _written_by(kind, hook)
        if examples:
            parts.append(f"Written by: {examples}.\n{{ .written }}")
    return "\n\n".join(parts)


def anchor(kind: str, hook: str) -> str:
    """The identifier of a hook on the page."""
    return f"{kind}-{hook}"


def linked(kind: str, hooks: list[str], name: str) -> str:
    """A name in code, with a link where it is a hook of the kind or a public name."""
    bare = name.removesuffix("()").removeprefix("protofl.").removeprefix("pf.")
    if bare in hooks:
        return f"[`{name}`](#{anchor(kind, bare)})"
    if bare.partition(".")[0] in protofl.__all__ and not bare.startswith("functional"):
        return f"[`{name}`][protofl.{bare}]"
    return code(name)


def signature(function: Callable[..., Any]) -> str:
    """The line that defines a function, over several lines where it is long."""
    whole = inspect.signature(function)
    words = [
        p.name if p.annotation is p.empty else f"{p.name}: {p.annotation}"
        for p in whole.parameters.values()
    ]
    end = f") -> {whole.return_annotation}: ..."
    line = f"def {function.__name__}({', '.join(words)}{end}"
    if len(line) <= WIDTH:
        return line
    inside = "".join(f"    {word},\n" for word in words)
    return f"def {function.__name__}(\n{inside}{end}"


def _method_hooks(hooks: list[str]) -> str:
    """Where each hook of a method runs, and whether it has to be there."""
    sides = ROUND_HOOKS | LIFECYCLE_HOOKS
    spec = spec_of("method")
    rows = [
        (
            f"[`{hook}`](#{anchor('method', hook)})",
            WHERE[sides[hook]],
            PROVIDERS[hook in ROUND_HOOKS],
            first_line(getattr(spec, hook)).replace("``", "`"),
        )
        for hook in hooks
    ]
    return table(("hook", "where", "providers", "what"), rows)


def _written_by(kind: str, hook: str) -> str:
    """The plugins of this distribution that write a hook: examples to read."""
    registry = Registry()
    if kind not in ("method", "wrapper", "generator", "engine"):
        return ""  # all of them write it
    found = [
        plugin.name
        for plugin in registry.plugins(kind)
        if plugin.distribution == "protofl"
        and hook in hooks_of(kind, registry.load(kind, plugin.name))
    ]
    if kind == "method":
        return ", ".join(f"[{name}](../methods/{name}.md)" for name in found)
    return ", ".join(map(code, found))
