"""Tests of where the page of a method is found."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from protofl.hooks.discovery.registry import Registry
from protofl.testing.donors import methods_to_run
from protofl_workbench.cards.method_pages import page_file, page_of

ROOT = Path(__file__).parents[3]
METHODS = methods_to_run(Registry(), "protofl")

MODULE = '''
"""Mine, by me, 2026.

    L = ``ce``

No more.
"""


class Mine:
    """A method."""
'''
PAGE = "---\nshares: nothing\nhide: [toc]\n---\n\n# mine\n\nMe, 2026.\n\n# Later\n\n---\n"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return a function that writes and imports the module of a method: ``mine(folder)``."""

    def write(folder="."):
        place = tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "mine_of_a_test.py").write_text(MODULE)
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.delitem(sys.modules, "mine_of_a_test", raising=False)
        return place, importlib.import_module("mine_of_a_test").Mine

    return write


def test_a_page_next_to_the_module(mine):
    place, method = mine()
    (place / "mine.md").write_text(PAGE)
    page = page_of("mine", method)
    assert page.text == "Me, 2026.\n\n# Later\n\n---" and page.written
    assert page_of("other", method).written is False


def test_the_first_lines_say_what_clients_share(mine):
    place, method = mine()
    (place / "mine.md").write_text("---\nshares: heads, and more\n---\n\n# mine\n\nText.\n")
    page = page_of("mine", method)
    assert (page.shares, page.text) == ("heads, and more", "Text.")


def test_a_method_without_a_page_has_its_docstring(mine):
    _, method = mine()
    page = page_of("mine", method)
    assert page.text == "Mine, by me, 2026.\n\n    L = `ce`\n\nNo more." and not page.written


def test_a_class_of_a_module_of_several_methods_has_its_own_docstring(mine):
    _, method = mine()
    method.__doc__ = "A method.\n\n    You, 2027.\n    "
    assert page_of("mine", method).text == "A method.\n\nYou, 2027."


def test_a_checkout_has_its_pages_in_docs(mine, tmp_path):
    _, method = mine("src/package")
    pages = tmp_path / "docs/reference/methods"
    pages.mkdir(parents=True)
    (pages / "mine.md").write_text("# mine\n\nOf the checkout.\n")
    assert page_of("mine", method).text == "Of the checkout."


def test_an_installed_package_does_not_take_pages_of_the_folder_around_it(mine, tmp_path):
    """A virtual environment often lies in the checkout of something else."""
    _, method = mine(".venv/lib/python3.12/site-packages")
    pages = tmp_path / "docs/reference/methods"
    pages.mkdir(parents=True)
    (pages / "mine.md").write_text("# mine\n\nOf another project.\n")
    assert page_file("mine", method) is None


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_protofl_has_a_page(method):
    page = page_of(method, Registry().load("method", method))
    assert page.written and page.shares and page.text.count("\n# ") == 0
    assert not page.text.startswith(("#", "---"))


@pytest.mark.slow
def test_the_wheel_has_the_pages_next_to_the_modules(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    pages = {Path(name).stem for name in names if name.endswith(".md")}
    assert pages == {*METHODS}
    target = Registry().find("method", "lg-fedavg").target.partition(":")[0].replace(".", "/")
    assert f"{target}.py" in names and f"{Path(target).parent}/lg-fedavg.md" in names
    records = {n.partition("/benchmark/records/")[2] for n in names} - {""}
    committed = ROOT / "docs/reference/benchmark"
    assert records == {p.relative_to(committed).as_posix() for p in committed.glob("*/*.json")}
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "from protofl_workbench.cards.benchmark_figures import *\n"
        "from protofl_workbench.cards.published_figures import installed_reproductions\n"
        "htfl = next(r for r in installed_reproductions() if r.name == BENCHMARK)\n"
        "rows = benchmark_rows('fedproto', htfl, settings_of(htfl, record_folders(htfl)))\n"
        "print(benchmark_rows.__code__.co_filename, len(rows))"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    place, count = shown.stdout.split()
    assert Path(place).is_relative_to(tmp_path) and int(count) >= 2
