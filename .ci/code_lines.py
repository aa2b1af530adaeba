"""Count the lines of code of each package, and compare them with an earlier commit.

    python .ci/code_lines.py            compared with the commit that .ci/baseline names
    python .ci/code_lines.py COMMIT     compared with COMMIT

Without that commit in the history, the comparison is with the merge base of HEAD and origin/main.
Lines of code are lines without blank lines, comments and docstrings. A package that grows is no
error. If the core grows, the commit message says what the lines are for.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("core", "plugins", "cli")
OTHERS = ("tests", "benchmarks", "examples")
APART = "protofl/testing"
"""A part of the core that is counted by itself: contracts for plugins, which no run loads."""

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER, tokenize.ENCODING,
}  # fmt: skip


@cache
def code_lines(text: str) -> int:
    """Return the number of lines of code of a file."""
    strings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                strings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - strings)


def package_of(path: str) -> str:
    """Return the package of a file: ``core/protofl/errors.py`` is of ``core/protofl``."""
    top, *rest = path.split("/")
    if top not in TOPS:
        return top
    if "tests" in rest[:-1]:
        return "tests"
    package = f"{top}/{rest[0]}"
    return f"core/{APART}" if path.startswith(f"core/{APART}/") else package


def counts(files: dict[str, str]) -> Counter[str]:
    """Return {package: lines of code}.

    Args:
        files: {path from the root: text}.
    """
    lines: Counter[str] = Counter()
    for path, text in files.items():
        if path.endswith(".py") and path.split("/")[0] in (*TOPS, *OTHERS):
            lines[package_of(path)] += code_lines(text)
    return lines


def git(*words: str) -> str:
    """Return what a git command prints."""
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True, encoding="utf-8")


def at(commit: str) -> dict[str, str]:
    """Return the Python files of a commit."""
    packed = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
    files = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            unpacked = archive.extractfile(member) if member.name.endswith(".py") else None
            if unpacked is not None:
                files[member.name] = unpacked.read().decode("utf-8")
    return files


def now() -> dict[str, str]:
    """Return the Python files of the working tree."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "*.py").splitlines()
    return {n: (ROOT / n).read_text(encoding="utf-8") for n in names if (ROOT / n).is_file()}


def base() -> str | None:
    """Return the commit to compare with.

    It is the one that .ci/baseline names, else the merge base of HEAD and origin/main, else the
    commit before HEAD.
    """
    named = ROOT / ".ci/baseline"
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else "none"
    for words in (
        ("rev-parse", "-q", "--verify", f"{commit}^{{commit}}"),
        ("merge-base", "HEAD", "origin/main"),
        ("rev-parse", "HEAD^"),
    ):
        try:
            found = git(*words).strip()
        except subprocess.CalledProcessError:  # a shallow clone, no remote, or a single commit
            continue
        if found != git("rev-parse", "HEAD").strip():
            return found
    return None


def table(lines: Counter[str], before: Counter[str]) -> str:
    """Return a line for each package, and one for all of them."""
    packages = sorted({*lines, *before}, key=lambda p: (p.split("/")[0] not in TOPS, p))
    shown = [p for p in packages if p.split("/")[0] in TOPS]
    rows = [(p, lines[p], before[p]) for p in packages]
    total = ("packages together", sum(lines[p] for p in shown), sum(before[p] for p in shown))
    rows.insert(len(shown), total)
    return "\n".join(f"{p:28}{n:>8,}{n - m:>+8,}" if before else f"{p:28}{n:>8,}"
                     for p, n, m in rows)  # fmt: skip


def main() -> None:
    """Print the table."""
    commit = sys.argv[1] if len(sys.argv) > 1 else base()
    before = counts(at(commit)) if commit else Counter()
    print(f"lines of code, compared with {commit[:8]}:" if commit else "lines of code:")
    print(table(counts(now()), before))


if __name__ == "__main__":
    main()
