"""``protofl show hook/NAME``: the page of a hook."""

from __future__ import annotations

import inspect
from typing import Any

from protofl_cli.json.json_output import print_json
from protofl_cli.pages.hook_texts import WHEN, example, returns, signature, writers
from protofl_cli.screens import render


def show_hook(name: str, *, as_json: bool = False) -> None:
    """Print a hook: its signature, when it is called, what it returns, an example.

    Args:
        name: ``HOOK``, for all kinds with this hook, or ``KIND.HOOK``.
        as_json: True to print JSON.

    Raises:
        UsageError: The hook is unknown.
    """
    from protofl.errors import unknown
    from protofl.hooks.discovery.kinds import KINDS, spec_hooks

    kind, dot, hook = name.rpartition(".")
    kinds = [k for k in WHEN if hook in spec_hooks(k) and kind in ("", k)]
    if not kinds:
        known = {f"{k}.{h}" if dot else h for k in WHEN for h in spec_hooks(k)}
        raise unknown("hook", name, known, "list the hooks of a plugin with: protofl show NAME")
    if as_json:
        print_json([_values(each, hook) for each in kinds])
        return
    for number, each in enumerate(kinds):
        function = getattr(KINDS[each].spec, hook)
        if number:
            render.text()
        render.heading(f"hook/{hook}", f"of a {each} · @pf.hookimpl above it")
        render.text()
        for row in signature(function).splitlines():
            render.line(f"    {row}")
        render.text()
        rows = [("called", WHEN[each][hook]), ("returns", returns(function))]
        render.pairs(rows)
        render.text()
        for paragraph in (inspect.getdoc(function) or "").splitlines():
            render.line(paragraph.replace("``", "`"))
        owner, code = example(each, hook)
        if code:
            render.text()
            render.text(f"Example from {owner}:" if owner else "Example:")
            for row in code.splitlines():
                render.line(f"    {row}")
        names = ", ".join(writers(each, hook))
        if names:
            render.text()
            render.text(f"Plugins with this hook: {names}", "dim")


def _values(kind: str, hook: str) -> dict[str, Any]:
    """Return the page of a hook as JSON values."""
    from protofl.hooks.discovery.kinds import KINDS

    function = getattr(KINDS[kind].spec, hook)
    owner, code = example(kind, hook)
    return {
        "hook": hook,
        "kind": kind,
        "signature": signature(function),
        "called": WHEN[kind][hook],
        "returns": returns(function),
        "text": inspect.getdoc(function) or "",
        "example_of": owner,
        "example": code,
        "plugins": list(writers(kind, hook)),
    }
