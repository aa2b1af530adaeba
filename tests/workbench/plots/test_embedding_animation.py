"""Tests of the animation of features and prototypes over rounds."""

from __future__ import annotations

import base64
import io
import itertools
import re

import numpy as np
import pytest
from PIL import Image
from runtime_toys import install, train
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_workbench.plots import embedding_animation
from protofl_workbench.plots.embedding_animation import embedding

GIVEN = {"rounds": 4, "observe_samples": 5}


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        yield tmp_path_factory.mktemp("moving")


@pytest.fixture(scope="module")
def run(toys):
    return pf.load_run(
        train("fedproto", toys / "run", **GIVEN, observe="prototypes,features").folder
    )


def points(axes, marker):
    """Return the points of the features, clients or server of a frame, and their colours."""
    found = [each for each in axes.collections if len(each.get_offsets())]
    return [np.asarray(each.get_offsets()) for each in found][marker]


@pytest.mark.slow
def test_frames_show_every_observed_point(run):
    frames = embedding(run, perplexity=5)
    assert len(frames) == 4
    seen = set()
    for number, figure in enumerate(frames):
        (axes,) = figure.axes
        features, prototypes = run.observed.features(number), run.observed.prototypes(number)
        assert len(points(axes, 0)) == len(features.rows)
        assert len(points(axes, 1)) == len(prototypes.rows)
        assert len(points(axes, 2)) == len(prototypes.server["prototypes"][0])
        assert axes.get_title() == f"after round {number + 1}"
        assert len(axes.get_lines()) == (len(points(axes, 2)) if number else 0)
        seen.add((axes.get_xlim(), axes.get_ylim()))
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [
            "feature", "client's prototype", "server's prototype", "a", "b", "c", "d",
        ]  # fmt: skip
    assert len(seen) == 1  # one map


@pytest.mark.slow
def test_a_line_joins_a_prototype_with_its_place_before(run):
    first, second, *_ = embedding(run, perplexity=5)
    before, now = points(first.axes[0], 2), points(second.axes[0], 2)
    lines = [line.get_xydata() for line in second.axes[0].get_lines()]
    assert np.allclose(sorted(line[0].tolist() for line in lines), sorted(before.tolist()))
    assert np.allclose(sorted(line[1].tolist() for line in lines), sorted(now.tolist()))


@pytest.mark.slow
def test_many_rounds_and_points_are_drawn_in_part(run, monkeypatch):
    monkeypatch.setattr(embedding_animation, "FRAMES", 3)
    monkeypatch.setattr(embedding_animation, "POINTS", 21)
    frames = embedding(run, perplexity=5)
    titles = [figure.axes[0].get_title() for figure in frames]
    assert titles[0] == "after round 1" and titles[-1] == "after round 4" and len(titles) == 3
    assert {len(points(figure.axes[0], 0)) for figure in frames} == {7}


@pytest.mark.slow
def test_the_file_has_a_frame_for_each_round(run, tmp_path):
    out = tmp_path / "a.gif"
    made = CliRunner().invoke(
        app, ["plot", "embedding", str(run.folder), "--out", str(out), "--for", "icml-column"]
    )
    assert made.exit_code == 0 and "4 rounds" in made.output, made.output
    with Image.open(out) as image:
        assert image.n_frames == 4 and image.size[0] == 650  # 3.25 in of 200 pixels
        frames = []
        for number in range(4):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")).copy())
    assert all((a != b).any() for a, b in itertools.pairwise(frames))


@pytest.mark.slow
def test_kinds_alone(toys):
    for kind, count in (("features", 1), ("prototypes", 2)):
        out = train("fedproto", toys / kind, **GIVEN, observe=kind).folder
        for figure in embedding(out, perplexity=5):
            assert len([c for c in figure.axes[0].collections if len(c.get_offsets())]) == count


def test_mistakes(run, toys, tmp_path):
    once = train("fedproto", toys / "once", rounds=1, observe="features").folder
    for words, what in (
        ([str(once)], "observations of 1 round of trial 0, and an animation needs two"),
        ([str(run.folder), "--out", str(tmp_path / "a.png")], "an animation is a GIF"),
        ([str(run.folder), "--round", "1"], "embedding has no option --round"),
        ([str(run.folder), str(once)], "embedding shows one run"),
    ):
        out = [] if "--out" in words else ["--out", str(tmp_path / "b.gif")]
        found = CliRunner().invoke(app, ["plot", "embedding", *words, *out])
        assert found.exit_code == 2 and what in found.stderr
    assert not (tmp_path / "b.gif").exists()


@pytest.mark.slow
def test_the_report_has_the_animation_and_a_still_picture(run, toys):
    page = pf.report(run)
    still, moving = re.search(
        r'<picture><source srcset="data:image/png;base64,([^"]+)" media="print, '
        r'\(prefers-reduced-motion: reduce\)"><img class="photo" src="data:image/gif;base64,'
        r'([^"]+)" alt="An animation of 4 rounds',
        page,
    ).groups()
    assert Image.open(io.BytesIO(base64.b64decode(moving))).n_frames == 4
    assert Image.open(io.BytesIO(base64.b64decode(still))).format == "PNG"
    once = train("fedproto", toys / "single", rounds=1, observe="features").folder
    assert "<picture>" not in pf.report(once)
