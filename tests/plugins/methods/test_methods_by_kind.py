"""Tests of methods on series, token sequences, tables, and images that are not square."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from slowness import quick

import protofl as pf
from protofl.backends import Plan
from protofl.testing import toy as toyfed

SAMPLES = {
    "table": ("mlp", pf.datasets.SampleSpec((5,), "table")),
    "series": ("cnn1d", pf.datasets.SampleSpec((2, 24), "series")),
    "tokens": ("text", pf.datasets.SampleSpec((10,), "tokens", vocabulary=40, padding=0)),
    "oblong images": ("cnn4", pf.datasets.SampleSpec((1, 28, 40))),
}
PAIRS = [("fedproto", "series"), ("fedtgp", "table"), ("fedsa", "tokens"), ("fedgen", "series")]
PAIRS += [("fml", "tokens"), ("fedproto", "oblong images")]
"""Few pairs suffice: methods see models and features, and features are alike for all kinds."""
COUNTS = [[8, 7, 0], [0, 9, 5], [6, 0, 8], [5, 5, 5]]


def plan(method, kind, folder, **options):
    models, sample = SAMPLES[kind]
    split = "public" not in options
    data = toyfed.make_data(sample, COUNTS, noise=0.3, given_split=split)
    given = {"feature_dim": 16, "lr": 0.05, "backend": "local", **options}
    return toyfed.make_plan(method, folder, data, models, **given)


@pytest.mark.parametrize(("method", "kind"), PAIRS)
def test_two_rounds(method, kind, tmp_path):
    found = toyfed.Toy(plan(method, kind, tmp_path))
    lines = found.rounds(2)
    assert all(torch.isfinite(torch.tensor(line["train_loss"])) for line in lines)
    assert found.plan.info.sample.kind == SAMPLES[kind][1].kind
    sizes = {len(list(found.client(i).model.parameters())) for i in range(4)}
    assert len(sizes) > 1 or kind == "oblong images"  # the clients' models differ


@pytest.mark.parametrize(("method", "kind"), [("fedpkd", "tokens"), ("feddf", "table")])
def test_public_samples(method, kind, tmp_path):
    found = toyfed.Toy(plan(method, kind, tmp_path, public=12, partition="iid", clients=3))
    found.rounds(2)
    public = found.client(0).public
    assert public is not None and public.inputs().shape == (12, *SAMPLES[kind][1].shape)


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(["table", "series", "tokens"], "table"))
def test_clients_learn(kind, tmp_path):
    found = toyfed.Toy(plan("fedproto", kind, tmp_path, optimizer="adam", lr=0.01, local_epochs=2))
    lines = found.rounds(8)
    assert lines[-1]["train_loss"] < 0.6 * lines[0]["train_loss"]
    assert lines[-1]["test_accuracy"] > 0.7


@pytest.mark.parametrize("kind", ["table", "series", "tokens"])
def test_a_generator_of_images_has_nothing_to_make(kind, tmp_path):
    with pytest.raises(pf.UsageError, match="cannot run with") as error:
        plan("fedktl", kind, tmp_path)
    assert "generated images" in error.value.near and str(SAMPLES[kind][1]) in error.value.near


@pytest.mark.parametrize("kind", ["table", "series", "tokens"])
def test_only_images_are_shifted_and_flipped(kind, tmp_path):
    with pytest.raises(pf.UsageError, match="--augment shifts and flips images"):
        plan("fedproto", kind, tmp_path, augment=True)


@pytest.mark.parametrize(
    ("kind", "models", "fit"),
    [("table", "cnn4", "mlp"), ("series", "mlp", "cnn1d"), ("tokens", "htfe8", "text")],
)
def test_models_that_do_not_fit_are_refused_with_those_that_do(kind, models, fit, tmp_path):
    data = toyfed.make_data(SAMPLES[kind][1], COUNTS)
    with pytest.raises(pf.UsageError, match=f"{models} takes ") as error:
        toyfed.make_plan("fedproto", tmp_path, data, models)
    assert str(data.sample) in error.value.what
    assert fit in error.value.near.partition(": ")[2].split(", ") and "--models" in error.value.do
    assert "--set dataset.kind=" in error.value.do


def test_one_net_for_all_clients_is_named_where_models_are_averaged(tmp_path):
    with pytest.raises(pf.UsageError) as error:
        plan("fedavg", "table", tmp_path)
    assert "--set models.only=mlp1" in error.value.near
    found = toyfed.Toy(
        plan("fedavg", "table", tmp_path, options={"models": {"only": "mlp1"}}, rounds=1)
    )
    found.rounds(1)
    assert found.plan.info.homogeneous


def test_public_samples_of_another_kind_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", x_train=np.zeros((6, 9)), y_train=np.arange(6) % 3)
    with pytest.raises(pf.UsageError, match="holds rows of 9 numbers, the data set rows of 5"):
        plan("fedpkd", "table", tmp_path, public=f"npz:{tmp_path}/own.npz")


def test_public_rows_are_standardised_as_the_data_are(tmp_path):
    x = load_wine().data[:20]
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(20) % 3)
    options = {"dataset": "wine", "models": "mlp", "clients": 3, "partition": "iid"}
    made = Plan.make(
        {"method": "fedpkd", **options, "public": f"npz:{tmp_path}/own.npz"},
        report=lambda line: None,
    )
    assert torch.equal(made.public_data.x, made.data.x[:20])


def test_public_token_ids_share_the_vocabulary(tmp_path):
    np.savez(tmp_path / "own.npz", x_train=np.full((6, 10), 3), y_train=np.arange(6) % 3)
    own = f"npz:{tmp_path}/own.npz"
    made = plan("feddf", "tokens", tmp_path, public=own, partition="iid", clients=3)
    assert made.public_data.sample == made.data.sample
