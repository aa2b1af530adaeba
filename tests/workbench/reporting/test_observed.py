"""Tests of the observations on a run's page."""

from __future__ import annotations

import shutil

import pytest
from reported_pages import read
from runtime_toys import install, train

import protofl as pf
from protofl_workbench.plots import observation_charts


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Train two rounds with observed prototypes and features."""
    folder = tmp_path_factory.mktemp("seen") / "run"
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        train("fedproto", folder, observe="prototypes,features", progress=False)
    return folder


def pictures_of(page, title):
    """Return {heading: text alternative of the picture} of a section."""
    (section,) = [s for s in page.all("section") if s.all("h2")[0].words == title]
    found = {}
    for figure in section.all("figure"):
        texts = [e["aria-label"] for e in figure.all("div") if e.get("role") == "img"]
        (text,) = texts + [e["alt"] for e in figure.all("img")]
        found[figure.all("h3")[0].words] = text.replace("\u00a0", " ")
    return found


def test_prototypes_and_features_are_shown(seen, monkeypatch):
    # Replace t-SNE, which takes seconds, by a projection.
    monkeypatch.setattr(observation_charts, "in_the_plane", lambda rows, near=30.0: rows[:, :2])
    found = pictures_of(read(pf.report(seen)), "Observations")
    assert {*found} == {
        "Margins over rounds",
        "Prototypes in the plane",
        "Features of test samples",
    }
    assert found["Features of test samples"].startswith("Features of test samples. t-SNE")


def test_a_run_that_observed_nothing_has_no_such_section(page):
    titles = [e.words for e in read(page).all("h2")]
    assert "Observations" not in titles and "Learning" in titles


@pytest.mark.slow
def test_a_damaged_observation_is_told(seen, tmp_path, monkeypatch):
    """It is an error; only pictures with too few observations are left out."""
    monkeypatch.setattr(observation_charts, "in_the_plane", lambda rows, near=30.0: rows[:, :2])
    run = tmp_path / "run"
    shutil.copytree(seen, run)
    first = min((run / "observed").glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(pf.UsageError, match=first.name):
        pf.report(run)


@pytest.mark.slow
def test_a_picture_without_enough_observations_is_left_out(seen, monkeypatch):
    monkeypatch.setattr(observation_charts, "FEWEST", 1000)
    found = pictures_of(read(pf.report(seen)), "Observations")
    assert {*found} == {"Margins over rounds"}
