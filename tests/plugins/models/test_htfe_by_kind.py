"""Tests of HtFLlib's groups for tokens, series and tables: htfe-txt-X, htfe-sen-X, htfe-mlp-4."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from slowness import quick
from torch import nn

import protofl as pf
from protofl.hooks.models.flops import cost, profile
from protofl.testing import toy as toyfed
from protofl_plugins.models import htfe_sensors as sensors
from protofl_plugins.models import htfe_text as text
from protofl_plugins.models.mlp import HtFEMLP4

K, V, L, C = 32, 50, 12, 3
TEXT = pf.datasets.SampleSpec((L,), "tokens", vocabulary=V, padding=0)
SERIES = pf.datasets.SampleSpec((9, 128), "series")
TABLE = pf.datasets.SampleSpec((13,), "table")


def transformers(pairs):
    return [f"transformer-h{heads}-l{layers}" for heads, layers in pairs]


ORDERS = {
    "htfe-txt-2": (text.HtFETxt2, ["fasttext", "logistic"]),
    "htfe-txt-4": (text.HtFETxt4, ["fasttext", "logistic", "lstm", "bilstm"]),
    "htfe-txt-5-1": (text.HtFETxt51, transformers([(8, 1), (8, 2), (8, 4), (8, 8), (8, 16)])),
    "htfe-txt-5-2": (text.HtFETxt52, transformers([(1, 4), (2, 4), (4, 4), (8, 4), (16, 4)])),
    "htfe-txt-5-3": (text.HtFETxt53, transformers([(1, 1), (2, 2), (4, 4), (8, 8), (16, 16)])),
    "htfe-txt-6": (
        text.HtFETxt6,
        ["fasttext", "lstm", "bilstm", "transformer-h8-l2", "logistic", "gru"],
    ),
    "htfe-sen-2": (sensors.HtFESen2, ["harcnn-s1", "harcnn-s2"]),
    "htfe-sen-3": (sensors.HtFESen3, ["harcnn-s1", "harcnn-s2", "harcnn-s3"]),
    "htfe-sen-5": (
        sensors.HtFESen5,
        ["harcnn-s1", "harcnn-s2", "harcnn-s3", "harcnn1-s1", "harcnn3-s1"],
    ),
    "htfe-sen-8": (
        sensors.HtFESen8,
        [
            *("harcnn-s1", "harcnn-s2", "harcnn-s3", "harcnn1-s1", "harcnn1-s2", "harcnn1-s3"),
            *("harcnn3-s1", "harcnn3-s2"),
        ],
    ),
    "htfe-mlp-4": (
        HtFEMLP4,
        ["mlp-100", "mlp-500-100", "mlp-1000-500-100", "mlp-1000-500-200-100"],
    ),
}
SAMPLES = {"txt": TEXT, "sen": SERIES, "mlp": TABLE}


def sample_of(name):
    return SAMPLES[name.split("-")[1]]


def members(group, **options):
    return group().architectures(config=group.Config(**options))


def net(group, name, sample=TEXT, width=K, **options):
    torch.manual_seed(0)
    (architecture,) = members(group, only=name, **options)
    return architecture.build(sample, C, width)


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_the_nets(name):
    group, names = ORDERS[name]
    assert [a.name for a in members(group)] == names
    offered = [a.name for a in group().server_architectures(config=group.Config())]
    assert {group.server_architecture, group.auxiliary_architecture} <= {*offered}


@pytest.mark.parametrize("name", ORDERS)
def test_features_are_k_wide(name):
    group, _ = ORDERS[name]
    for architecture in members(group):
        if architecture.name.endswith(("l8", "l16")):
            continue  # the same, but deeper
        model = architecture.build(sample_of(name), C, K)
        x = toyfed.random_batch(sample_of(name), 5)
        assert model.features(x).shape == (5, K) and model(x).shape == (5, C)
        if name.startswith("htfe-txt"):
            assert model.extractor(x).shape == (5, K)  # no pool in between


NETS = ["logistic", "fasttext", "lstm", "gru", "bilstm", "transformer-h8-l2"]

PUBLISHED = {
    "logistic": 1_026_052,
    "fasttext": 1_288_708,
    "lstm": 5_228_548,
    "gru": 4_177_924,
    "bilstm": 5_753_348,
    "transformer-h8-l1": 4_178_436,
    "transformer-h8-l2": 7_330_820,
    "transformer-h8-l4": 13_635_588,
    "transformer-h8-l8": 26_245_124,
    "transformer-h8-l16": 51_464_196,
}
"""Parameters of HtFLlib's nets (commit e959261) with V = 2000, C = 4 and K = 512."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_text_nets_are_those_of_htfllib(name):
    group = text.HtFETxt51 if name in ORDERS["htfe-txt-5-1"][1] else text.HtFETxt6
    sample = pf.datasets.SampleSpec((200,), "tokens", vocabulary=2000, padding=0)
    (architecture,) = members(group, only=name)
    with torch.device("meta"):
        assert count(architecture.build(sample, 4, group.feature_dim)) == PUBLISHED[name]


