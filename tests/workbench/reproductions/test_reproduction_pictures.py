"""Tests of pictures of generated images: one run over rounds, or several runs side by side."""

from __future__ import annotations

import numpy as np
import pytest

import protofl as pf
from protofl import UsageError
from protofl_workbench.plots.image_grids import images_of_runs
from protofl_workbench.reproductions.reproduction_pictures import figures_of

REPRODUCTION = """
title = "Images"
paper = "Ours"
kind = "pictures"
figure = "final"
draw = DRAW

[options]
models = "cnn4"
dataset = "digits"
clients = 2
rounds = 2
batch-size = 60
backend = "local"
partition = "dirichlet"
set = { E_S = 1 }

[columns]
a = { label = "λ = 1" }
b = { label = "λ = 2", set = { lambda = 2 } }

[rows]
fedktl = {}
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, few):
    """Return a function that runs a reproduction of images with a way to draw them."""
    folder = tmp_path_factory.mktemp("images")

    def draw(how):
        path = folder / "images.toml"
        path.write_text(REPRODUCTION.replace("DRAW", how), encoding="utf-8")
        options = {"datasets": {"digits": few}, "data_dir": folder, "at_once": 0}
        return pf.reproduce(str(path), runs=folder / "runs", **options)

    return draw


def shown(figure):
    """Return the images of a figure, and the labels of its rows and columns."""
    pictures = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    lines = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
    return pictures, lines, [axes.get_title() for axes in figure.axes if axes.get_title()]


@pytest.mark.slow
def test_runs_beside_each_other_below_a_client_s_own_images(drawn):
    result = drawn('{ picture = "images", together = true, classes = 2, client = 1 }')
    ((name, figure),) = figures_of(result)
    pictures, lines, _ = shown(figure)
    assert name == "" and lines == ["client 1", "λ = 1", "λ = 2"] and len(pictures) == 6
    run = pf.load_run(result["fedktl", "a"].folder)
    rows = run.plan.split(0).train(1)
    labels = run.plan.data.y[rows]
    two = sorted(labels.bincount().argsort(descending=True, stable=True)[:2].tolist())
    own = [run.plan.data.x[rows[labels == c][0]][0].float().numpy() for c in two]
    for picture, image in zip(pictures, own, strict=False):
        assert np.corrcoef(np.asarray(picture).ravel(), image.ravel())[0, 1] > 0.99
    for column, line in (("a", 2), ("b", 4)):
        seen = pf.load_run(result["fedktl", column].folder).observed.images()
        for place, c in enumerate(two):
            expected = seen.images[seen.classes.tolist().index(c)][0]
            assert np.array_equal(pictures[line + place], expected)


@pytest.mark.slow
def test_a_run_over_rounds(drawn):
    result = drawn('{ picture = "images", classes = 3, rounds = [1, 900] }')
    found = dict(figures_of(result))
    assert [*found] == ["fedktl-a", "fedktl-b"]
    pictures, lines, titles = shown(found["fedktl-a"])
    assert (lines, titles, len(pictures)) == (["round 1"], ["0", "1", "2"], 3)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ('"imagse"', "unknown picture 'imagse'"),
        ('{ picture = "images", round = 1 }', "unknown key 'round'"),
        (
            '{ picture = "images", classes = 0 }',
            "draw.classes: expected greater than 0, got 0",
        ),
        (
            '{ picture = "images", rounds = [1.5] }',
            "draw.rounds.0: expected an integer, got 1.5",
        ),
        (
            '{ picture = "margins", classes = 2 }',
            "classes is an option of images, and the picture is margins",
        ),
    ],
)
def test_mistakes(drawn, how, what):
    with pytest.raises(UsageError) as found:
        drawn(how)
    assert what in found.value.what


@pytest.mark.slow
def test_no_such_client(drawn):
    result = drawn('"images"')
    with pytest.raises(UsageError, match="there is no client 2"):
        images_of_runs({"a": result["fedktl", "a"].folder}, client=2)
