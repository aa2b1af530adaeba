"""llms.txt (https://llmstxt.org): a list of all pages for language models and agents.

The file lies in ``docs``, so the site has it at its root. Its links lead to the pages as Markdown:
in the repository to the files themselves, on the site to copies with their generated parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from protofl.hooks.discovery.registry import Registry

DOCS = Path(__file__).parents[1]
FILE = DOCS / "llms.txt"

HEAD = """# protofl

> protofl is a Python library and a command line (`protofl`) for research on prototype-based heterogeneous federated
> learning. Clients have different model architectures and skewed private data, and exchange small tensors, such as the
> mean feature of each class. Methods, model groups, data sets and all other components are plugins.

Commands that print a table print JSON with `--json`. Exit codes are 0
(success), 1 (the run or a check failed), 2 (an error was found before training). `protofl list-plugins --json` lists
everything that is installed, `protofl show NAME --json` its options. A test of an installation that takes seconds:
`protofl run fedproto --models mlp --dataset wine --rounds 2`."""

ENTRY = re.compile(r"^(?P<indent> *)- (?:(?P<title>[^:#]+): )?(?P<page>[\w./-]+\.md)$")
SECTION = re.compile(r"^(?P<indent> *)- (?P<title>[^:#]+):$")

METHODS = "reference/methods/index.md"


def navigation(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (section, title, page) of the navigation, in its order.

    Args:
        text: The content of mkdocs.yml.
    """
    sections: dict[int, str] = {}
    for line in text.partition("\nnav:\n")[2].splitlines():
        if found := SECTION.match(line):
            depth = len(found["indent"])
            sections = {d: title for d, title in sections.items() if d < depth}
            sections[depth] = found["title"]
        elif found := ENTRY.match(line):
            above = [title for d, title in sections.items() if d < len(found["indent"])]
            page = found["page"]
            yield ": ".join(above), found["title"] or title_of(page), page


def title_of(page: str) -> str:
    """Return the heading of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return next(line[2:] for line in text.splitlines() if line.startswith("# "))


def summary_of(page: str) -> str:
    """Return the first sentence of a page, without markup."""
    text = (DOCS / page).read_text(encoding="utf-8")
    body = text.partition("\n# ")[2] if text.startswith("---") else text.removeprefix("# ")
    body = re.sub(r"^```.*?^```$", "", body.partition("\n")[2], flags=re.MULTILINE | re.DOTALL)
    for paragraph in body.split("\n\n"):
        plain = " ".join(paragraph.split())
        if plain and plain[0] not in "<|-#!>1" and not paragraph.startswith("    "):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain).replace("**", "")
            return re.split(r"(?<=[^A-Z. ]{3}[.])\s(?=[A-Z`])", plain)[0].rstrip(".:")
    return ""


def llms_text() -> str:
    """Return the content of llms.txt."""
    by_section: dict[str, list[str]] = {}
    pages = navigation((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))
    for section, title, page in pages:
        by_section.setdefault(section or "Start", []).append(_line(title, page))
    names = sorted(p.name for p in Registry().plugins("method") if p.distribution == "protofl")
    cards = [f"reference/methods/{name}.md" for name in names]
    optional = [
        _line(Path(page).stem, page) for page in cards if (DOCS / page).exists()
    ]  # a defence has no page
    parts = [HEAD, *(f"## {name}\n\n" + "\n".join(lines) for name, lines in by_section.items())]
    return "\n\n".join([*parts, "## Optional\n\n" + "\n".join(optional)]) + "\n"


def _line(title: str, page: str) -> str:
    summary = summary_of(page)
    return f"- [{title}]({page})" + (f": {summary}" if summary else "")


def update_llms(path: Path = FILE) -> list[Path]:
    """Write the file if it changed."""
    text = llms_text()
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return []
    path.write_text(text, encoding="utf-8")
    return [path]
