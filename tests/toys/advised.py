"""Advice of error messages: found in the source, read from an error, and followed."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import typer

from protofl_cli.app import app

ROOT = Path(__file__).parents[2]
ERRORS = re.compile(r"(Error|Failure|Refused|Blocked|TooLittle|Unknown|unknown|missing_path)$")
OPTION = re.compile(r"(?<![\w-])--(?!debug\b)[a-z][a-z-]+(?![\w-])")
CLAUSE = re.compile(r"; |,? or (?![a-z.]+\b \w+ \()")


@cache
def commands():
    """Return the commands of protofl and their options with their numbers of values."""
    group = typer.main.get_command(app)
    context = group.make_context("protofl", [], resilient_parsing=True)
    names = group.list_commands(context)
    return {name: group.resolve_command(context, [name])[1] for name in names}


def text_of(node):
    """Return a string of the source, with ``{}`` for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return ""


def advises(text):
    """Return True if a text names an option or a command."""
    named = re.findall(r"\bprotofl ([a-z][a-z-]+)", text)
    return bool(OPTION.search(text)) or any(name in commands() for name in named)


def advices():
    """Return {text: files} of all advice in errors: their second and third arguments."""
    found = {}
    for top in ("core", "cli", "plugins"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if {"tests", "testing", "build"} & {*path.relative_to(ROOT).parts}:
                continue
            for text in _in_file(path.read_text(encoding="utf-8")):
                found.setdefault(text, []).append(path.relative_to(ROOT).as_posix())
    return found


def _in_file(source):
    for node in ast.walk(ast.parse(source)):
        for place in _places(node):
            joined = [node for node in ast.walk(place) if isinstance(node, ast.JoinedStr)]
            parts = {part for node in joined for part in ast.walk(node) if part is not node}
            for node in ast.walk(place):
                if node not in parts and advises(text := text_of(node)):
                    yield " ".join(text.split())


def _places(node):
    """Return where a node of the source may have advice.

    Arguments of errors, values of variables ``do`` and ``reasons``, and what ``requires`` returns.
    """
    if isinstance(node, ast.Call) and ERRORS.search(ast.unparse(node.func)):
        first = 2 if ast.unparse(node.func).endswith("unknown") else 1
        return [*node.args[first:], *(each.value for each in node.keywords)]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "reasons.append":
        return node.args
    if isinstance(node, ast.Assign | ast.AugAssign):
        names = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [node.value] if {*map(ast.unparse, names)} & {"do", "reasons"} else []
    if isinstance(node, ast.FunctionDef) and node.name == "requires":
        return [each for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
    return []


def spoken(text, output):
    """Return an advice as an error prints it, or None."""
    words = (re.escape(part) for part in text.split("{}"))
    found = re.search("(.+?)".join(words) + (r"[^\n]*" if text.endswith("{}") else ""), output)
    return found and found.group()


def followed(typed, advice, fill=(), clause=0):
    """Return a command that follows an advice.

    Args:
        typed: The words of the refused command.
        advice: The printed advice.
        fill: {placeholder, or option without a value: value}.
        clause: Number of the alternative that is followed.
    """
    part = CLAUSE.split(advice)[clause]
    for name, value in dict(fill).items():
        part = part.replace(name, value if not name.startswith("--") else f"{name} {value}")
    for found in re.finditer(r"\bprotofl (?=([a-z][a-z-]+))", part):
        if found.group(1) in commands():
            return shlex.split(part[found.end() :].partition(" (")[0])
    part = re.sub(r"\((?!-)[^)]*\)", "", part)  # explanations
    part = re.sub(r"[()]|(?<=s)'(?= )|:(?= )|(?<!=),(?= |$)", " ", part)
    words = shlex.split(part)
    if re.search(r"\b(leave|drop) --", part):
        for place, option in enumerate(words):
            if OPTION.fullmatch(option):
                typed = without(typed, option, words[place + 1] if option == "--set" else None)
        return typed
    added = []
    for place, option in enumerate(words):
        if OPTION.fullmatch(option):
            value = words[place + 1 : place + 2] if takes_value(typed, option) else []
            key = value[0].partition("=")[0] if option == "--set" else None
            if option in ("--with", "--add", "--drop", "--use"):
                key = "\n"  # a further value leaves the others
            if option == "--use":
                typed = without(typed, "--add", value[0].partition("=")[0])
            typed = without(typed, option, key)
            added += [option, *value]
    return [*typed, *added]


def takes_value(typed, option):
    """Return True if an option of a typed command takes a value."""
    command = commands()[typed[0]]
    if hasattr(command, "commands"):
        command = command.commands[typed[1]]
    for each in command.params:
        if option in each.opts:
            return not getattr(each, "is_flag", False)
    raise AssertionError(f"protofl {typed[0]} has no option {option}")


def without(typed, option, key=None):
    """Return a command without an option; of ``--set`` without the one with a key."""
    result, words = [], iter(typed)
    for word in words:
        if word != option:
            result.append(word)
        elif takes_value(typed, option):
            value = next(words)
            if key is not None and value.partition("=")[0] != key:
                result += [word, value]
    return result
