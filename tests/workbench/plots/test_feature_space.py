"""Tests of figures computed from observations, against loops, and of their plots."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from runtime_toys import install, train

import protofl as pf
from protofl.system.files.series import Series
from protofl_workbench.plots import feature_space as figures
from protofl_workbench.plots.image_grids import images
from protofl_workbench.plots.matrices import SIMILARITIES as MEASURES
from protofl_workbench.plots.matrices import similarity
from protofl_workbench.plots.observation_charts import CHARTS
from protofl_workbench.plots.prototype_charts import margins
from protofl_workbench.plots.tsne_charts import features, prototypes
from protofl_workbench.recorded.observed import Observed, Prototypes

ROUNDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        out = tmp_path_factory.mktemp("figures") / "run"
        options = {"rounds": ROUNDS, "partition": "dirichlet", "participation": 0.75}
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


def same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert math.isnan(a) if b is None else a == pytest.approx(b, rel=1e-4), (found, wanted)


def by_class(rows, of, classes=4):
    """Apply `of` to the distances of each class to the other classes; None if there are none."""
    return [
        of([math.dist(rows[c], rows[o]) for o in rows if o != c])
        if c in rows and len(rows) > 1
        else None
        for c in range(classes)
    ]


def mean(values):
    return sum(values) / len(values)


def test_margins_and_distances_by_class(run):
    margins, between = figures.margins(run.observed), figures.inter_class(run.observed)
    rounds, within = figures.intra_class(run.observed)
    assert margins.rounds == between.rounds == rounds == [0, 1, 2]
    for n in rounds:
        clients, server = rows_of(run.observed.prototypes(n))
        same(margins.server[n], by_class(server, min))
        same(between.server[n], by_class(server, mean))
        for found, of, over in ((margins.clients, min, max), (between.clients, mean, mean)):
            each = [by_class(own, of) for own in clients.values()]
            pairs = [[own[c] for own in each if own[c] is not None] for c in range(4)]
            same(found[n], [over(values) if values else None for values in pairs])
        spread = []
        for c in range(4):
            own = [rows[c] for rows in clients.values() if c in rows]
            centre = [mean(numbers) for numbers in zip(*own, strict=True)]
            spread.append(mean([math.dist(row, centre) for row in own]) if own else None)
        same(within[n], spread)


def test_alignment_by_architecture(run):
    rounds, found = figures.alignment(run.observed)
    assert list(found) == ["dense8", "dense5"]
    for n in rounds:
        clients, server = rows_of(run.observed.prototypes(n))
        each = {
            c: mean([math.dist(row, server[k]) for k, row in own.items()])
            for c, own in clients.items()
        }
        for place, name in enumerate(found):
            own = [distance for client, distance in each.items() if client % 2 == place]
            same([found[name][n]], [mean(own) if own else None])


def test_drift(run):
    rounds, moved = figures.drift(run.observed)
    assert rounds == [1, 2]
    for place, n in enumerate(rounds):
        before, now = (rows_of(run.observed.prototypes(k))[1] for k in (n - 1, n))
        both = before.keys() & now.keys()
        same(moved[place], [math.dist(before[c], now[c]) if c in both else None for c in range(4)])


def test_rounds_in_which_nobody_answered(tmp_path):
    """Round 0 has only features. In round 1 only the server has prototypes."""
    kept = Series(tmp_path / "observed")
    rows, classes = torch.eye(3), torch.arange(3)
    server = {"server/prototypes": rows, "server/prototypes.classes": classes}
    clients = {"prototypes": 2 * rows, "classes": classes, "clients": 0 * classes}
    sent = {f"clients/3/{name}": values for name, values in clients.items()}
    mean = {f"server/global_{k.removeprefix('server/')}": v for k, v in server.items()}
    features = {"features": rows, "features.labels": classes, "features.clients": classes}
    for number, seen in enumerate((features, server, server | sent | mean | features)):
        kept.add((0, number), seen, {"architectures": ["a"], "classes": 3})
    observed = Observed(tmp_path)
    margins, between = figures.margins(observed), figures.inter_class(observed)
    assert margins.rounds == between.rounds == figures.intra_class(observed)[0] == [1, 2]
    side = math.sqrt(2)
    for found in (margins, between):
        assert found.server == pytest.approx(np.full((2, 3), side))
        assert found.clients[1] == pytest.approx(np.full(3, 2 * side))
        assert np.isnan(found.clients[0]).all()
    assert figures.alignment(observed)[0] == [1, 2]
    assert figures.drift(observed)[1].tolist() == [[0, 0, 0]]
    assert np.isnan(figures.drift(observed, name="global_prototypes")[1]).all()
    assert figures.margins(observed, round=-1).rounds == [2]
    for of in (figures.margins, figures.intra_class, figures.drift, figures.alignment):
        with pytest.raises(pf.UsageError, match="observed nothing of trial 1"):
            of(observed, 1)


def test_similarity_puts_architectures_together(run):
    seen = run.observed.prototypes()
    who, found = figures.similarity(seen, "pearson")
    assert sorted(who) == seen.who
    assert [c % 2 for c in who] == sorted(c % 2 for c in who)
    clients, _ = rows_of(seen)
    for a, one in enumerate(who):
        for b, other in enumerate(who):
            shared = sorted(clients[one].keys() & clients[other].keys())
            x, y = (np.array([clients[c][k] for k in shared]).ravel() for c in (one, other))
            wanted = np.corrcoef(x, y)[0, 1] if shared else None
            same([found[a, b]], [wanted])


@pytest.mark.slow
def test_the_plane_keeps_groups_and_is_repeatable():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), 15)
    rows = generator.normal(size=(45, 8)) + 30 * np.eye(8)[groups]
    plane = figures.in_the_plane(rows, seed=3)
    assert plane.shape == (45, 2)
    apart = np.linalg.norm(plane[:, None] - plane[None], axis=2) + 1e9 * np.eye(45)
    assert (groups[apart.argmin(1)] == groups).all()
    assert np.array_equal(plane, figures.in_the_plane(rows, seed=3))
    with pytest.raises(pf.UsageError, match="needs 4 points, got 3"):
        figures.in_the_plane(rows[:3])


def test_prototypes_of_several_widths_are_no_table():
    where = {"trial": 0, "round": 0, "architectures": ["a"], "num_classes": 2}
    empty = np.zeros(0, int)
    server = {"prototypes": (np.ones((1, 3)), np.array([1]))}
    seen = Prototypes(**where, rows=np.zeros((0, 5)), classes=empty, clients=empty, server=server)
    assert seen.table()[0].shape == (0, 2, 5)
    assert seen.server_table()[1].tolist() == [False, True]
    assert figures.distances_to_server(seen).tolist() == []


# --- plots ----------------------------------------------------------------------------------------


def drawn(figure):
    """Draw a figure, check that nothing warns, and return its axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()
    return figure.axes


