"""The hooks of mkdocs: fill in the generated parts of pages, and the navigation of the methods.

A page marks such a part with a comment on its own line. ``<!-- generated: NAME [ARGUMENTS] -->`` is
filled in when the site is built. ``<!-- kept: NAME [ARGUMENTS] -->`` is followed by the generated
text up to ``<!-- end -->``, so the page is readable in the repository too; update these parts with
``python docs/_build/site_hooks.py``. Nothing here imports mkdocs, so tests can build the pages
without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from site_api import api, members_of, types
from site_cards import card_sections, method_of
from site_commands import command_list, command_reference
from site_equations import equations, write_font
from site_hook_reference import hook_reference
from site_llms import update_llms
from site_methods import add_to_navigation, family_table
from site_mixing import mixing_table
from site_official import official_table
from site_plugins import method_table, option_table, plugin_reference, task_table, wire_table
from site_table10 import table_10

DOCS = Path(__file__).parents[1]
SCRIPT = "javascripts/page.js"
"""The script of report pages, as ``extra_javascript`` in mkdocs.yml names it."""
FONT = "stylesheets/math.woff"
"""The font of equations, as ``docs/stylesheets/site.css`` names it."""
WITH_EQUATIONS = ("how-to/simulate-devices.md",)
"""Pages with equations that are not those of methods."""
MARK = re.compile(r"^<!-- generated: (\w+)([\w./ -]*?) -->$", re.MULTILINE)
KEPT = re.compile(
    r"^(<!-- kept: (\w+)([\w./ -]*?) -->\n).*?^<!-- end -->$", re.MULTILINE | re.DOTALL
)


def figure(path: str) -> str:
    """Return a drawing as text for the page, so that it uses the colours of the page."""
    return (DOCS / path).read_text(encoding="utf-8").strip()


PARTS: dict[str, Callable[..., str]] = {
    "api": api,
    "command_list": command_list,
    "commands": command_reference,
    "families": family_table,
    "figure": figure,
    "hooks": hook_reference,
    "members": members_of,
    "methods": method_table,
    "mixing": mixing_table,
    "official": official_table,
    "options": option_table,
    "plugins": plugin_reference,
    "table_10": table_10,
    "tasks": task_table,
    "types": types,
    "wire": wire_table,
}


def kept(markdown: str) -> str:
    """Return a page with its kept parts updated."""

    def made(found: re.Match[str]) -> str:
        return f"{found[1]}\n{_part(found[2], found[3])}\n\n<!-- end -->"

    return KEPT.sub(made, markdown)


def whole(markdown: str) -> str:
    """Return a page with all generated parts filled in."""
    return MARK.sub(lambda m: _part(m[1], m[2]), kept(markdown))


def _part(name: str, arguments: str) -> str:
    text = PARTS[name](*arguments.split())
    return "\n".join(line.rstrip() for line in text.splitlines())


def update_kept(folder: Path = DOCS.parent) -> list[Path]:
    """Update the kept parts of README.md and of all pages; return the pages that changed."""
    changed = []
    for page in (folder / "README.md", *sorted((folder / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if (now := kept(text)) != text:
            page.write_text(now, encoding="utf-8")
            changed.append(page)
    return changed


def boost(place: str) -> float:
    """Return the weight of a page in the search: guides before methods before other reference."""
    if place.startswith("how-to/plugins/"):
        return 1.2
    if method_of(place):
        return 1
    return {"how-to": 2, "tutorials": 2, "reference": 0.1}.get(place.partition("/")[0], 1)


def on_config(config: Any, **_: object) -> Any:  # noqa: ANN401 - mkdocs' own
    """Add the pages of the methods to the navigation; mkdocs calls this hook first."""
    add_to_navigation(config["nav"])
    return config


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:  # noqa: ANN401 - mkdocs' own
    """Fill in a page; mkdocs calls this hook for every page. Below that of a method is its card."""
    name, text = method_of(page.file.src_uri), whole(markdown)
    return f"{text.rstrip()}\n\n{card_sections(name)}" if name else text


def on_env(env: Any, config: Any, **_: object) -> Any:  # noqa: ANN401 - mkdocs' own
    """Add the font of equations; mkdocs calls this hook before it writes pages."""
    target = Path(config["site_dir"]) / FONT
    target.parent.mkdir(parents=True, exist_ok=True)
    write_font(target)
    return env


def on_page_content(html: str, page: Any, **_: object) -> str:  # noqa: ANN401 - mkdocs' own
    """Weight a page in the search and draw its equations; mkdocs calls this hook for every page."""
    place = page.file.src_uri
    page.meta["search"] = {"boost": boost(place)}
    return equations(html) if method_of(place) or place in WITH_EQUATIONS else html


def on_post_build(config: Any, **_: object) -> None:  # noqa: ANN401 - mkdocs' own
    """Add the script that sorts tables; mkdocs calls this hook last. Reports have the same file."""
    look = files("protofl_workbench.reporting") / "look"
    target = Path(config["site_dir"]) / SCRIPT
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((look / target.name).read_bytes())


def on_post_page(output: str, page: Any, config: Any, **_: object) -> str:  # noqa: ANN401 - mkdocs' own
    """Write a page as Markdown beside its HTML, for readers of llms.txt; mkdocs calls this hook."""
    target = Path(config["site_dir"]) / page.file.src_uri
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page.markdown, encoding="utf-8")
    return output


def update_all() -> list[Path]:
    """Update everything in ``docs`` that is generated and committed; return what changed."""
    return [*update_kept(), *update_llms()]


if __name__ == "__main__":
    for page in update_all():
        print(page)
