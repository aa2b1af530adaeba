"""Tests of the colours of groups, and of figures in the width of a paper."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from slowness import quick
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_workbench.plots.style import (
    COLOURS,
    HATCHES,
    LINES,
    MARKERS,
    PAPERS,
    class_colours,
    line_style,
)

FLAT = [[[0.1, 0.3], [0.4, 0.6], [0.7, 0.9]], [[0.2, 0.4], [0.3, 0.5], [0.8, 1.0]]]
METHODS = ("fedproto", "fedtgp", "local", "fedavg")


@pytest.fixture
def runs(write):
    return {m: write(m, FLAT, method=m) for m in METHODS}


def axes(figure):
    (found,) = figure.axes
    return found


def colours(figure):
    """Return {label: colour} of the curves of a figure."""
    names = [text.get_text() for made in figure.legends for text in made.get_texts()]
    return {
        n: to_hex(line.get_color()) for n, line in zip(names, axes(figure).get_lines(), strict=True)
    }


def test_a_group_that_a_figure_lacks_does_not_move_the_colours(runs, write):
    """The loss of the first group was never finite."""
    file = runs["fedproto"] / "metrics.jsonl"
    file.write_text(re.sub(r'"train_loss": [^,}]+', '"train_loss": null', file.read_text()))
    each = [*runs.values()]
    accuracy, loss = colours(pf.plots.curve(each)), colours(pf.plots.curve(each, "loss"))
    assert "fedproto" not in loss and loss == {m: accuracy[m] for m in loss}


def luminance_and_chroma(colour, matrix):
    """Return the CIE Lab values of a colour as a dichromat sees it (Viénot et al., 1999)."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(matrix) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722],
                       [0.0193, 0.1192, 0.9505]])  # fmt: skip
    xyz = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


PROTAN = [[0.1124, 0.8876, 0.0], [0.1124, 0.8876, 0.0], [0.0040, -0.0040, 1.0]]
DEUTAN = [[0.2927, 0.7073, 0.0], [0.2927, 0.7073, 0.0], [-0.0223, 0.0223, 1.0]]


@pytest.mark.parametrize("matrix", [PROTAN, DEUTAN, np.eye(3)], ids=["protan", "deutan", "all"])
def test_colours_can_be_told_apart(matrix):
    """Any two of the colours are at least ΔE = 15 apart for dichromats and for others."""
    lab = [luminance_and_chroma(colour, matrix) for colour in class_colours(10)]
    pairs = [
        (np.linalg.norm(a - b), i, j) for i, a in enumerate(lab) for j, b in enumerate(lab[:i])
    ]
    assert min(pairs)[0] > 15, min(pairs)


def test_curves_differ_in_grey_too():
    looks = [line_style(n) for n in range(280)]
    assert len({(s["marker"], str(s["linestyle"]), s["color"]) for s in looks}) == 280
    first = [(s["marker"], str(s["linestyle"])) for s in looks[:40]]
    assert len({*first}) == 40 and len(HATCHES) == len(COLOURS)
    assert len(MARKERS) == 8 and len(LINES) == 5


def test_the_page_has_the_widths_of_the_papers():
    page = (Path(pf.__file__).parents[2] / "docs/how-to/plot-runs.md").read_text(encoding="utf-8")
    found = {}
    for names, inches, large, small in re.findall(
        r"^\| (`[a-z]+-[^|]*) \| ([^|]*) \| (\d+) \| (\d+) \|$", page, re.M
    ):
        each = re.findall(r"`([a-z-]+)`", names)
        widths = [float(width) for width in inches.split(", ")]
        widths *= len(each) // len(widths)
        found |= {n: (w, float(large), float(small)) for n, w in zip(each, widths, strict=True)}
    assert found == PAPERS


@pytest.mark.parametrize("paper", quick(sorted(PAPERS), "icml-column"))
def test_a_figure_has_the_width_and_letters_of_the_paper(runs, tmp_path, paper):
    inches, large, small = PAPERS[paper]
    for n, make in enumerate((pf.plots.curve, pf.plots.bars, pf.plots.clients)):
        figure = make([*runs.values()], width=paper)
        pf.plots.save(figure, tmp_path / f"{n}.pdf")
        (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]",
                            (tmp_path / f"{n}.pdf").read_bytes())  # fmt: skip
        assert float(box[0]) == pytest.approx(inches * 72, abs=0.01)
        figure.canvas.draw()
        found = axes(figure)
        assert found.xaxis.label.get_fontsize() == large
        ticks = found.get_xticklabels() + found.get_yticklabels()
        assert {t.get_fontsize() for t in ticks} == {small}
        for legend in figure.legends:
            assert {t.get_fontsize() for t in legend.get_texts()} == {small}


@pytest.mark.slow
def test_papers_on_the_command_line(runs, tmp_path):
    folders, out = [str(folder) for folder in runs.values()], tmp_path / "c.pdf"
    run = CliRunner().invoke
    made = run(app, ["plot", "bars", *folders, "--out", str(out), "--width", "icml-column"])
    assert made.exit_code == 0, made.output
    assert re.search(rb"/MediaBox \[ 0 0 234 ", out.read_bytes())  # 3.25 inches
    for words, what in (
        (["--width", "icml-colum"], "did you mean 'icml-column'"),
        (["--width", "50"], "expected 1 to 40 inches"),
        (["--width", "colunm"], "did you mean 'column'"),
    ):
        refused = run(app, ["plot", "bars", *folders, "--out", str(out), "--force", *words])
        assert refused.exit_code == 2 and what in refused.stderr