def test_a_picture_of_margins_has_a_line_for_each_class(run):
    found = figures.margins(run.observed)
    both = np.stack([found.clients[-1], found.server[-1]])
    known = np.isfinite(both).all(0)
    (axes,) = drawn(margins(run))
    lines = [line.get_ydata() for line in axes.lines]
    assert np.allclose(np.stack(lines, 1), both[:, known] / both[:, known].max())


@pytest.mark.parametrize(
    ("draw", "label", "count"),
    [("margin-curves", "margin", 2), ("distances", "distance of prototypes", 3),
     ("alignment", "distance to the server's prototypes", 2), ("drift", "distance moved", 5)],
)  # fmt: skip
def test_pictures_over_rounds(run, draw, label, count):
    (axes,) = drawn(CHARTS[draw](run.folder))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", label)
    assert len(axes.lines) == count
    if draw == "alignment":
        values = [*figures.alignment(run.observed)[1].values()]
        kept = [own[np.isfinite(own)] for own in values]
        assert all(np.allclose(a.get_ydata(), b) for a, b in zip(axes.lines, kept, strict=True))


@pytest.mark.parametrize("kind", MEASURES)
def test_a_picture_of_similarities(run, kind):
    axes, bar = drawn(similarity(run, kind))
    shown = axes.images[0].get_array()
    wanted = figures.similarity(run.observed.prototypes(), kind)
    assert np.allclose(shown.filled(np.nan), wanted[1], equal_nan=True)
    assert [text.get_text() for text in axes.get_xticklabels()] == [str(c) for c in wanted[0]]
    assert bar.get_ylabel()


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


def test_what_cannot_be_drawn(run):
    with pytest.raises(pf.UsageError, match="unknown measure of similarity 'cosine'"):
        similarity(run, "cosine")
    with pytest.raises(pf.UsageError, match="has observed no images"):
        images(run, [0])
