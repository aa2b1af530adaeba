"""Tests of quantise: types, scales and stochastic rounding."""

from __future__ import annotations

import pytest
import torch
from coded_payloads import Scripted, rows_of, send

import protofl as pf
from protofl.testing import toy as toyfed
from protofl_plugins.payload_transforms.quantise import dequantise_int8, quantise_int8
from protofl_plugins.payload_transforms.top_k import largest_entries, with_entries

NAME = "quantise"


@pytest.fixture
def made(tmp_path):
    def make(transforms=(NAME,), **options):
        plan = toyfed.make_plan(
            "scripted",
            tmp_path,
            transforms=list(transforms),
            options={NAME: options} if options else {},
            extra={("method", "scripted"): Scripted},
        )
        return toyfed.Toy(plan)

    return make


@pytest.mark.parametrize(("to", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_16_bits(made, to, dtype):
    sent = rows_of(0, 2)
    wire, seen = send(made(to=to), sent)
    assert set(wire) == set(sent) and wire["prototypes"].dtype == dtype
    assert torch.equal(seen["prototypes"], sent["prototypes"].to(dtype).float())
    assert torch.equal(seen["counts"], sent["counts"])


def test_8_bits_with_a_scale_a_row(made):
    sent = rows_of(0, 2)
    sent["prototypes"][1] *= 1000
    wire, seen = send(made(), sent)
    assert wire["prototypes"].dtype == torch.int8 and wire["prototypes"].shape == (2, 40)
    for n, row in enumerate(sent["prototypes"].tolist()):
        scale = max(map(abs, row)) / 127
        assert wire["prototypes.scale"][n] == pytest.approx(scale)
        for v, got in zip(row, seen["prototypes"][n].tolist(), strict=True):
            assert abs(v - got) <= scale / 2 * 1.0001


def test_8_bits_with_a_scale_a_tensor(made):
    sent = rows_of(0, 2)
    wire, seen = send(made(per="tensor"), sent)
    assert wire["prototypes.scale"].shape == (1,)
    step = float(sent["prototypes"].abs().max()) / 127
    assert (seen["prototypes"] - sent["prototypes"]).abs().max() <= step / 2 * 1.0001


def test_weights_have_a_scale_for_each_output(made):
    weights = torch.randn(8, 3, 5, 5) * torch.logspace(-3, 3, 8)[:, None, None, None]
    wire, seen = send(made(), {"model/w": weights})
    assert wire["model/w"].shape == weights.shape and wire["model/w.scale"].shape == (8,)
    for one, other in zip(weights, seen["model/w"], strict=True):
        assert (one - other).abs().max() <= one.abs().max() / 127 / 2 * 1.0001


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": torch.rand(5, 1)},  # a number with a scale is larger than a number
        {"x": torch.tensor(0.5)},
        {"x": torch.rand(0, 40)},
        {"model/buffer/running_var": torch.rand(40)},
        {"samples": torch.arange(40)},
    ],
)
def test_what_is_sent_as_it_is(made, tensors):
    wire, seen = send(made(), tensors)
    ((name, tensor),) = tensors.items()
    assert set(wire) == {name} and torch.equal(seen[name], tensor)


def test_other_types_come_back_as_what_they_were(made):
    x = torch.rand(3, 40)
    _, seen = send(made(), {"a": x.double(), "b": x.half(), "c": x.bfloat16()})
    assert [seen[name].dtype for name in "abc"] == [torch.float64, torch.float16, torch.bfloat16]
    wire, seen = send(made(to="fp16"), {"a": x.half()})  # already 16 bits
    assert torch.equal(wire["a"], x.half()) and torch.equal(seen["a"], x.half())


@pytest.mark.parametrize("to", ["int8", "fp16", "bf16"])
def test_chance_is_the_clients_and_the_rounds_alone(made, to):
    sent, options = rows_of(0, 2), {"to": to, "stochastic": True}

    def wire(**given):
        return send(made(**options), sent, **given)[0]["prototypes"].float()

    assert torch.equal(wire(), wire())
    for other in ({"client": 1}, {"round": 1}, {"direction": "download"}):
        assert not torch.equal(wire(), wire(**other)), other
    down = {"direction": "download"}
    assert torch.equal(wire(**down), wire(client=1, **down))  # one broadcast for all clients
    plain = send(made(to=to), sent)[0]["prototypes"].float()
    assert not torch.equal(wire(), plain) and (wire() - plain).abs().max() <= max(1.0, 0.02)


def test_torchs_own_generator_is_left_alone(made):
    before = torch.get_rng_state()
    send(made(stochastic=True), rows_of(0, 2))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("direction", "sides"),
    [("up", {"upload"}), ("down", {"download"}), ("both", {"upload", "download"})],
)
def test_direction(made, direction, sides):
    found = made(direction=direction)
    for side in ("upload", "download"):
        wire, _ = send(found, rows_of(0, 1), direction=side)
        assert ("prototypes.scale" in wire) == (side in sides)


def test_behind_top_k_only_the_kept_numbers_are_quantised(made):
    sent = rows_of(0, 2)
    wire, seen = send(made((("top-k"), NAME)), sent)
    assert wire["prototypes"].dtype == torch.int8 and wire["prototypes"].shape == (2, 4)
    entries, places = largest_entries(sent["prototypes"], 4)
    q, scale = quantise_int8(entries)
    expected = with_entries(dequantise_int8(q, scale), places, 40)
    assert torch.equal(seen["prototypes"], expected)


def test_before_top_k_there_are_no_numbers_left_for_it(made):
    """Top-k leaves 8-bit integers as they are, so the order of --with matters."""
    wire, _ = send(made((NAME, "top-k")), rows_of(0, 2))
    assert "prototypes.indices" not in wire


def test_an_impossible_type_is_refused(made):
    with pytest.raises(pf.UsageError, match="to='int4' is not possible"):
        made(to="int4")