def test_parameters_of_sensor_nets_and_the_numbers_before_the_pool():
    def conv(before, after, length):
        return before * after * length + after

    two, three = conv(9, 32, 9) + conv(32, 64, 9), conv(9, 32, 5) + conv(32, 64, 5)
    expected = {
        "harcnn-s1": (two, 64 * 26),
        "harcnn-s2": (two, 64 * 5),
        "harcnn-s3": (two, 64 * 2),
        "harcnn1-s1": (conv(9, 32, 9), 32 * 60),
        "harcnn1-s2": (conv(9, 32, 9), 32 * 30),
        "harcnn1-s3": (conv(9, 32, 9), 32 * 20),
        "harcnn3-s1": (three + conv(64, 128, 5), 128 * 12),
        "harcnn3-s2": (three + conv(64, 128, 5), 128 * 1),
    }
    for name, (parameters, flat) in expected.items():
        model = net(sensors.HtFESen8, name, SERIES)
        assert count(model) == parameters + K * C + C
        assert model.extractor(torch.zeros(2, 9, 128)).shape == (2, flat)


def test_parameters_of_perceptrons():
    widths = [(), (500,), (1000, 500), (1000, 500, 200)]
    for architecture, hidden in zip(members(HtFEMLP4), widths, strict=True):
        expected = sum(a * b + b for a, b in pairwise((13, *hidden, 100)))
        model = architecture.build(TABLE, C, HtFEMLP4.feature_dim)
        assert count(model) == expected + 512 * C + C  # the pool spreads 100 features to 512
        x = torch.randn(3, 13)
        own = model.extractor(x)
        assert torch.equal(own, model.features(x)[:, torch.arange(100) * 512 // 100 + 3])


@pytest.mark.parametrize("shape", [(1, 5), (3, 64), (27, 256), (9, 77)])
def test_series_of_any_channels_and_length(shape):
    sample = pf.datasets.SampleSpec(shape, "series")
    for architecture in members(sensors.HtFESen8):
        model = architecture.build(sample, C, K)
        assert torch.isfinite(model(torch.randn(2, *shape))).all()


def test_a_sensor_net_in_two_dimensions():
    # HtFLlib stores series as images of one row.
    model = net(sensors.HtFESen2, "harcnn-s2", SERIES).double()
    x = torch.randn(4, 9, 128, dtype=torch.double)
    z = x.unsqueeze(2)
    for layer in (model.extractor[0], model.extractor[3]):
        z = nn.functional.conv2d(z, layer.weight.unsqueeze(2), layer.bias, stride=(1, 2)).relu()
        z = nn.functional.max_pool2d(z, (1, 2), stride=2)
    torch.testing.assert_close(model.extractor(x), z.flatten(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [*NETS, "transformer-h1-l1"])
@pytest.mark.parametrize("padding", [0, 7])
def test_padding_changes_no_feature(name, padding):
    group = text.HtFETxt53 if name.endswith("l1") else text.HtFETxt6
    long = pf.datasets.SampleSpec((L,), "tokens", V, padding)
    model = net(group, name, long).double().eval()
    x = toyfed.random_batch(pf.datasets.SampleSpec((6,), "tokens", V, padding), 8)
    x[x == padding] = 1
    filled = torch.full((8, L), padding)
    filled[:, :6] = x
    torch.testing.assert_close(model.features(filled), model.features(x), rtol=1e-9, atol=1e-9)
    other = filled.clone()
    other[:, 5] = (x[:, 5] + 1) % V
    other[other[:, 5] == padding, 5] = 2
    assert not torch.allclose(
        model.features(filled), model.features(other)
    )  # the last token counts
    nothing = torch.full((2, L), padding)
    model.train()
    loss = model(nothing).square().sum()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def copy_layer(own, other):
    """Copy our layer's weights into torch's."""
    attention = other.self_attn
    for mine, theirs in (
        (own.projections, (attention.in_proj_weight, attention.in_proj_bias)),
        (own.out, (attention.out_proj.weight, attention.out_proj.bias)),
        (own.feed[0], (other.linear1.weight, other.linear1.bias)),
        (own.feed[3], (other.linear2.weight, other.linear2.bias)),
        (own.norms[0], (other.norm1.weight, other.norm1.bias)),
        (own.norms[1], (other.norm2.weight, other.norm2.bias)),
    ):
        theirs[0].copy_(mine.weight)
        theirs[1].copy_(mine.bias)


def test_a_transformer_layer_is_that_of_torch():
    torch.manual_seed(0)
    own = text.Layer(4, 0.0, K).double()
    other = nn.TransformerEncoderLayer(K, 4, 2048, 0.0, batch_first=True).double()
    with torch.no_grad():
        for p in own.parameters():
            p.normal_(std=0.3)
        copy_layer(own, other)
    x = torch.randn(5, L, K, dtype=torch.double)
    real = (torch.arange(L) < torch.tensor([12, 1, 5, 7, 3]).unsqueeze(1)).double()
    expected = other(x, src_key_padding_mask=real == 0)
    found = own(x, real)
    torch.testing.assert_close(found[real > 0], expected[real > 0], rtol=1e-9, atol=1e-9)


def test_positions_against_the_formula():
    found = text.positions(7, 5)
    for p in range(7):
        for k in range(5):
            angle = torch.tensor(p / 10_000 ** (2 * (k // 2) / 5))
            assert torch.isclose(found[p, k], angle.cos() if k % 2 else angle.sin(), atol=1e-6)


def test_bilstm_against_one_text_after_another():
    model = net(text.HtFETxt4, "bilstm").double().eval().extractor
    both = nn.LSTM(K, K, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for name, value in model.there.named_parameters():
            getattr(both, name).copy_(value)
        for name, value in model.back.named_parameters():
            getattr(both, f"{name}_reverse").copy_(value)
    x = toyfed.random_batch(TEXT, 6)
    x[x == 0] = 1
    sizes = [12, 1, 5, 7, 3, 11]
    for row, size in enumerate(sizes):
        x[row, size:] = 0
    found = model(x)
    for row, size in enumerate(sizes):
        states = both(model.embedding(x[row : row + 1, :size]))[0][0]
        torch.testing.assert_close(found[row], model.last(states[-1]), rtol=1e-9, atol=1e-9)


def test_a_transformer_against_torch():
    """Embeddings × √K, positions, layers of 2048 units, features of the first position."""
    model = net(text.HtFETxt51, "transformer-h8-l2").double().eval().extractor
    layer = nn.TransformerEncoderLayer(K, 8, 2048, 0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    with torch.no_grad():
        for own, other in zip(model.layers, encoder.layers, strict=True):
            copy_layer(own, other)
    x = toyfed.random_batch(TEXT, 6)
    x[0, 3:] = 0
    z = model.embedding(x) * K**0.5 + text.positions(L, K)
    expected = encoder(z, src_key_padding_mask=x == 0)[:, 0]
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)
    rates = {module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.1}


def test_dropout_is_left_out_on_demand():
    for architecture in members(text.HtFETxt6, dropout=False):
        model = architecture.build(TEXT, C, K)
        x = toyfed.random_batch(TEXT, 4)
        assert torch.equal(model(x), model.eval()(x))
    model = net(text.HtFETxt6, "transformer-h8-l2")
    assert not torch.equal(model(x), model(x))


def test_heads_divide_the_width():
    with pytest.raises(pf.UsageError, match="--feature-dim 100 does not divide into the 8") as e:
        net(text.HtFETxt6, "transformer-h8-l2", width=100)
    assert e.value.near.endswith(": 96")


@pytest.mark.parametrize("name", ["htfe-sen-8", "htfe-mlp-4", "htfe-txt-2"])
def test_the_cost_is_half_the_flops(name):
    group, _ = ORDERS[name]
    for architecture in members(group):
        sizes = (sample_of(name), C, K)
        assert 2 * cost(architecture, *sizes) == profile(architecture, *sizes)[1], architecture


COUNTS_OF_CLIENTS = [[5, 4, 0], [0, 6, 4], [4, 0, 5], [3, 3, 3]]


def plan(name, folder, **options):
    sample = {"sen": pf.datasets.SampleSpec((3, 30), "series")}.get(name[5:8], sample_of(name))
    data = toyfed.make_data(sample, COUNTS_OF_CLIENTS, noise=0.3)
    given = {"feature_dim": 16, "lr": 0.05, "backend": "local", **options}
    return toyfed.make_plan("fedproto", folder, data, name, **given)


@pytest.mark.parametrize(
    ("name", "net"),
    quick(
        [
            *(("htfe-txt-6", net) for net in NETS),
            *(("htfe-txt-5-3", name) for name in transformers([(1, 1), (16, 16)])),
            *(("htfe-sen-8", net) for net in ORDERS["htfe-sen-8"][1]),
            *(("htfe-mlp-4", net) for net in ORDERS["htfe-mlp-4"][1]),
        ],
        *(("htfe-txt-6", net) for net in ("fasttext", "gru")),
        *(("htfe-txt-5-3", name) for name in transformers([(1, 1)])),
        *(("htfe-sen-8", net) for net in ("harcnn-s1", "harcnn3-s2")),
        ("htfe-mlp-4", "mlp-100"),
    ),
)
def test_a_round(name, net, tmp_path):
    found = toyfed.Toy(plan(name, tmp_path, options={"models": {"only": net}}))
    before = {k: v.clone() for k, v in found.client(0).model.named_parameters()}
    (line,) = found.rounds(1)
    assert torch.isfinite(torch.tensor(line["train_loss"]))
    after = dict(found.client(0).model.named_parameters())
    # The reverse units of bilstm start at the last token, so they have no recurrence.
    still = ("norms", "extractor.back.weight_hh")
    assert all(
        not torch.equal(before[k], after[k]) for k in before if not any(s in k for s in still)
    )
