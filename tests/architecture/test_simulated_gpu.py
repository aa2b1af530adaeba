"""Tests of the simulated GPU: it does what tests of GPU paths rely on."""

from __future__ import annotations

import pytest
import torch
from simulated_gpu import Race, Simulated


def test_results_are_those_of_a_cpu(gpu):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    x = torch.randn(2, 3, 5, 5)
    other = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten()
    )
    other.load_state_dict(net.state_dict())
    other.to("simgpu")
    out, there = net(x).square().sum(), other(x.to("simgpu")).square().sum()
    assert isinstance(there, Simulated) and there.item() == out.item()
    one = torch.autograd.grad(out, [*net.parameters()])
    two = torch.autograd.grad(there, [*other.parameters()])
    assert all(torch.equal(a, b.cpu()) for a, b in zip(one, two, strict=True))


def test_numbers_that_it_makes_have_their_shapes(gpu):
    for made in (torch.arange(5, device="simgpu"), torch.arange(1, 6, device="simgpu")):
        assert made.shape == (5,) and made.dtype == torch.int64 and len(made) == 5
    assert torch.equal(torch.eye(3, device="simgpu").cpu(), torch.eye(3))
    assert torch.equal(torch.linspace(0, 1, 4, device="simgpu").cpu(), torch.linspace(0, 1, 4))


def test_copies_and_waits_are_counted(gpu):
    x = torch.zeros(4).to("simgpu")
    x.sum().item()
    x.cpu()
    assert gpu.copies == [("to device", 16), ("to host", 16)]
    assert gpu.waits["item"] == 1


def test_devices_do_not_mix(gpu):
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(2, device="simgpu") + torch.zeros(2)


def test_a_graph_keeps_numbers_and_memory(gpu):
    module, x, factor = torch.get_device_module("simgpu"), torch.ones(2, device="simgpu"), [2.0]
    graph, stream = module.CUDAGraph(), module.Stream()
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        with module.graph(graph, stream=stream):
            y = x * factor[0]
        factor[0] = 5.0
        x.fill_(3)
        graph.replay()
    module.synchronize()
    assert y.tolist() == [6, 6]


def test_a_capture_cannot_wait(gpu):
    module, x = torch.get_device_module("simgpu"), torch.ones(2, device="simgpu")
    with module.graph(module.CUDAGraph(), stream=module.current_stream()):
        with pytest.raises(RuntimeError, match="capturing"):
            x.sum().item()


def test_a_missing_wait_is_a_race(gpu):
    module = torch.get_device_module("simgpu")
    one, two = module.Stream(), module.Stream()
    with module.stream(one):
        x = torch.ones(2, device="simgpu")
    with module.stream(two), pytest.raises(Race, match="wait_stream or an event is missing"):
        x + 1
    with module.stream(two), pytest.raises(Race):
        x.zero_()
    two.wait_stream(one)
    with module.stream(two):
        assert (x + 1).tolist() == [2, 2]


def test_launches_are_noted_in_order(gpu):
    module, x = torch.get_device_module("simgpu"), torch.ones(2, device="simgpu")
    stream = module.Stream()
    with gpu.watched() as launches:
        x.add_(1)
        stream.wait_stream(module.current_stream())
        with module.stream(stream):
            x * 2
    assert [number for number, _ in launches] == [gpu.default.number, stream.number]


def test_memory_is_counted_and_limited(gpu):
    module = torch.get_device_module("simgpu")
    before = module.memory_allocated()
    x = torch.zeros(100, device="simgpu")
    view = x[:10]
    assert module.memory_allocated() - before == 400
    del x
    assert module.memory_allocated() - before == 400 and module.mem_get_info()[0] == (
        gpu.total - before - 400
    )
    del view
    assert module.memory_allocated() == before
    gpu.total = before + 1000
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 1200"):
        torch.zeros(300, device="simgpu")
    assert module.memory_allocated() == before
    assert module.max_memory_allocated() - before == 400


def test_a_write_before_another_stream_has_read_is_a_race(gpu):
    module, x = torch.get_device_module("simgpu"), torch.ones(2, device="simgpu")
    stream = module.Stream()
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        x + 1
    with pytest.raises(Race, match="may still read"):
        x.zero_()
    module.current_stream().wait_stream(stream)
    x.zero_()


def test_memory_that_another_stream_uses_is_noted_when_it_is_taken_again(gpu):
    module, stream = torch.get_device_module("simgpu"), None
    for waits, records in ((False, False), (False, True), (True, False)):
        x, stream = torch.ones(2, device="simgpu"), module.Stream()
        stream.wait_stream(module.current_stream())
        with module.stream(stream):
            x + 1
        if records:
            x.record_stream(stream)
        if waits:
            module.current_stream().wait_stream(stream)
        del x
        torch.ones(2, device="simgpu")
        assert len(gpu.freed_early) == 1, "only the first one is freed early"


def test_a_graph_draws_from_the_state_of_its_capture(gpu):
    module, out = torch.get_device_module("simgpu"), torch.zeros(3, device="simgpu")
    (generator,) = module.default_generators
    own, graph = generator.clone_state(), module.CUDAGraph()
    before = generator.graphsafe_get_state()
    generator.graphsafe_set_state(own)
    with module.graph(graph, stream=module.current_stream()):
        out.copy_(torch.rand(3, device="simgpu"))
    generator.graphsafe_set_state(before)
    drawn = []
    for seed in (1, 2, 1):
        own.manual_seed(seed)
        torch.rand(5, device="simgpu")
        graph.replay()
        drawn.append(out.tolist())
    assert drawn[0] == drawn[2] != drawn[1]


def test_torch_s_own_optimisers_refuse_gradients_of_another_layout(gpu):
    parameter = torch.ones(2, 3, device="simgpu")
    rule = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "dampening": 0.0, "nesterov": False}
    rule |= {"maximize": False, "is_first_step": False}
    with pytest.raises(RuntimeError, match="same dtype, device, and layout"):
        torch._fused_sgd_([parameter], [torch.ones(3, 2, device="simgpu").t()], [], **rule)
