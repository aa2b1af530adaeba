"""Tests of margins against loops, and of the plots of observations."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from runtime_toys import install, train

import protofl as pf
from protofl.system.files.series import Series
from protofl_workbench.plots.image_grids import images
from protofl_workbench.plots.observation_charts import (
    features,
    in_the_plane,
    margins,
    margins_by_class,
    prototypes,
)
from protofl_workbench.recorded.observed import Observed, Prototypes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        out = tmp_path_factory.mktemp("figures") / "run"
        options = {"rounds": 3, "partition": "dirichlet", "participation": 0.75}
        options |= {"observe": "prototypes,features", "observe_samples": 5}
        train("fedproto", out, **options)
        return pf.load_run(out)


def rows_of(seen):
    """Return {client: {class: row}} and the server's {class: row}, with rows as lists."""
    clients = {}
    for client, c, row in zip(seen.clients, seen.classes, seen.rows.tolist(), strict=True):
        clients.setdefault(int(client), {})[int(c)] = row
    rows, classes = seen.server["prototypes"]
    return clients, dict(zip(classes.tolist(), rows.tolist(), strict=True))


def margin(rows, classes=4):
    """Return the distance of each class to the nearest other class; None if there is none."""
    return [
        min(math.dist(rows[c], rows[o]) for o in rows if o != c)
        if c in rows and len(rows) > 1
        else None
        for c in range(classes)
    ]


def same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert math.isnan(a) if b is None else a == pytest.approx(b, rel=1e-4), (found, wanted)


def test_margins_by_class(run):
    rounds, of_clients, of_server = margins_by_class(run.observed)
    assert rounds == [0, 1, 2]
    for n in rounds:
        clients, server = rows_of(run.observed.prototypes(n))
        same(of_server[n], margin(server))
        each = [margin(own) for own in clients.values()]
        pairs = [[own[c] for own in each if own[c] is not None] for c in range(4)]
        same(of_clients[n], [max(values) if values else None for values in pairs])


def test_rounds_in_which_nobody_answered(tmp_path):
    """Round 0 has only features. In round 1 only the server has prototypes."""
    kept = Series(tmp_path / "observed")
    rows, classes = torch.eye(3), torch.arange(3)
    server = {"server/prototypes": rows, "server/prototypes.classes": classes}
    clients = {"prototypes": 2 * rows, "classes": classes, "clients": 0 * classes}
    sent = {f"clients/3/{name}": values for name, values in clients.items()}
    seen = {"features": rows, "features.labels": classes, "features.clients": classes}
    for number, one in enumerate((seen, server, server | sent | seen)):
        kept.add((0, number), one, {"architectures": ["a"], "classes": 3})
    observed = Observed(tmp_path)
    rounds, of_clients, of_server = margins_by_class(observed)
    assert rounds == [1, 2]
    side = math.sqrt(2)
    assert of_server == pytest.approx(np.full((2, 3), side))
    assert of_clients[1] == pytest.approx(np.full(3, 2 * side))
    assert np.isnan(of_clients[0]).all()
    with pytest.raises(pf.UsageError, match="observed nothing of trial 1"):
        margins_by_class(observed, 1)


@pytest.mark.slow
def test_the_plane_keeps_groups_and_is_repeatable():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), 15)
    rows = generator.normal(size=(45, 8)) + 30 * np.eye(8)[groups]
    plane = in_the_plane(rows)
    assert plane.shape == (45, 2)
    apart = np.linalg.norm(plane[:, None] - plane[None], axis=2) + 1e9 * np.eye(45)
    assert (groups[apart.argmin(1)] == groups).all()
    assert np.array_equal(plane, in_the_plane(rows))
    with pytest.raises(pf.UsageError, match="needs 4 points, got 3"):
        in_the_plane(rows[:3])


def test_prototypes_of_several_widths_are_no_table():
    where = {"trial": 0, "round": 0, "architectures": ["a"], "num_classes": 2}
    empty = np.zeros(0, int)
    server = {"prototypes": (np.ones((1, 3)), np.array([1]))}
    seen = Prototypes(**where, rows=np.zeros((0, 5)), classes=empty, clients=empty, server=server)
    assert seen.table()[0].shape == (0, 2, 5)
    assert seen.server_table()[1].tolist() == [False, True]


# --- plots ----------------------------------------------------------------------------------------


def drawn(figure):
    """Draw a figure, check that nothing warns, and return its axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()
    return figure.axes


def test_margins_are_drawn_as_means_over_classes(run):
    (axes,) = drawn(margins(run.folder))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "margin")
    _, *tables = margins_by_class(run.observed)
    for line, table in zip(axes.lines, tables, strict=True):
        assert line.get_ydata() == pytest.approx(np.nanmean(table, axis=1))


def test_prototypes_in_the_plane(run):
    seen = run.observed.prototypes()
    (axes,) = drawn(prototypes(run, perplexity=5))
    circles, triangles = axes.collections
    assert len(circles.get_offsets()) == len(seen.rows)
    assert len(triangles.get_offsets()) == len(seen.server["prototypes"][0])
    names = sorted(text.get_text() for text in axes.texts)
    assert names == sorted("abcd"[c] for c in seen.server["prototypes"][1])


def test_features_in_the_plane(run):
    seen = run.observed.features()
    (axes,) = drawn(features(run))
    assert len(axes.collections[0].get_offsets()) == len(seen.rows)
    colours = {tuple(c) for c in axes.collections[0].get_facecolors()}
    assert len(colours) == len({*seen.labels.tolist()})


def test_images_by_round_and_class(run, monkeypatch):
    from protofl_workbench.recorded.observed import Images, Observed

    def seen(self, round=-1, trial=0):
        pictures = np.full((2, 1, 3, 3), 40 * (round + 1), np.uint8)
        return Images(trial, round, ["a"], 4, pictures, np.array([0, 3]))

    monkeypatch.setattr(Observed, "images", seen)
    monkeypatch.setattr(Observed, "kinds", lambda *of: ["images"])
    axes = drawn(images(run))
    assert [a.get_ylabel() for a in axes[::2]] == ["round 1", "round 2", "round 3"]
    assert [a.get_title() for a in axes[:2]] == ["a", "d"]
    assert [int(a.images[0].get_array()[0, 0]) for a in axes[::2]] == [40, 80, 120]


def test_images_that_were_not_observed(run):
    with pytest.raises(pf.UsageError, match="has observed no images"):
        images(run, [0])
