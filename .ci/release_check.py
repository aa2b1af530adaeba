"""Check that the files that name the version and the addresses of protofl agree.

python .ci/release_check.py           while the changelog may still begin with "Unreleased"
python .ci/release_check.py v1.0.0    before a release: the tag, and the changelog has the version
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)
RELEASE = re.compile(r"\[?(\d+\.\d+\.\d+)\]? - (\d{4}-\d\d-\d\d)")
"""The heading of a release, as in Keep a Changelog."""
TYPES = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
"""The groups of changes that Keep a Changelog knows."""
URLS = re.compile(r"^\[project\.urls\]\n(.*?)\n\n", re.MULTILINE | re.DOTALL)
OURS = re.compile(
    r"https://(?:github\.com|raw\.githubusercontent\.com|[\w-]+\.github\.io)/[\w./-]*protofl\b"
)
"""An address of the project: of its repository, its raw files or its site."""


def faults(root: Path = ROOT, tag: str = "") -> list[str]:
    """Return what disagrees; empty if all is well."""

    def text(name: str) -> str:
        return (root / name).read_text(encoding="utf-8")

    found = VERSION.search(text("core/protofl/system/version.py"))
    if found is None:
        return ['core/protofl/system/version.py: expected a line __version__ = "X.Y.Z"']
    version, wrong = found[1], []
    if tag and tag != f"v{version}":
        wrong.append(f"the tag is {tag}, expected v{version}")

    cited = dict(
        re.findall(r'^(version|date-released): "?([\w.-]+)"?$', text("CITATION.cff"), re.M)
    )
    if cited.get("version") != version:
        wrong.append(f"CITATION.cff has version {cited.get('version')}, expected {version}")

    for satellite in sorted((root / "plugins").glob("*/pyproject.toml")):
        other = re.search(r'^version = "(.+)"$', satellite.read_text("utf-8"), re.MULTILINE)
        if other is None or other[1] != version:
            place = satellite.relative_to(root).as_posix()
            wrong.append(f"{place} has version {other and other[1]}, expected {version}")

    headings = re.findall(r"^## (.+)$", text("CHANGELOG.md"), re.MULTILINE)
    first = headings[0].strip("[]") if headings else ""
    release = RELEASE.fullmatch(headings[0]) if headings else None
    if release:
        if release[1] != version:
            wrong.append(f"CHANGELOG.md begins with {release[1]}, expected {version}")
        elif release[2] != cited.get("date-released"):
            wrong.append(
                f"CHANGELOG.md dates {version} {release[2]}, "
                f"CITATION.cff {cited.get('date-released')}"
            )
        newest = text("CHANGELOG.md").split("\n## ")[1]
        others = sorted({*re.findall(r"^### (.+)$", newest, re.MULTILINE)} - TYPES)
        if others:
            wrong.append(f"CHANGELOG.md, {version}: {others[0]!r} is not one of {sorted(TYPES)}")
    elif tag or first != "Unreleased":
        wrong.append(f'CHANGELOG.md begins with "{first}", expected "{version} - YEAR-MONTH-DAY"')

    urls = URLS.search(text("pyproject.toml"))
    places = dict(re.findall(r'^(\w+) = "([^"]+)"', urls[1], re.MULTILINE)) if urls else {}
    allowed = {places.get("Homepage"), places.get("Repository")}
    allowed.add(
        str(places.get("Repository")).replace("//github.com", "//raw.githubusercontent.com")
    )
    for path in _files(root):
        for address in {*OURS.findall(path.read_text(encoding="utf-8"))} - allowed:
            wrong.append(
                f"{path.relative_to(root)}: {address} is not an address of [project.urls] "
                "in pyproject.toml"
            )
    return wrong


def _files(root: Path) -> list[Path]:
    """Return the files that may name an address of the project."""
    here = [p for p in root.iterdir() if p.suffix in {".toml", ".md", ".yml", ".cff", ".txt"}]
    pages = [
        p for d in ("docs", ".github") for p in (root / d).rglob("*") if p.suffix in {".md", ".yml"}
    ]
    satellites = [
        p for name in ("pyproject.toml", "README.md") for p in root.glob(f"plugins/*/{name}")
    ]
    dockerfile = [root / "Dockerfile"] if (root / "Dockerfile").exists() else []
    return sorted(here + pages + satellites + dockerfile)


if __name__ == "__main__":
    if found := faults(tag=sys.argv[1] if len(sys.argv) > 1 else ""):
        sys.exit("\n".join(found))
