"""Compare the reference engine with ``torch.optim``, and test its loss sums."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl_plugins.engines import layers
from protofl_plugins.engines.eager import Eager
from protofl_plugins.engines.updates import Update

OPTIMISERS = {
    "sgd": ({"optimizer": "sgd", "momentum": 0.0}, lambda g: torch.optim.SGD(g)),
    "momentum": (
        {"optimizer": "sgd", "momentum": 0.9},
        lambda g: torch.optim.SGD(g, momentum=0.9),
    ),
    "adam": ({"optimizer": "adam", "momentum": 0.0}, lambda g: torch.optim.Adam(g)),
    "sgd-decay": (
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.2},
        lambda g: torch.optim.SGD(g, momentum=0.9, weight_decay=0.2),
    ),
    "adam-decay": (
        {"optimizer": "adam", "momentum": 0.0, "weight_decay": 0.2},
        lambda g: torch.optim.Adam(g, weight_decay=0.2),
    ),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


class Net(nn.Module):
    """Two layers, a head, and a spare layer that not every loss uses."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        stream = torch.Generator().manual_seed(2)
        self.extractor = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4))
        self.head = nn.Linear(4, 3)
        self.spare = nn.Linear(4, 3)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=stream).mul(0.5).to(dtype)

    def features(self, x):
        return self.extractor(x)


def batches(dtype=torch.float32, count=6):
    stream = torch.Generator().manual_seed(1)
    for step in range(count):
        size = 4 + step % 3
        x = torch.randn(size, 5, generator=stream).to(dtype)
        y = torch.randint(0, 3, (size,), generator=stream)
        yield pf.Batch(x, y, torch.arange(size))


def make_job(net, groups, loss, kind="sgd", dtype=torch.float32, **options):
    """Return the attributes of a `pf.backends.TrainJob` that the engine reads."""
    enabled = options.pop("precision", "fp32") == "bf16"
    given = {
        "model": net,
        "groups": groups,
        "loss": loss,
        "after_batch": None,
        "clip": 0.0,
        "weight_decay": None,
        "plain": True,
        "scheduled": False,
        "batches": lambda: batches(dtype),
        "lap": lambda phase: None,
        "whole": lambda: net,
        "precision": "bf16" if enabled else "fp32",
        "device": torch.device("cpu"),
    }
    return SimpleNamespace(**given | OPTIMISERS[kind][0] | options)


def train(job):
    return Eager().train(job)


def plain_loss(batch, output, step):
    return {
        "ce": cross_entropy(output.logits, batch.y),
        "size": 0.1 * output.features.pow(2).mean(),
    }


def train_with_torch(net, groups, loss, kind, dtype=torch.float32):
    optimiser = OPTIMISERS[kind][1]([{"params": p, "lr": lr} for p, lr in groups])
    for step, batch in enumerate(batches(dtype)):
        features = net.features(batch.x)
        output = pf.Output(features, net.head(features))
        optimiser.zero_grad()
        sum(loss(batch, output, step).values()).backward()
        optimiser.step()


def train_with_torch_clipped(net, groups, loss, most):
    optimiser = torch.optim.SGD([{"params": p, "lr": lr} for p, lr in groups])
    for step, batch in enumerate(batches(torch.float64)):
        features = net.features(batch.x)
        output = pf.Output(features, net.head(features))
        optimiser.zero_grad()
        sum(loss(batch, output, step).values()).backward()
        norms = [float(nn.utils.clip_grad_norm_(p, most)) for p, _ in groups]
        optimiser.step()
    return norms


def groups_of(net):
    rest = [*net.head.parameters(), *net.spare.parameters()]
    return [(list(net.extractor.parameters()), 0.05), (rest, 0.002)]


