"""Tests of copies in one piece."""

from __future__ import annotations

import pytest
import torch

from protofl.backends import has_streams, to_device
from protofl.system.transfers import as_floats, gathered, keep_apart, spread, to_host

TENSORS = {
    "a": torch.randn(3, 5),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False, True]),
    "half": torch.randn(3).bfloat16(),
    "wide": torch.randn(2, 2, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
    "image": torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),
}


def test_a_buffer_gives_the_tensors_back():
    again = spread(gathered(TENSORS), TENSORS)
    assert list(again) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor)


def test_tensors_in_host_memory_are_not_copied():
    assert all(to_host(TENSORS)[name] is tensor for name, tensor in TENSORS.items())


@pytest.mark.parametrize("names", [list(TENSORS), ["mask"], []])
def test_one_copy_each_way(gpu, names):
    tensors = {name: TENSORS[name] for name in names}
    there = to_device(tensors, torch.device("simgpu"))
    assert gpu.count("to device") == bool(names)
    back = to_host(there)
    assert gpu.count("to host") == bool(names)
    assert all(there[name].device.type == "simgpu" for name in names)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_devices_with_streams():
    types = ["cuda", "cpu", "mps", "meta"]
    assert [has_streams(torch.device(kind)) for kind in types] == [True, False, False, False]


def test_numbers_of_a_device_take_one_wait(gpu):
    values = {"a": torch.tensor(1.5).to("simgpu"), "b": 2, "c": torch.tensor([3]).to("simgpu")}
    gpu.waits.clear()
    assert as_floats(values) == {"a": 1.5, "b": 2.0, "c": 3.0}
    assert gpu.waits.total() == 1


def test_what_is_kept_does_not_keep_the_whole(gpu):
    there = to_device(TENSORS, torch.device("simgpu"))
    own = torch.zeros(3, device="simgpu")
    state = {"a": there["a"], "deep": [there["half"], {"mask": (there["mask"], 1)}], "own": own}
    kept = keep_apart(state)
    assert kept is state and state["own"] is own and state["deep"][1]["mask"][1] == 1
    for tensor, name in (
        (state["a"], "a"),
        (state["deep"][0], "half"),
        (state["deep"][1]["mask"][0], "mask"),
    ):
        assert tensor is not there[name] and torch.equal(tensor.cpu(), TENSORS[name])
    buffer = gathered(TENSORS)
    assert keep_apart(buffer[:16]).data_ptr() == buffer.data_ptr()  # on a CPU nothing is copied
