"""Tests of the sizes of payloads on methods' pages: formulas against bytes that runs count."""

from __future__ import annotations

import re
import struct
from math import prod

import pytest
import torch
from payload_sizes import (
    DIRECTIONS,
    ROUNDS,
    SIZES,
    bytes_formula,
    declaration,
    declared_sizes,
    fitted,
    measure_payloads,
    toy_federation,
)
from slowness import KINDS, quick
from toy_runs import PUBLIC_SAMPLES, toy_runs

from protofl import Key
from protofl.hooks.discovery.registry import Registry
from protofl.testing import toy
from protofl.testing.donors import methods_to_run

METHODS = methods_to_run(Registry())
C_WIDE = {"fedktl"}
"""Methods whose features have the width C: prototypes are outputs of the classifier."""


@pytest.mark.parametrize(
    ("shape", "formula"),
    [
        ("[n, K]", "4·n·K"),
        ("[n] int", "8·n"),
        ("[] int", "8"),
        ("[] bool", "1"),
        ("[]", "4"),
        ("[N, C]", "4·N·C"),
        ("[n, channels, H, W]", "4·n·channels·H·W"),
        ("[C, K] or [C, C]", "4·C·K or 4·C·C"),
        ("as the parameter", "4 · parameters"),
        ("as the buffer", "4 · buffers"),
        ("", ""),
    ],
)
def test_formulas_of_shapes(shape, formula):
    assert bytes_formula(shape) == formula


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (lambda c, k: 4 * (k * c + c), "4·C·K + 4·C"),
        (lambda c, k: 4 * c * c + 8 * c, "4·C·C + 8·C"),
        (lambda c, k: 8 * c * k - 172 * c + 8, "8·C·K − 172·C + 8"),
        (lambda c, k: 0, "0"),
        (lambda c, k: c * k * k, ""),  # not such a sum
        (lambda c, k: None, ""),  # not sent
    ],
)
def test_measured_bytes_give_the_sum(law, text):
    assert fitted([law(c, k) for c, k in SIZES]) == text


def test_nothing_measured_gives_no_sum():
    assert fitted([]) == ""


def by_hand(shape, sizes):
    """Return the bytes that a shape may have, read apart from the code; None if unknown."""
    found = []
    for inside, kind in re.findall(r"\[([^\]]*)\]\s*(int|bool|float64)?", shape):
        names = [name.strip() for name in inside.split(",") if name.strip()]
        if not sizes.keys() >= {*names}:
            return None
        item = {"int": 8, "float64": 8, "bool": 1, "": 4}[kind]
        found.append(item * prod(sizes[name] for name in names))
    return found or None


def parameters_of(state, prefix):
    """Return the bytes of a part of a client, without and with buffers; None for other parts."""
    model = state.model
    parts = {name.rpartition("/")[2]: slot.module for name, slot in state.slots()}
    parts |= {"model": model, "model_update": model, "head": model.head}
    parts["extractor"] = model.extractor
    if prefix not in parts:
        return None
    whole = sum(4 * parameter.numel() for parameter in parts[prefix].parameters())
    return [whole, whole + sum(b.numel() * b.element_size() for b in parts[prefix].buffers())]


def _without_norm(model):
    """Return the number of parameters outside BatchNorm."""
    layers = [m for m in model.modules() if not isinstance(m, torch.nn.modules.batchnorm._NormBase)]
    return sum(p.numel() for layer in layers for p in layer.parameters(recurse=False))


@pytest.mark.parametrize("method", quick(METHODS, *KINDS))
def test_formulas_are_the_bytes_that_a_run_counts(method):
    """Check every client and direction: header + formulas are the bytes in the run's record."""
    classes, width = 5, 12
    with toy_runs(method) as runs:
        federation = toy_federation(runs, classes, width)
        keys = declared_sizes(runs.cls)
    line, checked = federation.lines[-1], set()
    for direction, attribute in DIRECTIONS.items():
        whole = 0
        for client, blob in getattr(federation.pool, attribute)(ROUNDS - 1).items():
            header, declared = toy.header(blob), [k for k in keys if k.direction == direction]
            whole += 8 + struct.unpack("<Q", blob[:8])[0] if blob else 0
            by_key = {}
            for name, entry in header.items():
                by_key.setdefault(declaration(name, declared), {})[name] = entry
            for key, tensors in by_key.items():
                counted = sum(e["data_offsets"][1] - e["data_offsets"][0] for e in tensors.values())
                expected = expected_bytes(key, header, federation.client(client), classes, width)
                if method in C_WIDE and key and key.name == "prototypes":
                    expected = expected_bytes(key, header, None, classes, classes)
                if method == "fedbn" and key and key.name == "model/*":  # without BatchNorm
                    expected = [4 * _without_norm(federation.client(client).model)]
                if expected is not None:
                    assert counted in expected, (direction, key)
                    checked.add(key and (direction, key.name))
                whole += counted
        size = {"up": "upload_bytes", "down": "download_bytes"}[direction]
        assert whole == line[size]
    if keys:
        assert checked, "no formula was checked"


def expected_bytes(key, header, state, classes, width):
    """Return the possible bytes of a key in a payload; None if only the run knows them."""
    if key is None:  # rows of classes, which need no declaration in downloads
        return None
    rows = header.get(f"{key.name}.classes", header.get("classes"))
    public = header.get("public_index")
    sizes = {"C": classes, "K": width, "N": public["shape"][0] if public else PUBLIC_SAMPLES}
    if rows is not None:
        sizes["n"] = rows["shape"][0]
    if key.shape == "as the parameter" and state is not None:
        return parameters_of(state, key.name.partition("/")[0])
    return by_hand(key.shape, sizes)


@pytest.mark.slow
def test_the_table_of_a_method(monkeypatch):
    with toy_runs("fedproto") as runs:
        keys, payloads = measure_payloads(runs)
    prototypes = next(key for key in keys if (key.direction, key.name) == ("up", "prototypes"))
    assert prototypes.formula == "4·n·K" and prototypes.measured == tuple(
        4 * c * k for c, k in SIZES
    )
    up = {(p.classes, p.width): p for p in payloads if p.direction == "up"}
    for (c, k), payload in up.items():
        assert payload.bytes == 4 * c * k + 8 * c + 8 * c  # prototypes, classes, counts
        assert payload.recorded_floats == c * k
        assert payload.recorded_bytes > payload.bytes


class Spread:
    """A method whose declaration has no shape."""

    uploads = {"spread": "deviations", "classes": "whose they are"}
    downloads = {"mean/*": Key("as the parameter", "the mean")}


def test_a_key_without_a_shape_has_no_formula():
    sizes = {key.name: (key.direction, key.formula) for key in declared_sizes(Spread)}
    assert sizes == {
        "spread": ("up", ""),
        "classes": ("up", "8·n"),
        "mean/*": ("down", "4 · parameters"),
    }
