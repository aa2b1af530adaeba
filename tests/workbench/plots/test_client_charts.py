"""Tests of the plot of the split (clients × classes)."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import protofl as pf
from protofl_workbench.plots.client_charts import split_figure


@pytest.mark.parametrize(
    ("num_clients", "num_classes"), [(1, 1), (1, 10), (8, 10), (20, 100), (300, 4)]
)
def test_the_figure_grows_with_its_cells(num_clients, num_classes):
    counts = np.random.default_rng(0).integers(1, 400, (num_clients, num_classes))
    figure = split_figure(counts, [f"class {i}" for i in range(num_classes)], "8 clients")
    width, height = figure.get_size_inches()
    assert 0.14 * num_clients <= width < 55 and 0.14 * num_classes <= height < 55
    (bubbles,) = figure.axes[0].collections
    assert len(bubbles.get_offsets()) == counts.size


def test_tensors_empty_tables_and_odd_names(tmp_path):
    names = ["$100 bill", "a very long name of a class that is cut", "_under_"]
    figures = [
        split_figure(torch.zeros(4, 3, dtype=torch.int64), names, "nothing $ here"),
        split_figure(torch.ones(4, 3, dtype=torch.int64), names, "word " * 60),
    ]
    for figure in figures:
        pf.plots.save(figure, tmp_path / "a.png")
    heights = [figure.get_size_inches()[1] for figure in figures]
    assert heights[1] > heights[0], "a wrapped title"


@pytest.mark.parametrize(
    ("largest", "numbers"),
    [(1, ["1"]), (7, ["7", "2"]), (137, ["100", "40", "10"]), (5012, ["5,000", "1,000", "500"])],
)
def test_the_legend_has_round_numbers_in_reach(largest, numbers):
    (legend,) = split_figure(np.full((2, 2), largest), ["a", "b"], "t").legends
    assert [text.get_text() for text in legend.get_texts()] == numbers


@pytest.mark.slow
def test_importing_does_not_load_matplotlib_and_drawing_not_pyplot():
    code = (
        "import sys, numpy as np\n"
        "from protofl_workbench.plots.client_charts import split_figure\n"
        "assert 'matplotlib' not in sys.modules\n"
        "split_figure(np.ones((2, 2), int), ['a', 'b'], 't')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
