"""Tests of characters that the fonts of a figure lack."""

from __future__ import annotations

import pytest
from matplotlib.font_manager import fontManager

from protofl import plots
from protofl_workbench.plots import figure_files
from protofl_workbench.plots.style import Style


@pytest.fixture(autouse=True)
def said(monkeypatch):
    """Forget that the line was printed, and return the list of it."""
    lines = []
    monkeypatch.setattr(figure_files, "_said", lines)
    return lines


def figure(text):
    look = Style(font="serif")
    made, axes = look.canvas(2.0)
    axes.set_title(text, **look.text())
    axes.set_yticks([0, 1], [text, "b"], **look.text())
    return made


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
@pytest.mark.parametrize("text", ["\x1b[2J\x07 name", "\u4e2d\u6587 \u65e5\u672c\u8a9e",
                                  "\u0645\u0631\u062d\u0628\u0627"])  # fmt: skip
def test_no_warning_repeats_a_character(text, kind, tmp_path, capsys, recwarn):
    """Warnings of matplotlib have the character itself, which a terminal may obey."""
    plots.save(figure(text), path := tmp_path / f"figure.{kind}")
    found = [w for w in recwarn.list if not issubclass(w.category, DeprecationWarning)]
    assert not found and "\x1b" not in "".join(capsys.readouterr())
    assert kind != "svg" or "\x1b" not in path.read_text(encoding="utf-8")


def test_a_line_says_once_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(fontManager, "ttflist", [
        entry for entry in fontManager.ttflist if entry.name == figure_files.BUNDLED
    ])  # fmt: skip
    for name in ("a", "b"):
        plots.save(figure("\u4e2d\u6587"), tmp_path / f"{name}.png")
    error = capsys.readouterr().err
    assert error.count("no installed font has \u4e2d\u6587") == error.count("Noto") == 1
    figure_files.svg(figure("\u65e5"), outlines=False)  # the reader's font draws the letters
    assert "\u65e5" not in capsys.readouterr().err


def test_another_installed_font_draws_what_a_font_lacks(said):
    """Serif fonts of matplotlib have no Arabic letters; its other font has them."""
    assert figure_files.fonts_for("a\u0645") == ((figure_files.BUNDLED,), "")
    made = figure("\u0645\u0631")
    figure_files.svg(made)
    assert figure_files.BUNDLED in made.axes[0].title.get_fontfamily() and not said


def test_other_warnings_stay():
    made = figure("a")
    made.savefig = lambda *given, **options: __import__("warnings").warn("other", stacklevel=1)
    with pytest.warns(UserWarning, match="other"):
        figure_files.drawn(made, "png", transparent=False)
