"""Tests of local training against a loop with torch's own optimiser."""

from __future__ import annotations

import torch
from slow_equations import affine, mean_cross_entropy, numbers

from protofl import Client
from protofl.data.batches import training_batches


def test_the_loss_is_cross_entropy(toy, randn):
    found = toy("local")
    record = found.prepare(0)
    z, y = randn(6, 8), [0, 1, 1, 2, 3, 0]
    terms = found.terms(record, z, torch.tensor(y))
    head = record.model.head
    scores = affine(numbers(z), numbers(head.weight), numbers(head.bias))
    assert terms.keys() == {"ce"}
    assert abs(terms["ce"].item() - mean_cross_entropy(scores, y)) < 1e-12


def test_nothing_is_sent(toy):
    found = toy("local")
    for line in found.rounds(2):
        traffic = [line[k] for k in line if k.endswith(("_floats", "_bytes"))]
        assert traffic == [0, 0, 0, 0]
    assert not found.server.global_state
    assert {blob for _, reply in found.pool.trained for blob in (reply.blob,)} == {b""}


def test_two_rounds_are_plain_sgd_on_the_clients_own_samples(toy):
    found = toy("local", local_epochs=2)
    untouched = toy("local")
    found.rounds(2)
    for number in range(4):
        record = untouched.client(number)
        model = record.model.train()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for round_ in range(2):
            for x, y, _ in training_batches(
                record.train,
                epochs=2,
                batch_size=5,
                drop_last=False,
                seed=0,
                keys=("private", round_, number),
            ):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        trained = list(found.client(number).model.parameters())
        assert not torch.equal(before[0], trained[0])
        for slow, fast in zip(model.parameters(), trained, strict=True):
            assert torch.allclose(slow, fast, rtol=1e-4, atol=1e-6)


def test_inference_is_the_head(toy):
    found = toy("local")
    found.rounds(1)
    record = found.client(1)
    record.model.eval()
    x = record.test.inputs()
    scores = found.call("inference", client=Client(record, "local"), x=x)
    assert torch.equal(scores, record.model.head(record.model.features(x)))
