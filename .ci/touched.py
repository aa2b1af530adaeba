"""Print the tests that belong to the files changed since .ci/baseline, separated by commas.

First the changed files of tests, then the folders ``tests/PACKAGE/FOLDER`` of changed files
``PACKAGE/FOLDER/…``, those with the most changed files first. `.ci/run` gives them to
``pytest --touched``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from code_lines import ROOT, base, git

TOPS = {
    "protofl": "core", "protofl_workbench": "workbench", "protofl_plugins": "plugins",
    "protofl_flower": "flower", "protofl_ray": "ray_backend", "protofl_privacy": "privacy",
    "protofl_cli": "cli", ".ci": "architecture", ".github": "architecture",
}  # fmt: skip
"""{package: its folder below tests}."""


def tests_of(changed: list[str], root: Path = ROOT) -> list[str]:
    """Return the tests of changed files.

    Args:
        changed: Paths from the root.
        root: The root of the repository; only tests that exist are returned.
    """
    own: list[str] = []
    folders: Counter[str] = Counter()
    for path in changed:
        parts = path.split("/")
        if parts[0] == "tests":
            if parts[-1].startswith("test_") and (root / path).is_file():
                own.append(path)
            continue
        for place, part in enumerate(parts[:-1]):
            if part in TOPS:
                inner = "/".join(["tests", TOPS[part], *parts[place + 1 : place + 2]])
                folder = inner if (root / inner).is_dir() else f"tests/{TOPS[part]}"
                folders[folder] += (root / folder).is_dir()
                break
    return own + [folder for folder, count in folders.most_common() if count]


if __name__ == "__main__":
    commit = base()
    names = git("diff", "--name-only", commit, "HEAD").splitlines() if commit else []
    print(",".join(tests_of(names)))
