"""The hook reference, from the hook specifications."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path

import site_api
from protofl.hooks.discovery.kinds import KINDS, spec_hooks
from protofl.hooks.hookspecs.method import LIFECYCLE_HOOKS, ROUND_HOOKS
from markdown_tables import code, table
from site_hook_texts import WHEN, example, returns, signature, writers
from site_text import first_line, prose

WHERE = {"run": "before", "server": "server", "client": "client"}
PROVIDERS = {True: "one", False: "any"}


ORDER = (
    "method", "payload-transform", "model-group", "partitioner", "dataset", "generator",
    "metric", "client-sampler", "device-model", "schedule", "tracker", "engine", "backend",
)  # fmt: skip
METHOD = """\
The six hooks of a round have exactly one provider each: the method, a donor (`--use`) or the
baseline. The baseline trains with cross-entropy, sends empty payloads, changes nothing on the
server and scores with the head. Returning `None` from one of these six hooks is an error. All other
hooks are optional. The optional hooks of a donor run beside those of the method where the donor
provides something.

"""


def hook_reference() -> str:
    """Return the hooks of all kinds."""
    return "\n\n".join(
        f"## {kind.replace('-', ' ').capitalize()}\n\n"
        + (METHOD if kind == "method" else "")
        + hooks_of_kind(kind)
        for kind in ORDER
    )


def hooks_of_kind(kind: str) -> str:
    """Return a table of a kind's hooks, then each with its signature, use and an example."""
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
        if names and kind in (
            "method",
            "payload-transform",
            "generator",
            "engine",
        ):  # of others all write it
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
    page = (
        Path(__file__).parents[1] / "reference/methods" / f"{name}.md"
    )  # defences have none of their own
    return f"[{name}](methods/{name}.md)" if kind == "method" and page.exists() else code(name)


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
