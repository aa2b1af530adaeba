"""Tests of ``--device``: one device, several GPUs, and what can't be."""

from __future__ import annotations

import pytest
import torch

import protofl as pf
from protofl.backends import visible_as_only
from protofl.system.device import (
    current_card,
    devices_of,
)

NAMES = ["NVIDIA H100", "NVIDIA H100", "NVIDIA A100"]


@pytest.fixture
def three(monkeypatch):
    """A machine with three GPUs; returns a set of those that have no memory left."""
    full, zeros = set(), torch.zeros

    def made(*size, device=None):
        if torch.device(device) in full:
            raise torch.OutOfMemoryError("CUDA error: out of memory")
        return zeros(*size)

    monkeypatch.setattr(torch, "zeros", made)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(
        torch.cuda, "get_device_name", lambda which: NAMES[getattr(which, "index", which)]
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return full


def names(text):
    return [str(device) for device in devices_of(text)]


def test_several_cards(three):
    assert names("cuda:0,cuda:1") == ["cuda:0", "cuda:1"]
    assert names("cuda:2, cuda:0") == ["cuda:2", "cuda:0"]  # the server is on the first
    assert names("cuda:1,cuda:1") == ["cuda:1", "cuda:1"]
    assert names("cuda:all") == ["cuda:0", "cuda:1", "cuda:2"]
    assert names("cuda") == ["cuda"] and names("cuda:2") == ["cuda:2"]
    assert names("auto") == ["cuda"] and names("cpu") == ["cpu"]


@pytest.mark.parametrize(
    ("text", "said", "near"),
    [
        ("cuda:3", "GPU cuda:3 does not exist", "cuda:2 (NVIDIA A100)"),
        ("cuda:0,cuda:7", "GPU cuda:7 does not exist", "cuda:0 (NVIDIA H100), cuda:1"),
        ("cuda:0,cpu", "only GPUs of one kind", ""),
        ("cpu,cuda:0", "only GPUs of one kind", ""),
        ("cpu,cpu", "only GPUs of one kind", ""),
        ("mps,mps", "only GPUs of one kind", ""),
        ("cuda,cuda:1", "cuda has no number", ""),
        ("cuda:0,", "'' is not a device", ""),
        ("auto,cuda:0", "'auto' is not a device", ""),
        ("cuda:0;cuda:1", "is not a device", ""),
        ("cuda:-1", "is not a device", ""),
        ("all", "is not a device", ""),
    ],
)
def test_devices_that_can_not_be(three, text, said, near):
    with pytest.raises(pf.UsageError) as caught:
        devices_of(text)
    assert caught.value.what.startswith(f"--device {text}")
    assert said in caught.value.what and near in caught.value.near and caught.value.do


def test_a_card_that_is_hidden(three, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(pf.UsageError, match="GPU cuda:4 does not exist") as caught:
        devices_of("cuda:4,cuda:5")
    assert "there are: cuda:0" in caught.value.near
    assert "CUDA_VISIBLE_DEVICES='4,5' chooses them" in caught.value.near


@pytest.mark.parametrize("text", ["cuda:1", "cuda:1,cuda:0"])
def test_a_card_without_memory(three, text):
    three.add(torch.device("cuda:1"))
    with pytest.raises(
        pf.UsageError, match=f"--device {text}: cuda:1 has no memory left"
    ) as caught:
        devices_of(text)
    assert "cuda:0 (NVIDIA H100)" in caught.value.near
    # Other GPUs than the first are asked by the workers, which compute there anyway.
    assert names("cuda:0,cuda:1") == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("text", ["cuda", "cuda:0", "cuda:0,cuda:1", "cuda:all"])
def test_a_machine_without_cards(monkeypatch, text):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(pf.UsageError, match=f"--device {text}: found no CUDA device"):
        devices_of(text)


@pytest.mark.parametrize(
    ("shown", "device", "only"),
    [
        (None, "cuda", "0"),
        (None, "cuda:2", "2"),
        ("3,1", "cuda:0", "3"),
        ("3, 1", "cuda:1", "1"),
        ("GPU-8932f937,GPU-4cf8db2d", "cuda:1", "GPU-4cf8db2d"),
    ],
)
def test_a_process_sees_one_card(monkeypatch, shown, device, only):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert visible_as_only(torch.device(device)) == {"CUDA_VISIBLE_DEVICES": only}
    assert visible_as_only(torch.device("cpu")) == {}


def test_the_current_card_is_the_run_s(three, monkeypatch):
    entered = []

    class Card:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append(str(self.device))

        def __exit__(self, *error):
            entered.append("left")

    monkeypatch.setattr(torch.cuda, "device", Card)
    for device in ("cuda:1", "cuda", "cpu"):
        with current_card(torch.device(device)):
            pass
    assert entered == ["cuda:1", "left"]


def test_mps_is_taken_where_it_is_named_and_never_by_auto(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device=None: zeros(*size))
    assert names("auto") == ["cpu"]
    assert names("mps") == ["mps"]


def test_a_device_that_this_torch_lacks():
    for text in ("mps", "hpu", "hpu:0", "xpu:0"):
        with pytest.raises(pf.UsageError, match=f"--device {text}: this torch cannot compute"):
            devices_of(text)
