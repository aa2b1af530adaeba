"""Test the code spans of pages and docstrings: paths, commands, options and dotted names exist.

A docstring is that of a module, class or function of our packages, tests, benchmarks or examples.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from functools import cache

import pytest
import typer
from doc_pages import DOCS, FENCE, ROOT, commands_of, is_placeholder, parse, whole

from protofl.system.options.table import OPTIONS, flag_of

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
CHANGELOG = ROOT / "CHANGELOG.md"  # entries of earlier releases name what has gone since
TOPS = ("core", "plugins", "cli", "docs", "tests", "benchmarks", "examples", ".ci")
CODE = [p for top in TOPS for p in sorted((ROOT / top).rglob("*.py"))]
CODE = [p for p in CODE if "templates" not in p.parts]

SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)([^`]+?)\1(?!`)", re.DOTALL)
PATH = re.compile(rf"(?<![\w/.:-])(?:{'|'.join(map(re.escape, TOPS))})/[\w./-]*\w")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*\w(?![\w-]|…)")
NAME = re.compile(r"(?<![\w./:-])(?:pf|protofl|protofl_\w+)(?:\.[A-Za-z_]\w*)+(?![\w/-])")

ARGUMENT = re.compile(r"add_argument\(\s*\"(--[a-z-]+)\"")
PROJECTS = (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
GROUPS = {
    group
    for file in PROJECTS
    for group in tomllib.loads(file.read_text("utf-8"))["project"]["entry-points"]
}

TAGS = {"protofl.key"}
"""Names of tags in trackers' services."""

OTHERS = {
    "pip": {"--no-deps", "--upgrade"},
    "pytest": {"--durations", "--basetemp"},
    "our scripts": {"--part", "--all", "--kills", "--touched"},  # .ci/run, tests/rotation.py
    "TensorBoard": {"--logdir"},
    "Slurm": {"--array", "--gres", "--cpus-per-task", "--requeue"},
    "Flower": {"--insecure", "--root-certificates", "--superlink", "--ssl-ca-certfile"},
}
"""Options of other programs that pages and docstrings mention."""


def docstrings(path):
    """Return the docstrings of a file, each with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [tree]
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(node, kinds) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                yield body[0].lineno, body[0].value.value
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):  # no expressions
            inner = getattr(node, part, ())
            nodes += inner if isinstance(inner, list) else ()


@cache
def spans():
    """Return (place, code span) of all pages and docstrings."""
    found = []
    for path in PAGES:
        if path != CHANGELOG:
            text = FENCE.sub("", path.read_text(encoding="utf-8"))
            found += [
                (path.relative_to(ROOT).as_posix(), " ".join(s.split()))
                for _, s in SPAN.findall(text)
            ]
    for path in CODE:
        for line, text in docstrings(path):
            place = f"{path.relative_to(ROOT).as_posix()}:{line}"
            found += [(place, " ".join(s.split())) for _, s in SPAN.findall(text)]
            found += [(place, path) for path in PATH.findall(text)]
    return found


# --- what exists ----------------------------------------------------------------------------------


@cache
def options():
    """Return the long options of all commands."""

    def of(command, context):
        names = {n for p in command.params for n in [*p.opts, *p.secondary_opts]}
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                _, inner, _ = command.resolve_command(context, [name])  # imports that of a plugin
                names |= of(inner, context)
        return names

    command = whole()
    context = command.make_context("protofl", [], resilient_parsing=True)
    of_runs = {flag_of(name) for name in OPTIONS}
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tests").rglob("*.py")]
    of_scripts = {o for p in scripts for o in ARGUMENT.findall(p.read_text(encoding="utf-8"))}
    return {"--help", "--help-all", *of(command, context), *of_runs, *of_scripts}


@cache
def exists(name):
    """Return True if a dotted name is an entry-point group or can be imported."""
    if name in GROUPS | TAGS:
        return True
    first, *rest = name.split(".")
    first = "protofl" if first == "pf" else first
    try:
        thing = importlib.import_module(first)
    except ModuleNotFoundError:
        return False
    place = first
    for part in rest:
        place = f"{place}.{part}"
        if not hasattr(thing, part):
            try:
                importlib.import_module(place)
            except ModuleNotFoundError as error:
                fields = {
                    **getattr(thing, "__annotations__", {}),
                    **getattr(thing, "__dataclass_fields__", {}),
                }
                return part in fields or error.name not in (None, place)
        thing = getattr(thing, part)
    return True


def known(option):
    """Return True if a command has the option, or the option that ``--no-…`` switches off."""
    names = {option, option.replace("--no-", "--", 1)}
    return bool(names & options().union(*OTHERS.values()))


# --- what is wrong with a span --------------------------------------------------------------------


def is_open(text):
    """Return True if a path or name has a placeholder in capitals."""
    return bool(re.search(r"(?<![a-z])[A-Z]{4,}(?![a-z])", text)) and "CHANGELOG" not in text


def wrong(span):
    """Return what a code span of a page or docstring names that does not exist."""
    faults = [f"no file {p}" for p in PATH.findall(span) if not ((ROOT / p).exists() or is_open(p))]
    if not re.match(r"(?!protofl\b)(pip|pytest|flwr|mkdocs|ruff|mypy|git|docker)\b", span):
        faults += [f"no option {o}" for o in OPTION.findall(span) if not known(o)]
    if span.startswith("protofl ") and not faults:
        try:
            for words in commands_of([span]):
                if not is_placeholder(words):
                    parse(words)
        except (typer.BadParameter.__mro__[1], AssertionError) as error:
            faults.append(str(error))
    return faults + [f"no name {n}" for n in NAME.findall(span) if not (exists(n) or is_open(n))]


@pytest.mark.satellites
def test_code_spans_name_what_exists():
    assert len(spans()) > 3000
    faults = [f"{place}: `{span}`: {f}" for place, span in spans() for f in wrong(span)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "span",
    ["docs/nowhere.md", "protofl run local --modles x", "protofl rum", "--no-such", "pf.nothing"],
)
def test_a_wrong_span_is_noticed(span):
    assert wrong(span)


@pytest.mark.parametrize(
    "span",
    ["docs/index.md", "--models", "pf.Payload.table", "protofl run x --trials 3", "protofl run"],
)
def test_a_right_span_passes(span):
    assert not wrong(span)
