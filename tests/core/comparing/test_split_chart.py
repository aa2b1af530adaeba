"""The clients × classes picture."""

from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

from protofl_workbench.plots.split_chart import _every, _legend_numbers, draw_split


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize(
    ("num_clients", "num_classes"), [(1, 1), (1, 10), (8, 10), (20, 100), (300, 4)]
)
def test_writes_a_png_that_grows_with_its_cells(tmp_path, num_clients, num_classes):
    counts = np.random.default_rng(0).integers(0, 400, (num_clients, num_classes))
    names = [f"class {i}" for i in range(num_classes)]
    draw_split(counts, names, "dirichlet, 8 clients", tmp_path / "a.png")
    width, height = png_size(tmp_path / "a.png")
    assert width >= 140 * 0.14 * num_clients and height >= 140 * 0.14 * num_classes
    assert width < 8000 and height < 8000


def test_tensors_empty_tables_and_odd_names(tmp_path):
    names = ["$100 bill", "a very long name of a class that is cut", "_under_"]
    draw_split(torch.zeros(4, 3, dtype=torch.int64), names, "nothing $ here", tmp_path / "a.png")
    draw_split(torch.ones(4, 3, dtype=torch.int64), names, "word " * 60, tmp_path / "b.png")
    assert png_size(tmp_path / "b.png")[1] > png_size(tmp_path / "a.png")[1]  # a wrapped title


def test_same_input_same_bytes(tmp_path):
    counts = torch.arange(80).reshape(8, 10)
    names = [str(i) for i in range(10)]
    for name in ("a.png", "b.png"):
        draw_split(counts, names, "t", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.slow
def test_importing_does_not_load_matplotlib_and_drawing_not_pyplot(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from protofl_workbench.plots.split_chart import draw_split\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"draw_split(np.ones((2, 2), int), ['a', 'b'], 't', {str(tmp_path / 'a.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_labels_have_room():
    assert _every(0.42, 0.1) == 1
    assert _every(0.15, 0.2) == 2
    assert _every(0.15, 0.7) == 5
    assert _every(0.004, 0.5) == 200


@pytest.mark.parametrize(
    ("largest", "numbers"),
    [(0, []), (1, [1]), (7, [7, 2]), (137, [100, 40, 10]), (5012, [5000, 1000, 500])],
)
def test_legend_numbers_are_round_and_in_reach(largest, numbers):
    assert _legend_numbers(largest) == numbers
