"""Tests of the page "Add a method to protofl": its files, lines and commands exist as it says."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/contributing/add-a-method.md"
TEXT = PAGE.read_text(encoding="utf-8")


def block(language):
    """Return the first code block of a language."""
    return re.search(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)[1]


def test_it_has_five_steps_and_is_linked():
    assert re.findall(r"^## (\d)\. ", TEXT, re.MULTILINE) == [*"12345"]
    assert PAGE.relative_to(ROOT).as_posix() in (ROOT / "CONTRIBUTING.md").read_text()
    assert PAGE.relative_to(ROOT / "docs").as_posix() in (ROOT / "mkdocs.yml").read_text()


def test_its_example_is_as_in_the_repository():
    group = '[project.entry-points."protofl.methods"]\n'
    entries = (ROOT / "pyproject.toml").read_text().partition(group)[2].partition("\n[")[0]
    assert group.strip() in TEXT and block("toml").strip() in entries.splitlines()
    name = block("toml").partition(" = ")[0]
    page = (ROOT / f"docs/reference/methods/{name}.md").read_text(encoding="utf-8")
    assert page.startswith(block("text"))
    module = block("toml").partition('"')[2].partition(":")[0]
    assert (ROOT / "plugins" / module.replace(".", "/")).with_suffix(".py").is_file()
    assert "/".join(module.split(".")[:-1]) in TEXT


def test_the_files_that_it_lists_are_those_with_generated_parts():
    rows = re.findall(r"^\| (`.*?) \| ", TEXT, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert all((ROOT / name).is_file() for name in listed)
    pages = {name for name in listed if name.endswith(".md")}
    others = ("commands.md", "published-tables.md")  # generated from commands, and from records
    assert pages == {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        if "<!-- kept: " in path.read_text(encoding="utf-8") and path.name not in others
    }
    assert "python tests/update.py" in TEXT and (ROOT / "tests/update.py").is_file()
