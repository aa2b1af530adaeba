"""Tests of preparations that a run fits to the training rows of its clients, by any plugin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.data import fitting
from protofl.data.fitting import FittedSamples
from protofl.data.split import Split
from protofl.federation.plan.run_data import fitting_of
from protofl_workbench.recorded.exported import Exported, read_exported

Preparation, Fitted, Scaling = pf.datasets.Preparation, pf.datasets.Fitted, pf.datasets.Scaling


class Loudest:
    """Divides each channel of a series by the largest number of the training rows."""

    def __init__(self, channels):
        self.channels = channels

    def fit(self, x, rows):
        largest = [x[own].abs().amax((0, 2)) if len(own) else torch.ones(2) for own in rows]
        return [Scaling((0.0, 0.0), tuple(each.tolist())) for each in largest]

    def read(self, source, further=()):
        values = json.loads(source.read_text()) if isinstance(source, Path) else source
        x = torch.tensor([values[name] for name in self.channels], dtype=torch.float32)
        return x.movedim(0, 1), {name: np.array(values[name]) for name in further if name in values}


def recordings(count=60):
    """Return series of two channels, the second louder with each class."""
    chance = torch.Generator().manual_seed(1)
    y = torch.arange(count) % 3
    x = torch.randn(count, 2, 16, generator=chance)
    x[:, 1] *= 1 + 4 * y[:, None]
    return x, y


class Microphones:
    """Recordings of two channels, whose loudness each client has of its own."""

    fitting = Loudest

    class Config(pf.Config):
        """Options of microphones."""

    @pf.hookimpl
    def cache_key(self):
        """No file."""
        return ""

    @pf.hookimpl
    def decode(self):
        """Return the recordings."""
        x, y = recordings()
        fitted = Fitted({"channels": ["left", "right"]}, "2 channels")
        return pf.datasets.Dataset(
            x, y, len(y), ["low", "mid", "high"], preparation=Preparation(fitted=fitted)
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    result = pf.run(
        "local", models="cnn1d", dataset=Microphones, clients=3, partition="iid", rounds=1,
        keep="last", progress=False, out=folder / "run", data_dir=folder / "data",
    )  # fmt: skip
    return pf.load_run(result.folder)


@pytest.mark.slow
def test_a_plugin_fits_series_and_reads_them(run, tmp_path):
    raw, plan = recordings()[0], run.plan
    known = run.preparation
    assert known.fitted.dataset == plan.choices["dataset"].name and len(known.clients[0]) == 3
    assert known.fitted.package == ""  # a class of this program
    for client in range(3):
        largest = raw[plan.split(0).train(client)].abs().amax((0, 2))
        assert known.clients[0][client].scale == pytest.approx(largest.tolist())
        rows = plan.split(0).test(client)
        expected = raw[rows] / largest[:, None]
        assert torch.allclose(plan.samples(rows, False).inputs(), expected)
    test = raw[plan.split(0).test(1)]
    frame = {"right": test[:, 1].tolist(), "left": test[:, 0].tolist()}
    assert torch.equal(run.predict(1, frame), run.predict(1, test.numpy()))
    # The exported client has the statistics, so arrays need no plugin.
    client = read_exported(run.export(1, tmp_path / "client.pt2"), trust_pickle=True)
    assert client.preparation.scaling == known.clients[0][1] and client.preparation.clients == ()
    scores = run.scorer(1).scores(test)
    assert torch.allclose(client.scores(test), scores, atol=1e-5)
    np.save(tmp_path / "new.npy", test.numpy())
    assert torch.equal(client.samples_in(tmp_path / "new.npy"), test)


def test_a_missing_plugin_names_its_package(tmp_path):
    (tmp_path / "new.csv").write_text("left,right\n1,2\n")
    fitted = Fitted({}, "2 channels", dataset="microphones", package="protofl-microphones")
    sample = pf.datasets.SampleSpec((2,), "table")
    client = Exported(["a", "b"], sample, torch.float32, torch.clone, Preparation(fitted=fitted))
    with pytest.raises(pf.UsageError, match="data set 'microphones', which is not") as error:
        client.samples_in(tmp_path / "new.csv")
    assert error.value.near == "it is a plugin of protofl-microphones"
    assert error.value.do == "pip install protofl-microphones"
    client = replace(client, preparation=Preparation(fitted=replace(fitted, package="")))
    with pytest.raises(pf.UsageError, match="not installed") as error:
        client.samples_in(tmp_path / "new.csv")
    assert "a class of a program" in error.value.near and ".npy" in error.value.do


def test_a_form_of_another_version_is_named():
    with pytest.raises(pf.UsageError, match="does not know the recorded form") as error:
        fitting_of(Fitted({"colours": 3}, "none", dataset="csv", package="protofl"))
    assert "'colours'" in error.value.what and "version of protofl" in error.value.do


def test_a_plugin_without_fitting_is_an_error():
    with pytest.raises(pf.ProtoflError, match="its class has no `fitting`"):
        fitting_of(Fitted({}, "none", dataset="wine"))


def test_rows_are_prepared_in_blocks_by_their_own_client(tmp_path, monkeypatch):
    x, rows = recordings()[0], torch.arange(60)
    split = Split(torch.cat([rows[:40:2], rows[41:], rows[1:40:4], rows[40:41]]),
                  torch.tensor([0, 20, 39, 49, 50]))  # fmt: skip
    expected = FittedSamples(Loudest(["left", "right"]), x, split, tmp_path).x
    monkeypatch.setattr(fitting, "BLOCK", 7)
    found = FittedSamples(Loudest(["left", "right"]), x, split, tmp_path)
    assert torch.equal(found.x, expected)
    for client in range(2):
        own = torch.cat([split.train(client), split.test(client)])
        assert torch.equal(expected[own], found.scalings[client](x[own]))
    assert not expected[3:40:4].any()  # rows of no client


def test_what_is_recorded_of_it():
    whole = Preparation(Scaling((0,), (2,)), fitted=Fitted({"names": ("a", "b")}, "2 numbers"))
    again = Preparation.of_json(json.loads(json.dumps(whole.as_json())), "preparation.json")
    assert again == whole and again.fitted.form == {"names": ["a", "b"]}
    assert str(whole) == "2 numbers, by statistics of each client's training rows"
    pooled = replace(whole.fitted, per_client=False)
    assert str(Preparation(fitted=pooled)) == "2 numbers, by statistics of all training rows"
    with pytest.raises(pf.UsageError, match="statistics of a client's training rows"):
        Preparation(fitted=whole.fitted)(torch.zeros(1, 2))
    faults = Preparation(fitted=whole.fitted).faults(pf.datasets.SampleSpec((1, 8, 8), "image"))
    assert faults == ["its preparation fits scales, and its samples are images 1×8×8"]
