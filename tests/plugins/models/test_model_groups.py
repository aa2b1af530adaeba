"""Tests of the model groups: architectures, their order and their heads (FACTS section 3)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.models.architecture import with_group_norm
from protofl.hooks.plugin.members import choose

HTFE8 = "cnn4 googlenet mobilenet_v2 resnet18 resnet34 resnet50 resnet101 resnet152"
ORDERS = {
    "htfe2": "cnn4 resnet18",
    "htfe3": "resnet10 resnet18 resnet34",
    "htfe4": "cnn4 googlenet mobilenet_v2 resnet18",
    "htfe5": "cnn4 resnet10 resnet18 resnet34 resnet50",
    "htfe8": HTFE8,
    "htfe9": "resnet4 resnet6 resnet8 resnet10 resnet18 resnet34 resnet50 resnet101 resnet152",
    "htm10": f"{HTFE8} vit_b_16 vit_b_32",
    "res34-htc4": "resnet34+h1 resnet34+h2 resnet34+h3 resnet34+h4",
    "htfe8-htc4": "cnn4+h1 googlenet+h2 mobilenet_v2+h3 resnet18+h4 "
    "resnet34+h1 resnet50+h2 resnet101+h3 resnet152+h4",
    "htcnn8": " ".join(f"htcnn8-{i}" for i in range(1, 9)),
    "fedpkd-het": "resnet11 resnet20 resnet29",
    "fedpkd-hom": "resnet20",
    "cnn4": "cnn4",
    "resnet10": "resnet10",
    "resnet18": "resnet18",
    "resnet34": "resnet34",
}


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def architectures(group, **options):
    return group.architectures(config=getattr(group, "Config", pf.Config)(**options))


def test_every_group_is_listed(groups):
    assert set(groups) == {*ORDERS, "torchvision", "widths", "depths"}


@pytest.mark.parametrize("name", ORDERS)
def test_order(groups, name):
    assert [a.name for a in architectures(groups[name])] == ORDERS[name].split()


@pytest.mark.parametrize("name", [*ORDERS, "torchvision"])
def test_declarations(groups, name):
    group = groups[name]
    own_channels = name in ("cnn4", "htcnn8")
    assert group.feature_dim == (256 if name.startswith("fedpkd") else 512)
    assert group.min_side == (28 if own_channels else 32)
    assert group.channels == (None if own_channels else 3)
    assert not vars(group), "a plugin keeps no state on self"
    assert type(group).__doc__.splitlines()[0].endswith(".")


@pytest.mark.parametrize("name", [*ORDERS, "torchvision"])
@pytest.mark.parametrize("channels", [1, 3])
def test_server_architecture(groups, name, channels):
    group = groups[name]
    server = {a.name: a for a in group.server_architectures(config=pf.Config())}
    assert group.server_architecture == "resnet56"
    if group.auxiliary_architecture == "cnn4":  # no client has it
        assert set(server) == {"resnet56", "cnn4"}
    else:
        assert set(server) == {"resnet56"}
    if name in ("htcnn8", "fedpkd-het"):
        sample = pf.datasets.SampleSpec((channels, group.min_side, group.min_side))
        side = group.min_side
        with torch.device("meta"):
            model = server["resnet56"].build(sample, 10, group.feature_dim).eval()
            x = torch.zeros(2, channels, side, side)
            assert model.features(x).shape == (2, group.feature_dim)


@pytest.mark.parametrize(
    ("name", "auxiliary"),
    [
        *((name, "cnn4") for name in ("htfe2", "htfe4", "htfe5", "htfe8", "htm10", "cnn4")),
        *((name, "cnn4") for name in ("res34-htc4", "htfe8-htc4")),
        *((name, "cnn4") for name in ("resnet10", "resnet18", "resnet34")),
        ("htfe3", "resnet10"),
        ("htfe9", "resnet4"),
        ("htcnn8", "htcnn8-1"),
        ("fedpkd-het", "resnet11"),
        ("fedpkd-hom", "resnet20"),
        ("mlp", "mlp1"),
        ("cnn1d", "cnn1d"),
        ("text", "bag"),
    ],
)
def test_the_auxiliary_of_fml_and_fedkd(name, auxiliary):
    found = choose(Registry(), "model-group", name)
    declared = found.plugin.auxiliary_architecture
    names = [a.name for a in found.call("architectures")]
    offered = names + [a.name for a in found.call("server_architectures")]
    assert (declared or names[0]) == auxiliary
    assert auxiliary in offered


@pytest.mark.parametrize("name", sorted(set(ORDERS) - {"htm10", "res34-htc4", "htfe8-htc4"}))
def test_homogeneous_heads_are_declared_alike(groups, name):
    assert {a.head for a in architectures(groups[name])} == {"linear"}


def test_heads_of_htm10(groups):
    assert [a.head for a in architectures(groups["htm10"])] == ["linear"] * 8 + ["768-tanh"] * 2


@pytest.mark.parametrize("name", ["res34-htc4", "htfe8-htc4"])
def test_heads_of_htc4_follow_the_appendix(groups, name):
    found = architectures(groups[name])
    heads = ["linear", "512", "256", "128"]
    assert [a.head for a in found] == [heads[i % 4] for i in range(len(found))]
    for i in range(4):
        a = architectures(groups["res34-htc4"])[i] if name == "res34-htc4" else found[i]
        head = a.build(pf.datasets.SampleSpec((3, 32, 32)), 100, 512).head
        layers = list(head) if isinstance(head, nn.Sequential) else [head]
        hidden = [512, 256, 128]
        if i == 0:
            assert [type(x) for x in layers] == [nn.Linear]
        else:
            assert [type(x) for x in layers] == [nn.Linear, nn.ReLU, nn.Linear]
            assert layers[0].out_features == hidden[i - 1]
        assert (layers[0].in_features, layers[-1].out_features) == (512, 100)


def test_htcnn8_is_table_9(groups):
    table = {  # FedTGP, Table 9: convolutions, fully connected layers
        1: ((32,), (512,)),
        2: ((32, 64), (512,)),
        3: ((32,), (512, 512)),
        4: ((32, 64), (512, 512)),
        5: ((32,), (1024, 512)),
        6: ((32, 64), (1024, 512)),
        7: ((32,), (1024, 512, 512)),
        8: ((32, 64), (1024, 512, 512)),
    }
    flat = {1: 32 * 12 * 12, 2: 64 * 4 * 4}
    for number, architecture in enumerate(architectures(groups["htcnn8"]), start=1):
        model = architecture.build(pf.datasets.SampleSpec((1, 28, 28)), 10, 512)
        convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
        linear = [m for m in model.extractor if isinstance(m, nn.Linear)]
        pools = [m for m in model.modules() if isinstance(m, nn.MaxPool2d)]
        assert tuple(m.out_channels for m in convolutions) == table[number][0]
        assert tuple(m.out_features for m in linear) == table[number][1]
        assert len(pools) == len(convolutions)
        assert all(m.kernel_size == (5, 5) and m.padding == (0, 0) for m in convolutions)
        assert linear[0].in_features == flat[len(convolutions)]
        assert (model.head.in_features, model.head.out_features) == (512, 10)


@pytest.mark.parametrize("name", ["cnn4", "fedpkd-hom", "htfe4"])
def test_weights_are_those_of_the_seed(groups, name):
    sample = pf.datasets.SampleSpec((3, 32, 32))
    for architecture in architectures(groups[name]):
        states = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            model = architecture.build(sample, 10, groups[name].feature_dim)
            states.append(model.state_dict())
        same, again, other = states
        assert all(torch.equal(same[key], again[key]) for key in same)
        assert not torch.equal(same["head.weight"], other["head.weight"])
        first = next(iter(same))
        assert not torch.equal(same[first], other[first])


NORMED = (
    "htfe2",
    "fedpkd-het",
    "cnn1d",
    "torchvision:densenet121,mnasnet0_5,shufflenet_v2_x0_5",
    "widths:resnet10@1,0.3",
    "depths:resnet10@4,1",
)


@pytest.mark.parametrize("text", NORMED)
def test_group_norm_replaces_batch_norm_and_nothing_else(text):
    """A group of one number would be 0: torch refuses it for one sample."""
    choice = choose(Registry(), "model-group", text, {"norm": "group"})
    kind, shape = choice.plugin.kinds[0], (2, 30) if text == "cnn1d" else (3, 32, 32)
    sample, groups = pf.datasets.SampleSpec(shape, kind), set()
    for architecture in choice.call("architectures"):
        torch.manual_seed(0)
        plain = architecture.build(sample, 10, 64)
        torch.manual_seed(0)
        normed = with_group_norm(architecture).build(sample, 10, 64)
        layers = dict(normed.named_modules())
        for name, layer in plain.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                found, c = layers[name], layer.num_features
                assert type(found) is nn.GroupNorm and (found.num_channels, found.eps) == (
                    c,
                    layer.eps,
                )
                allowed = [n for n in range(1, 33) if c % n == 0 and 2 * n <= c] or [1]
                assert found.num_groups == max(allowed)
                groups.add(found.num_groups)
            elif not [*layer.children()]:
                assert type(layers[name]) is type(layer)
        drawn = dict(plain.named_parameters())
        found = dict(normed.named_parameters())
        assert [*found] == [*drawn] and all(torch.equal(found[n], drawn[n]) for n in drawn)
        assert not [*normed.buffers()]
        assert normed.features(torch.randn(1, *shape)).isfinite().all()
    assert groups


def test_fedpkd_parameters(groups):
    published = {  # at 10 and at 100 classes; 4 bytes × 127,642 is the paper's 0.511 MB
        "resnet11": (127_642, 150_772),
        "resnet20": (220_378, 243_508),
        "resnet29": (313_114, 336_244),
        "resnet56": (591_322, 614_452),
    }
    group = groups["fedpkd-het"]
    found = architectures(group) + group.server_architectures(config=pf.Config())
    assert [a.name for a in found] == list(published)
    for architecture in found:
        sample = pf.datasets.SampleSpec((3, 32, 32))
        counts = tuple(parameters(architecture.build(sample, c, 256)) for c in (10, 100))
        assert counts == published[architecture.name]


def test_the_server_model_is_pooled_to_k(groups):
    (server,) = groups["htfe8"].server_architectures(config=pf.Config())
    model = server.build(pf.datasets.SampleSpec((3, 32, 32)), 100, 512).eval()
    assert model.extractor(torch.zeros(1, 3, 32, 32)).shape == (1, 256)
    assert model.features(torch.zeros(1, 3, 32, 32)).shape == (1, 512)
    assert parameters(model.head) == 51_300
