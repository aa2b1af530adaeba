"""Tests of payloads on a device: copies in one piece, one wait for a check, memory of their own."""

from __future__ import annotations

import copy
import json
import struct

import pytest
import torch
from simulated_gpu import Simulated

import protofl as pf
from protofl import Payload
from protofl.backends import to_device
from protofl.hooks.wire.payload import GlobalState, PayloadOnDevice, on_host
from protofl.models import load_weights, pack_weights

GPU = "simgpu"

PAYLOAD = Payload(
    {
        "prototypes": torch.randn(3, 5),
        "classes": torch.tensor([0, 2, 3]),
        "samples": torch.tensor(7),
        "mask": torch.tensor([True, False, True]),
        "half": torch.randn(3).bfloat16(),
        "wide": torch.randn(2, 2, dtype=torch.float64),
        "eighth": torch.randn(5).to(torch.float8_e5m2),
        "empty": torch.zeros(0, 4),
        "model/conv": torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "model/buffer/steps": torch.tensor(9),
    }
)


def there(payload=PAYLOAD):
    """Return the payload on the device, each tensor with memory of its own."""
    return Payload({name: tensor.to(GPU) for name, tensor in payload.items()})


def equal(one, two):
    return one.dtype == two.dtype and torch.equal(one.cpu().float(), two.cpu().float())


def test_the_bytes_are_those_of_a_cpu_after_one_copy(gpu):
    payload = there()
    gpu.copies.clear()
    gpu.waits.clear()
    assert payload.to_bytes({"forms": "[]"}) == PAYLOAD.to_bytes({"forms": "[]"})
    assert (gpu.count("to host"), gpu.waits.total()) == (1, 1)


def test_one_copy_to_the_device_without_a_wait(gpu):
    back = Payload.from_bytes(PAYLOAD.to_bytes(), GPU)
    assert (gpu.count("to device"), gpu.waits.total()) == (1, 0)
    assert list(back) == sorted(PAYLOAD)
    for name, tensor in back.items():
        assert isinstance(tensor, Simulated) and equal(tensor, PAYLOAD[name]), name


def test_no_bytes_are_an_empty_payload(gpu):
    assert Payload.from_bytes(b"", GPU) == {}
    assert not gpu.copies
    back = Payload.from_bytes(Payload(x=torch.zeros(0, 4)).to_bytes(), GPU)
    assert back["x"].shape == (0, 4) and back.nonfinite() is None


def test_damaged_bytes_are_refused(gpu):
    data = PAYLOAD.to_bytes()
    for bad in (data[:-1], b"0", b"9" * 20):
        with pytest.raises(pf.RunFailure, match=f"{len(bad)} bytes are not a payload"):
            Payload.from_bytes(bad, GPU)


def test_tensors_may_lie_at_any_byte(gpu):
    rows, mask = torch.randn(3), torch.tensor([True])
    entries = {
        "mask": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
        "rows": {"dtype": "F32", "shape": [3], "data_offsets": [1, 13]},
    }
    text = json.dumps(entries).encode()
    content = mask.numpy().tobytes() + rows.numpy().tobytes()
    back = Payload.from_bytes(struct.pack("<Q", len(text)) + text + content, GPU)
    assert equal(back["rows"], rows) and equal(back["mask"], mask)


def test_writing_into_one_tensor_changes_no_other(gpu):
    data = PAYLOAD.to_bytes()
    names = [name for name, tensor in PAYLOAD.items() if tensor.numel()]
    for name in names:
        back = Payload.from_bytes(data, GPU)
        back[name].zero_()
        assert not back[name].cpu().float().any()
        assert all(equal(back[other], PAYLOAD[other]) for other in PAYLOAD if other != name), name


def test_each_client_has_memory_of_its_own(gpu):
    shared = PayloadOnDevice(PAYLOAD.to_bytes(), torch.device(GPU))
    one, two = (shared.payload(again=True) for _ in range(2))
    one["prototypes"].zero_()
    three = shared.payload(again=True)
    assert gpu.count("to device") == 1
    assert equal(two["prototypes"], PAYLOAD["prototypes"])
    assert equal(three["prototypes"], PAYLOAD["prototypes"])


@pytest.mark.parametrize("name", ["prototypes", "half", "wide", "eighth", "model/conv"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1000.0])
def test_one_wait_tells_whether_a_payload_is_fine(gpu, name, bad):
    payload = there()
    gpu.waits.clear()
    assert payload.nonfinite(100.0) is None
    assert gpu.waits.total() == 1
    changed = PAYLOAD[name].float().flatten().clone()
    changed[-1] = bad
    payload[name] = changed.to(PAYLOAD[name].dtype).to(GPU)
    assert payload.nonfinite(100.0) == name
    assert payload.nonfinite() == (None if bad == 1000.0 else name)


def test_a_check_takes_few_kernels_for_many_tensors(gpu):
    def kernels(count):
        many = Payload({f"model/{n}": torch.zeros(3, device=GPU) for n in range(count)})
        with gpu.watched() as launches:
            assert many.nonfinite() is None
        return sum("reshape" not in what and "view" not in what for _, what in launches)

    assert kernels(200) == kernels(2)


def test_classes_that_came_in_bytes_are_read_without_a_wait(gpu):
    back = Payload.from_bytes(PAYLOAD.to_bytes(), GPU)
    back.table("prototypes", 4)
    back.select("prototypes").table("prototypes", 4)
    Payload(back, further=back["half"]).table("prototypes", 4)
    assert on_host(back, "samples").item() == 7
    assert gpu.waits.total() == 0


def test_classes_that_were_changed_are_read_again(gpu):
    back = Payload.from_bytes(PAYLOAD.to_bytes(), GPU)
    back["classes"][0] = 2
    assert not back.is_table("prototypes")
    assert not copy.deepcopy(back).is_table("prototypes")
    back["classes"] = torch.tensor([0, 1, 2]).to(GPU)
    assert back.is_table("prototypes")
    assert on_host(back, "classes").tolist() == [0, 1, 2]


def test_weights_go_to_a_device_in_one_copy(gpu):
    source = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    payload = pack_weights(source, "model")
    target = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(GPU)
    gpu.copies.clear()
    load_weights(target, payload, "model")
    assert gpu.count("to device") == 1
    packed = pack_weights(target, "model")
    assert packed.to_bytes() == payload.to_bytes()
    packed["model/0.weight"].zero_()
    assert equal(target[0].weight.detach(), source[0].weight.detach())


def test_what_the_server_keeps_of_an_upload_has_memory_of_its_own(gpu):
    upload = Payload(to_device(PAYLOAD, torch.device(GPU)))
    state = GlobalState()
    state.merge({"prototypes": upload["prototypes"]})
    assert state["prototypes"] is not upload["prototypes"]
    assert equal(state["prototypes"], PAYLOAD["prototypes"])
