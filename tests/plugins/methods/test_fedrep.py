"""Tests of FedRep: the head is trained first, then the representation, which alone is shared."""

from __future__ import annotations

import plain_rounds as plain
import pytest
import torch
from slow_equations import numbers
from torch import nn

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_two_rounds_by_hand(toy, variant):
    with double_precision():
        options = {"head_epochs": 3, "variant": variant}
        found = plain.federation(toy, "fedrep", set=options, local_epochs=2)
        models, samples = plain.own_models(found), plain.samples_of(found)
        phi = plain.server_model(found).extractor.state_dict()
        found.rounds(2)
        counts = [len(y) for _, y in samples]
        shares = [n / sum(counts) if variant == "official" else 1 / 4 for n in counts]
        for _ in range(2):
            for model, (x, y) in zip(models, samples, strict=True):
                model.extractor.load_state_dict(phi)
                for _ in range(3):
                    plain.sgd(model, x, y, model.head.parameters())
                for _ in range(2):
                    plain.sgd(model, x, y, model.extractor.parameters())
            phi = plain.mean_state([model.extractor.state_dict() for model in models], shares)
        for number, model in enumerate(models):
            plain.assert_equal_states(found.client(number).model.state_dict(), model.state_dict())
        plain.assert_equal_states(plain.global_state(found, "extractor"), phi)


def test_each_phase_trains_its_part_alone(toy):
    found = toy("fedrep", models=plain.ONE, set={"head_epochs": 7})
    phases = found.plan.composition.phases(found.plan.info)
    assert [(p.name, p.epochs, p.trains) for p in phases] == [
        ("head", 7, ("head",)),
        ("representation", None, ("extractor",)),
    ]


def test_heads_stay_and_predict(toy):
    found = toy("fedrep", models=plain.ONE)
    found.rounds(2)
    names = {
        key.partition("/")[0]
        for blob in found.pool.uploads(1).values()
        for key in toyfed.header(blob)
    }
    assert names == {"extractor", "samples"}
    names = {
        key.partition("/")[0]
        for blob in found.pool.downloads(1).values()
        for key in toyfed.header(blob)
    }
    assert names == {"extractor"}
    heads = [found.client(number).model.head.weight.clone() for number in range(4)]
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    for number in range(4):
        state = found.prepare(number, found.server.global_state, double=False)
        assert torch.equal(state.model.head.weight, heads[number])
        x = state.test.inputs()
        scores = found.call("inference", client=found.views(number)[0], x=x)
        with torch.no_grad():
            assert torch.equal(scores, state.model.head(state.model.features(x)))


def test_a_client_that_was_not_sampled_keeps_its_head(toy):
    found = toy("fedrep", models=plain.ONE, participation=0.5)
    before = [found.client(number).model.head.weight.clone() for number in range(4)]
    found.rounds(1)
    took_part = {*found.pool.uploads(0)}
    assert len(took_part) == 2
    for number in range(4):
        same = torch.equal(found.client(number).model.head.weight, before[number])
        assert same == (number not in took_part)


def test_several_architectures_are_refused(toy):
    with pytest.raises(pf.UsageError, match="it averages feature extractors"):
        toy("fedrep")


def _flat(sample, K):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, K, bias=False), nn.Tanh())


def _plain_head(K, C):
    return nn.Linear(K, C, bias=False)


def _filled(*shape, start=0):
    return torch.sin(torch.arange(start, start + shape[0] * shape[1]).double()).reshape(shape)


def _six_images():
    """Return six images of 2×2 pixels for each of two clients, for training and for tests."""
    x = (torch.arange(24) * 37 % 256).to(torch.uint8).reshape(6, 1, 2, 2)
    rows = torch.arange(6)
    x, y = torch.cat([x, x]), torch.tensor([0, 1, 0, 1, 1, 0] * 2)
    split = [(rows, rows), (rows + 6, rows + 6)]
    return pf.datasets.Dataset(x.to(torch.float32) / 255, y, 12, ["a", "b"], split)


def test_the_published_code_gives_the_same_client(toy):
    """Figures of LocalUpdate.train of models/Update.py, lgcollins/FedRep at d82e629.

    With an update of each part, so that its momentum changes nothing; it decays weights by 1e-4.
    """
    with double_precision():
        net = toyfed.architecture("net", _flat, _plain_head)
        options = {"batch_size": 6, "lr": 0.1, "weight_decay": 1e-4}
        found = toy(
            "fedrep",
            data=_six_images(),
            models=toyfed.group(net, K=3, side=2),
            set={"head_epochs": 1},
            **options,
        )
        (key,) = found.server.global_state
        found.server.global_state[key] = _filled(3, 4)
        model = found.client(0).model
        with torch.no_grad():
            model.head.weight.copy_(_filled(2, 3, start=50))
        found.rounds(1)
        head = [
            -0.2575304340,
            0.6769684620,
            0.9703897262,
            0.3910793950,
            -0.5655294494,
            -0.9835171763,
        ]
        assert numbers(model.head.weight.flatten()) == pytest.approx(head, rel=1e-8)
        body = [
            [-0.0024860319, 0.8419947685, 0.9050008251, 0.1343095185],
            [-0.7508899339, -0.9555695946, -0.2686166869, 0.6739910425],
            [0.9926629282, 0.4077007575, -0.5361360233, -0.9793945504],
        ]
        assert torch.allclose(model.extractor[1].weight, torch.tensor(body), rtol=1e-7)
