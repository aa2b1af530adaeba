"""Tests of code digests: how a run detects that the code of a plugin's file has changed."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import protofl
import protofl_plugins
from protofl.system.class_places import load
from protofl.system.sources import code, digest_of_code, fingerprint

METHOD = '''\
"""A method."""

# Its scale
SCALE = 2  # of the loss


class Own:
    """What it does."""

    words = "a # b"

    def local_loss(self, x):
        """The loss."""
        total = (
            x.sum()
            # twice
            * SCALE
        )
        text = """first

# second"""
        return total, text, f"{total} # {x}"
'''

SAME = {
    "module docstring": ('"""A method."""', '"""Another method.\n\nIn several lines.\n"""'),
    "no module docstring": ('"""A method."""\n', ""),
    "comment of its own": ("# Its scale\n", "# How much\n# it is\n"),
    "comment behind": ("  # of the loss", "  # of all"),
    "no comment behind": ("  # of the loss", ""),
    "comment in an expression": ("            # twice\n", ""),
    "class docstring": ('    """What it does."""\n', "    '''It does this.'''  # noqa\n"),
    "docstring of a hook": ('"""The loss."""', 'r"""The loss, a.\n        b."""'),
    "string below a value": ("SCALE = 2  # of the loss", 'SCALE = 2\n"""Times."""'),
    "empty lines": ("\n\nclass", "\n\n\n\nclass"),
    "ends of lines": ("\n", "\r\n"),
}

OTHER = {
    "a number": ("SCALE = 2", "SCALE = 3"),
    "a name": ("def local_loss", "def global_loss"),
    "a string": ("a # b", "a # c"),
    "a line of a string": ("\n# second", "\n# third"),
    "an empty line of a string": ("first\n\n", "first\n"),
    "an f-string": ("# {x}", "# {text}"),
    "a line that was a comment": ("# Its scale\n", "SCALE = 1\n"),
    "a code that is one now": ("            * SCALE\n", "            # * SCALE\n"),
    "how deep it stands": ("    words", "words"),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_comments_and_docstrings_are_no_code(change):
    assert change[0] in METHOD
    assert code(METHOD.replace(*change).encode()) == code(METHOD.encode())


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_all_else_is(change):
    assert change[0] in METHOD
    assert code(METHOD.replace(*change).encode()) != code(METHOD.encode())


@pytest.mark.parametrize("source", [b"", b"\xff\x00\x01", b"x = (1,", b"\tx\n  y\n"])
def test_what_is_no_source_counts_as_it_is(source):
    assert code(source) == source


def without_docstrings(tree):
    """Return the dump of a tree without statements that are only a string."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [each for each in value if not is_string(each)])
    return ast.dump(tree)


def is_string(node):
    """Return True if a node is a statement that is only a string."""
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str)


@pytest.mark.slow
def test_of_our_own_files_nothing_but_docstrings_is_lost():
    """Compare with Python's syntax tree; skip files where a body was only a docstring."""
    ours = [Path(module.__file__).parent for module in (protofl, protofl_plugins)]
    held = 0
    for file in sorted(file for folder in ours for file in folder.rglob("*.py"))[::4]:
        source = file.read_bytes()
        kept = code(source)
        try:
            tree = ast.parse(kept)
        except SyntaxError:
            continue
        assert without_docstrings(tree) == without_docstrings(ast.parse(source)), file
        assert code(kept) == kept, file
        held += 1
    assert held > 60


def test_the_digest_is_of_the_file_as_it_was_loaded(tmp_path):
    file = tmp_path / "digested_method.py"
    file.write_text(METHOD)
    first = fingerprint(load(f"{file}:Own"))
    file.write_text(METHOD.replace("What it does", "What it is for"))
    assert fingerprint(load(f"{file}:Own")) == first == digest_of_code(file)
    assert load(f"{file}:Own").__doc__ == "What it is for.", "it was loaded again"
    file.write_text(METHOD.replace("SCALE = 2", "SCALE = 3"))
    assert digest_of_code(file) != first
    assert fingerprint(load(f"{file}:Own")) == digest_of_code(file)


def test_a_file_of_the_same_size_and_time_as_the_one_before(tmp_path):
    """Some editors write a new file, rename it, and keep the times."""
    file, beside = tmp_path / "one.py", tmp_path / "other.py"
    file.write_text("x = 1\n")
    first = digest_of_code(file)
    beside.write_text("x = 2\n")
    about = os.stat(file)
    os.utime(beside, ns=(about.st_atime_ns, about.st_mtime_ns))
    os.replace(beside, file)
    assert digest_of_code(file) != first


def test_a_file_that_changes_twice_in_a_second_runs_its_new_code(tmp_path, monkeypatch):
    """Bytecode with the time of the last change in seconds would still count as up to date."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = tmp_path / "changing_in_a_second.py"
    second = 1_700_000_000 * 10**9
    for number in (1, 2):
        file.write_text(f"class Plugin:\n    number = {number}\n")
        os.utime(file, ns=(second + number, second + number))
        assert load(f"{file}:Plugin").number == number