def close(one, two, tolerance):
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("fixed", [False, True], ids=["", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_updates_equal_torch(kind, dtype, fixed):
    own, reference = Net(dtype), Net(dtype)
    groups, theirs = groups_of(own), groups_of(reference)
    update = Update(make_job(own, groups, None, kind), groups, fixed=fixed)
    optimiser = OPTIMISERS[kind][1]([{"params": p, "lr": lr} for p, lr in theirs])
    stream = torch.Generator().manual_seed(3)
    parameters = [p for group, _ in groups for p in group]
    others = [p for group, _ in theirs for p in group]
    for step in range(7):
        gradients = []
        for position, p in enumerate(parameters):
            # Some parameters have no gradient in some steps; one never has a gradient.
            unused = (position + step) % 4 == 0 or position == 5
            drawn = torch.randn(p.shape, generator=stream, dtype=torch.float64).to(dtype)
            gradients.append(None if unused else drawn)
        update(gradients)
        for p, g in zip(others, gradients, strict=True):
            p.grad = None if g is None else g.clone()
        optimiser.step()
        close(own, reference, TOLERANCE[dtype])
    assert not torch.equal(own.head.weight, Net(dtype).head.weight)


@pytest.fixture
def small_too(monkeypatch):
    """Use the fast path for layers of any size."""
    monkeypatch.setattr(layers, "LARGE_WEIGHT", 0)


@pytest.mark.usefixtures("small_too")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_training_equals_torch(kind, dtype):
    own, reference, start = Net(dtype), Net(dtype), Net(dtype)
    train(make_job(own, groups_of(own), plain_loss, kind, dtype))
    train_with_torch(reference, groups_of(reference), plain_loss, kind, dtype)
    close(own, reference, 1e-5 if dtype == torch.float32 else 1e-12)
    assert torch.equal(own.spare.weight, start.spare.weight), "no loss reaches it"
    assert not torch.equal(own.extractor[0].weight, start.extractor[0].weight)
    assert all(p.grad is None for p in own.parameters())


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_optimisers_are_fresh_in_every_phase(kind):
    own, reference = Net(), Net()
    for _ in range(2):
        train(make_job(own, groups_of(own), plain_loss, kind))
        train_with_torch(reference, groups_of(reference), plain_loss, kind)
    close(own, reference, 1e-5)


def test_a_loss_that_reaches_nothing_of_a_group():
    net, start = Net(), Net()
    groups = [(list(net.spare.parameters()), 0.1), (list(net.head.parameters()), 0.1)]
    for kind in OPTIMISERS:
        train(make_job(net, groups, plain_loss, kind))
    assert torch.equal(net.spare.weight, start.spare.weight)
    assert torch.equal(net.extractor[0].weight, start.extractor[0].weight)
    assert not torch.equal(net.head.weight, start.head.weight)


def test_sums_are_weighted_by_samples():
    net, expected = Net(), {}

    def loss(batch, output, step):
        terms = {"ce": output.logits.sum() * 0 + step + 1.0}
        if step % 2:
            terms["sometimes"] = output.features.sum() * 0 + 3.0
        for label, value in terms.items():
            expected[label] = expected.get(label, 0.0) + value.item() * len(batch.x)
        return terms

    sums = train(make_job(net, groups_of(net), loss))
    assert sums == pytest.approx(expected)
    assert sums.keys() == {"ce", "sometimes"}
    assert all(type(value) is float for value in sums.values())


def test_after_batch_sees_the_weights_before_the_step():
    net, seen, steps = Net(), [], []

    def loss(batch, output, step):
        steps.append(output.features.detach().clone())
        return plain_loss(batch, output, step)

    def after(batch, output):
        with torch.no_grad():
            assert torch.equal(net.features(batch.x), output.features)
        seen.append(output.features.detach().clone())

    train(make_job(net, groups_of(net), loss, after_batch=after))
    assert all(torch.equal(a, b) for a, b in zip(seen, steps, strict=True))
    assert len(seen) == 6


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_bf16(kind):
    own, reference = Net(), Net()
    types = []

    def loss(batch, output, step):
        types.append((output.features.dtype, output.logits.dtype))
        return plain_loss(batch, output, step)

    sums = train(make_job(own, groups_of(own), loss, kind, precision="bf16"))
    exact = train(make_job(reference, groups_of(reference), plain_loss, kind))
    assert set(types) == {(torch.float32, torch.float32)}
    assert {p.dtype for p in own.parameters()} == {torch.float32}
    assert sums == pytest.approx(exact, rel=0.05)
    assert sums != exact
    close(own, reference, 0.1)


class Odd(Net):
    """Layers used twice, on constants, in 3D, before in-place operations; a frozen bias."""

    def __init__(self, dtype):
        super().__init__(dtype)
        self.extractor[1] = nn.ReLU(inplace=True)
        self.spare = nn.Linear(4, 4, bias=False).to(dtype)
        self.head.bias.requires_grad_(False)
        with torch.no_grad():
            self.spare.weight.copy_(torch.arange(16.0).view(4, 4) / 20)

    def features(self, x):
        z = self.extractor(x)
        return self.spare(self.spare(z)) + z


def odd_loss(net):
    anchors = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)

    def loss(batch, output, step):
        scores = net.head(anchors).relu_()
        cubes = net.head(output.features.unsqueeze(0).expand(2, -1, -1))
        with torch.no_grad():
            net.head(anchors)  # not used in training
        return plain_loss(batch, output, step) | {
            "anchors": cross_entropy(scores, torch.arange(3)),
            "weights": 0.01 * net.head.weight.square().sum(),
            "twice": cubes.tanh().mean(),
        }

    return loss


@pytest.mark.usefixtures("small_too")
@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_layers_in_odd_places(clip):
    own, reference = Odd(torch.float64), Odd(torch.float64)

    def after(batch, output):
        own.features(batch.x)  # not part of any step

    def groups(net):
        rest = [net.head.weight, net.spare.weight]
        return [(list(net.extractor.parameters()), 0.05), (rest, 0.02)]

    options = {"dtype": torch.float64, "after_batch": after, "clip": clip}
    train(make_job(own, groups(own), odd_loss(own), **options))
    loss, most = odd_loss(reference), clip or float("inf")
    norms = train_with_torch_clipped(reference, groups(reference), loss, most)
    assert min(norms) > 0.2  # clipping takes effect in both groups
    close(own, reference, 1e-12)
    assert not any("forward" in vars(m) for m in own.modules())


@pytest.mark.usefixtures("small_too")
@pytest.mark.parametrize("options, taken", [({}, 4), ({"clip": 1.0}, 4), ({"momentum": 0.5}, 0)])
def test_weights_are_updated_without_a_gradient_where_the_update_is_plain(options, taken):
    net = Net()
    job = make_job(net, groups_of(net), plain_loss, **options)
    fast = layers.FastLayers(job)
    with fast.taken():
        output = net.features(torch.randn(3, 5))
        total = net.spare(output).sum() + net.head(output).sum()
        found = fast.gradients(total, list(net.parameters()))
    assert [g is None for g in found].count(True) == taken


@pytest.mark.usefixtures("small_too")
@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_a_loss_that_differentiates_the_model_itself(clip):
    ours, theirs = Net(torch.float64), Net(torch.float64)

    def penalty(net):
        def loss(batch, output, step):
            weights = [net.extractor[0].weight, net.head.weight]
            ce = cross_entropy(output.logits, batch.y)
            slopes = torch.autograd.grad(ce, weights, create_graph=True)
            return {"ce": ce, "penalty": sum(slope.square().sum() for slope in slopes)}

        return loss

    train(make_job(ours, groups_of(ours), penalty(ours), dtype=torch.float64, clip=clip))
    most = clip or float("inf")
    norms = train_with_torch_clipped(theirs, groups_of(theirs), penalty(theirs), most)
    assert max(norms) > 0.2
    close(ours, theirs, 1e-12)


class Tied(Net):
    """Two layers that share a weight."""

    def __init__(self, dtype):
        super().__init__(dtype)
        self.spare = nn.Linear(4, 4).to(dtype)
        self.further = nn.Linear(4, 4).to(dtype)
        with torch.no_grad():
            for p in (*self.spare.parameters(), *self.further.parameters()):
                p.copy_(torch.linspace(-0.5, 0.5, p.numel()).view_as(p))
        self.further.weight = self.spare.weight

    def features(self, x):
        return self.further(self.spare(self.extractor(x)).tanh())


@pytest.mark.usefixtures("small_too")
def test_clip_of_a_weight_that_two_layers_share():
    ours, theirs = Tied(torch.float64), Tied(torch.float64)

    def groups(net):
        return [([*net.parameters()], 0.05)]

    train(make_job(ours, groups(ours), plain_loss, dtype=torch.float64, clip=0.2))
    norms = train_with_torch_clipped(theirs, groups(theirs), plain_loss, 0.2)
    assert min(norms) > 0.2
    close(ours, theirs, 1e-12)


@pytest.mark.usefixtures("small_too")
def test_clip_where_every_weight_is_updated_from_factors():
    ours, theirs = Net(torch.float64), Net(torch.float64)
    heads = [[([*net.head.parameters()], 0.05)] for net in (ours, theirs)]
    train(make_job(ours, heads[0], plain_loss, dtype=torch.float64, clip=0.1))
    norms = train_with_torch_clipped(theirs, heads[1], plain_loss, 0.1)
    assert min(norms) > 0.1
    close(ours, theirs, 1e-12)


@pytest.mark.parametrize("smallest", [0, 1 << 16], ids=["factors", "gradients"])
def test_clip_is_torchs_for_each_group(monkeypatch, smallest):
    monkeypatch.setattr(layers, "LARGE_WEIGHT", smallest)
    ours, theirs = Net(torch.float64), Net(torch.float64)
    train(make_job(ours, groups_of(ours), plain_loss, dtype=torch.float64, clip=0.3))
    norms = train_with_torch_clipped(theirs, groups_of(theirs), plain_loss, 0.3)
    assert max(norms) > 0.3  # clipping takes effect
    close(ours, theirs, 1e-12)
    free = Net(torch.float64)
    train(make_job(free, groups_of(free), plain_loss, dtype=torch.float64, clip=1e6))
    with pytest.raises(AssertionError):
        close(ours, free, 1e-3)
