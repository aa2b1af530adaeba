"""Tests of the gallery: its commands make its pictures, and it has every kind of figure."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import site_gallery as gallery

from protofl_cli.commands.plot import KINDS

PAGE = gallery.PAGE.read_text(encoding="utf-8")
TYPED = gallery.commands(PAGE)


def test_every_kind_of_figure_is_there():
    assert {words[1] for words in TYPED if words[0] == "plot"} == {*KINDS}
    assert {words[0] for words in TYPED} >= {"run", "reproduce"}


def test_every_picture_is_written_by_a_command_and_committed():
    shown = gallery.shown(PAGE)
    assert len(shown) > 12
    assert {*shown} <= {*gallery.written(TYPED)}
    committed = {path.name for path in (gallery.DOCS / gallery.FOLDER).iterdir()}
    assert committed == {*shown}


@pytest.mark.slow
def test_the_commands_make_the_files(tmp_path, data_dir, monkeypatch):
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(data_dir))
    folder = tmp_path / "typed"
    folder.mkdir()
    page = PAGE
    if find_spec("dp_accounting") is None:  # of the extra privacy
        page = re.sub(r"^## Privacy$.*?(?=^## )", "", PAGE, flags=re.DOTALL | re.MULTILINE)
        monkeypatch.setattr(gallery, "PAGE", tmp_path / "gallery.md")
        gallery.PAGE.write_text(page, encoding="utf-8")
    made = {path.name for path in gallery.make(folder, tmp_path / "made", rounds=2)}
    assert Path.cwd() == tmp_path  # it went back
    assert made == {*gallery.shown(page)}
    for name in made:
        begin = (tmp_path / "made" / name).read_bytes()[:8]
        assert begin.startswith(b"\x89PNG"), name
