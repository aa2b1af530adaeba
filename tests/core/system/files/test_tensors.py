"""Tests of checkpoint files: nested state, damaged files, and no pickle in the sources."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import protofl as pf
from protofl.system.files.tensors import (
    WIRE_TYPES,
    pack_state,
    read_tensors,
    tensor_bytes,
    unpack_state,
    write_tensors,
)

CPU = torch.device("cpu")
SOURCES = [
    p
    for f in ("core", "plugins", "cli")
    for p in Path(__file__).parents[4].joinpath(f).rglob("*.py")
]


def through_a_file(state, path):
    tensors = {}
    packed = pack_state(state, tensors, "state")
    write_tensors(path, tensors, packed)
    found, header = read_tensors(path)
    return unpack_state(header, found, CPU)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"a": torch.randn(2, 3), "b": torch.arange(3), "c": torch.tensor(True)},
        {"n": None, "t": True, "i": 3, "f": 0.1, "s": "ü\n"},
        {"deep": {"list": [1, [torch.ones(2), {"x": []}], "y"], "dict": {}}},
        {"by client": {0: torch.ones(1), 17: {3: "x"}}, 5: 6, "5": 7},
        {"half": torch.ones(2, dtype=torch.bfloat16), "empty": torch.empty(0, 3)},
        {"tensor": {"tensor": torch.ones(1)}, "value": "x", "list": [], "dict": {"dict": 1}},
        {"big": 1 << 80, "small": 1e-300, "inf": float("inf")},
    ],
)
def test_state_survives(tmp_path, state):
    found = through_a_file(state, tmp_path / "s.safetensors")
    assert equal(found, state), found
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.safetensors"]


def test_views_and_gradients_survive(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    state = {"column": base[:, 1], "turned": base.T, "needs": base.clone().requires_grad_()}
    found = through_a_file(state, tmp_path / "s.safetensors")
    assert all(torch.equal(found[k], state[k].detach()) for k in state)


def test_one_tensor_in_two_places_survives(tmp_path):
    x = torch.randn(3)
    found = through_a_file({"a": x, "b": {"c": x, "row": x[:2]}}, tmp_path / "s.safetensors")
    assert torch.equal(found["a"], x)
    assert torch.equal(found["b"]["c"], x)
    assert torch.equal(found["b"]["row"], x[:2])


@pytest.mark.parametrize(
    "wrong",
    [
        {1, 2},
        object(),
        b"bytes",
        np.zeros(2),
        torch.nn.Linear(1, 1),
        lambda: 1,
        Path("."),
        1j,
        {(1, 2): "a tuple as key"},
        {np.int64(3): "a NumPy number as key"},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_checkpoint_can_not_hold(wrong):
    with pytest.raises(pf.RunFailure) as caught:
        json.dumps(pack_state({"deep": [wrong]}, {}, "state of client 3"))
    assert "state of client 3['deep']" in caught.value.what
    assert "add_module" in caught.value.do


@pytest.mark.parametrize("damage", ["missing", "cut", "noise", "no header"])
def test_a_damaged_file(tmp_path, damage):
    path = tmp_path / "s.safetensors"
    write_tensors(path, {"x": torch.randn(50)}, {"value": 1})
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "noise":
        path.write_bytes(b"\x00" * 200)
    else:
        path.write_bytes(pf.Payload(x=torch.ones(1)).to_bytes())
    with pytest.raises(pf.RunFailure, match="cannot be read"):
        read_tensors(path)


def names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            value = getattr(node.value, "value", None)
            yield f"{node.arg}={value}"


def test_nothing_is_pickled():
    refused = {
        "pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "multiprocessing",
        "torch.save", "torch.load", "torch.multiprocessing", "allow_pickle=True",
        "weights_only=False",
    }  # fmt: skip
    assert len(SOURCES) > 40
    for path in SOURCES:
        if path.name == "pfllib.py":
            continue  # reads a foreign pickle format, only if the user allows it
        if path.match("batch/workers.py"):
            continue  # messages between a batch and the processes that it started
        found = refused & set(names(ast.parse(path.read_text(encoding="utf-8"))))
        assert not found, f"{path}: {found}"


@pytest.mark.parametrize("about", [None, {"forms": '[null,{"ä":["F32",1]}]\n\x7f'}])
def test_payload_bytes_are_those_of_the_library(about):
    tensors = {'ä\x01"\\/\n\x7f€𝒳': torch.randn(2, 3)}
    known = safetensors.torch._SIZE  # early versions lack some types
    for place, dtype in enumerate(dtype for dtype in WIRE_TYPES if dtype in known):
        tensors[f"part{place % 3}/{place}"] = torch.arange(3.0 + place).to(dtype)
        tensors[f"none{place}"] = torch.zeros(0, 3).to(dtype)
        tensors[f"one{place}"] = torch.ones(()).to(dtype)
    try:
        theirs = safetensors.torch.save(tensors, about)
    except safetensors.SafetensorError:  # early versions lack complex numbers
        tensors = {name: t for name, t in tensors.items() if not t.is_complex()}
        theirs = safetensors.torch.save(tensors, about)
    assert tensor_bytes(tensors, about) == theirs


def test_payload_bytes_of_views_and_shared_memory():
    x = torch.randn(4, 3, requires_grad=True)
    tensors = {"a": x, "b": x.T, "c": x[1:], "d": x[:1].expand(5, 3)}
    plain = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    assert tensor_bytes(tensors) == safetensors.torch.save(plain)


def test_a_type_that_a_payload_lacks_is_named():
    with pytest.raises(pf.RunFailure, match=r"x has the type torch.complex128"):
        tensor_bytes({"x": torch.zeros(1, dtype=torch.complex128)})
