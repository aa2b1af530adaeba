"""Tests of FedBABU: the body alone is trained and shared; fine-tuning trains the head."""

from __future__ import annotations

from copy import deepcopy

import plain_rounds as plain
import pytest
import torch

from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision

PARTS = {"head": ["head"], "body": ["extractor"], "full": ["extractor", "head"]}
TUNING = 12


def by_hand(found, rounds):
    """Return the server's model after rounds; its head is the first one."""
    samples, shared = plain.samples_of(found), plain.server_model(found)
    counts = [len(y) for _, y in samples]
    for _ in range(rounds):
        bodies = []
        for x, y in samples:
            model = deepcopy(shared)
            for _ in range(2):
                plain.sgd(model, x, y, model.extractor.parameters())
            bodies.append(model.extractor.state_dict())
        shares = [n / sum(counts) for n in counts]
        shared.extractor.load_state_dict(plain.mean_state(bodies, shares))
    return shared


@pytest.mark.parametrize("tune", PARTS)
def test_rounds_and_fine_tuning_by_hand(toy, tune):
    with double_precision():
        options = {"rounds": 2, "local_epochs": 2, "fine_tune": TUNING}
        found = plain.federation(toy, "fedbabu", set={"tune": tune}, **options)
        line = found.rounds(2)[-1]
        shared = by_hand(found, 2)
        plain.assert_equal_states(
            plain.global_state(found, "extractor"), shared.extractor.state_dict()
        )
        accuracies = {}
        for number, (x, y) in enumerate(plain.samples_of(found)):
            kept = found.client(number).model.head.state_dict()
            plain.assert_equal_states(kept, shared.head.state_dict())
            model = deepcopy(shared)
            tuned = [p for part in PARTS[tune] for p in getattr(model, part).parameters()]
            for _ in range(TUNING):
                plain.sgd(model, x, y, tuned)
            test = found.plan.samples(found.plan.split(0).test(number), False)
            scores = model.eval()(torch.cat([*test.chunks(1000)]))
            accuracies[str(number)] = (scores.argmax(1) == test.y).double().mean().item()
        assert line["client_fine_tuned_accuracies"] == pytest.approx(accuracies)


def test_the_phase_names_what_fine_tuning_trains(toy):
    found = toy("fedbabu", models=plain.ONE)
    (phase,) = found.plan.composition.phases(found.plan.info)
    assert phase.trains == ("extractor",) and phase.fine_tunes == ("head",)


def test_all_clients_have_one_head_that_does_not_travel(toy):
    found = toy("fedbabu", models=plain.ONE, participation=0.5, weight_decay=0.1)
    found.rounds(2)
    head = plain.server_model(found).head.weight
    assert all(torch.equal(found.client(number).model.head.weight, head) for number in range(4))
    for blob in [*found.pool.uploads(1).values(), *found.pool.downloads(1).values()]:
        assert {key.partition("/")[0] for key in toyfed.header(blob)} <= {"extractor", "samples"}
    models = found.lifecycle("global_models", server=found.views()[1])
    (model,) = models["fedbabu"].values()
    assert torch.equal(model.head.weight, head)
    body = found.server.global_state["extractor/1.weight"]
    assert torch.equal(model.extractor[1].weight, body)
