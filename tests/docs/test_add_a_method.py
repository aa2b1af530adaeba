"""Tests of the page "Add a method to protofl": its files, lines and commands exist as it says."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


MODULE = '''"""Toy heads: clients share the sum of their heads' means.

Toy et al., "A Toy Method for Tests", AAAI 2026 (arXiv 2601.00001).

    server    h ← Σ_i (n_i / n) · h_i
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.shared import weights


class ToyHeads:
    """Clients share a head (Toy et al., 2026)."""

    class Config(weights.SharingConfig):
        """Options; shared: aggregate."""

    tasks = ("classification", "multilabel")
    asynchronous = "versions"
    uploads = {
        "head/*": "h_i; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
    }
    downloads = {"head/*": "h"}

    requires = weights.HEAD.requires

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config]) -> pf.Payload:
        """Send h; nothing in round 0."""
        return server.global_state.select("head/*")

    receive = weights.HEAD.receive  # h_i ← h
    upload_payload = weights.HEAD.upload_payload  # h_i and n_i
    server_aggregate = weights.HEAD.server_aggregate  # h ← Σ_i (n_i / n) · h_i
'''
TEXT_OF_THE_PAGE = """---
shares: heads
---

# toy-heads

Toy et al., "A Toy Method for Tests", AAAI 2026 (arXiv 2601.00001).

```
protofl run toy-heads --models htfe8
```

    server    h ← Σ_i (n_i / n) · h_i

Clients average their heads. Loss term: `ce`.

<!-- generated: options toy-heads -->

**Choices**: none.

**Weak points**: it is a toy.
"""
BY_HAND = {
    "plugins/protofl_plugins/methods/toy_heads.py": MODULE,
    "docs/reference/methods/toy-heads.md": TEXT_OF_THE_PAGE,
}
QUICK = [
    "tests/architecture/test_method_files.py",
    "tests/contract/test_methods.py",
    "tests/docs/test_complete_lists.py",
    "tests/docs/test_site_agents.py",
    "tests/docs/test_site_cards.py",
    "tests/docs/test_site_pages.py",
    "tests/golden/test_golden.py",
    "tests/plugins/methods/test_other_tasks.py",
    "tests/plugins/schedules/test_declared_methods.py",
    "tests/docs/test_payload_sizes.py",
    "tests/workbench/publishing/test_papers.py",
]
"""Quick tests that ask for all methods."""


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the repository, and a function that runs Python in it."""
    parts = ("core", "cli", "plugins", "docs", "tests", "benchmarks", "examples", ".ci", ".github")
    root = tmp_path / "copy"
    unused = shutil.ignore_patterns("__pycache__", ".*cache*")
    for part in parts:
        shutil.copytree(ROOT / part, root / part, ignore=unused)
    for file in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(file, root)
    info = Path(str(importlib.metadata.distribution("protofl")._path))
    places = [tmp_path / "installed", *(root / top for top in ("core", "plugins", "cli"))]

    def python(*words):
        installed = places[0] / info.name
        shutil.rmtree(installed, ignore_errors=True)
        shutil.copytree(info, installed)
        entries = (root / "pyproject.toml").read_text(encoding="utf-8")
        added = re.findall(r"^toy-heads = .*$", entries, re.MULTILINE)
        file = installed / "entry_points.txt"
        group = "[protofl.methods]\n"
        text = file.read_text().replace(group, group + "".join(f"{line}\n" for line in added))
        file.write_text(text.replace('"', ""))
        path = os.pathsep.join(map(str, places))
        environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return done.stdout

    return root, python


def contents(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_its_steps_add_a_method(copy):
    """By hand: the module, its page and an entry point; the rest is written by the command."""
    root, python = copy
    for name, text in BY_HAND.items():
        (root / name).write_text(text, encoding="utf-8")
    project = root / "pyproject.toml"
    group = '[project.entry-points."protofl.methods"]\n'
    entry = 'toy-heads = "protofl_plugins.methods.toy_heads:ToyHeads"\n'
    project.write_text(project.read_text(encoding="utf-8").replace(group, group + entry), "utf-8")
    before = contents(root)
    python("tests/update.py", "toy-heads")
    after = contents(root)
    changed = {name for name in after if after[name] != before.get(name)}
    rows = re.findall(r"^\| (`.*?) \| ", TEXT, re.MULTILINE)
    listed = {name.replace("lg-fedavg", "toy-heads") for row in rows for name in row.split("`")}
    assert {"tests/golden/toy-heads.safetensors", "docs/llms.txt"} <= changed <= listed
    options = ["-n", "0", "-q", "-p", "no:cacheprovider", "-k", "toy-heads or not fed"]
    python("-m", "pytest", *options, *QUICK)
