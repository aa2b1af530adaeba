"""The hook reference, from the hook specifications."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path

import site_api
from protofl.discovery.kinds import KINDS, spec_hooks
from protofl.hookspecs.method import LIFECYCLE_HOOKS, ROUND_HOOKS
from protofl_cli.hook_texts import WHEN, example, returns, signature, writers
from site_text import code, first_line, prose, table

WHERE = {"run": "before", "server": "server", "client": "client"}
PROVIDERS = {True: "one", False: "any"}


def hook_reference(kind: str) -> str:
    """All hooks of a kind: a table, then each with its signature, when it is called, an example."""
    spec, hooks = KINDS[kind].spec, list(spec_hooks(kind))
    group = KINDS[kind].group
    link = partial(linked, kind, hooks)
    about = _method_hooks(hooks) if kind == "method" else prose(inspect.getdoc(spec) or "", link)
    parts = [f"Entry-point group: `{group}`.", about]
    for hook in hooks:
        function = getattr(spec, hook)
        parts += [
            f'<a id="{anchor(kind, hook)}"></a>\n\n### `{hook}`',
            f"```py\n{signature(function)}\n```",
            prose(inspect.getdoc(function) or "", link),
            f"**Called** {WHEN[kind][hook]}. **Returns** {code(returns(function))}.",
        ]
        owner, lines = example(kind, hook)
        if lines:
            whose = f" of {_called(kind, owner)}" if owner else ""
            parts.append(f"An example{whose}:\n\n```py\n{lines}\n```")
        names = ", ".join(_called(kind, name) for name in writers(kind, hook))
        if names and kind in ("method", "wrapper", "generator", "engine"):  # of others all write it
            parts.append(f"Written by: {names}.")
    return "\n\n".join(parts)


def anchor(kind: str, hook: str) -> str:
    """The identifier of a hook on the page."""
    return f"{kind}-{hook}"


def linked(kind: str, hooks: list[str], name: str) -> str:
    """A name in code, with a link where it is a hook of the kind or a public name."""
    bare = name.removesuffix("()").removeprefix("protofl.").removeprefix("pf.")
    if bare in hooks:
        return f"[`{name}`](#{anchor(kind, bare)})"
    return site_api.linked(name)


def _called(kind: str, name: str) -> str:
    page = Path(__file__).parents[1] / "methods" / f"{name}.md"  # defences have none of their own
    return f"[{name}](../methods/{name}.md)" if kind == "method" and page.exists() else code(name)


def _method_hooks(hooks: list[str]) -> str:
    """Where each hook of a method runs, and whether it has to be there."""
    sides = ROUND_HOOKS | LIFECYCLE_HOOKS
    spec = KINDS["method"].spec
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
