"""Tests of FedL2G against second derivatives and loops: ∂Q/∂v, L, server step, warm-up, quiz."""

from __future__ import annotations

import pytest
import torch
from slow_equations import mean_cross_entropy, numbers
from torch.func import functional_call
from toy_federation import run_defaults

import protofl as pf
from protofl_plugins.methods.fedl2g import FedL2G, GuidedModel, guide_gradient, labelled

GUIDES = ("logits", "features")
NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)


def as_double(samples, start, end):
    """Return the inputs (in float64) and labels of some samples."""
    part = samples.at(slice(start, end))
    return part.inputs().double(), part.y


def second_order(net, study, quiz, v, eta, weight):
    """Return ∂Q/∂v by differentiating through the step."""
    v = v.clone().requires_grad_()
    theta = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
    g, logits = functional_call(net, theta, (study[0],))
    ce = torch.nn.functional.cross_entropy(logits, study[1])
    loss = ce + weight * (g - v[study[1]]).square().mean()
    slope = torch.autograd.grad(loss, [*theta.values()], create_graph=True, materialize_grads=True)
    stepped = {n: p - eta * s for (n, p), s in zip(theta.items(), slope, strict=True)}
    _, logits = functional_call(net, stepped, (quiz[0],))
    return torch.autograd.grad(torch.nn.functional.cross_entropy(logits, quiz[1]), v)[0]


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("number", [0, 1])
def test_the_gradient_is_that_of_second_order(toy, guide, number):
    federation = toy("fedl2g", set={"guide": guide})
    record = federation.client(number)
    net = GuidedModel(record.model.double().eval(), guide)
    study, quiz = as_double(record.train, 0, 7), as_double(record.train, 7, 12)
    C, K = federation.plan.info.num_classes, federation.plan.info.feature_dim
    v = torch.randn(C, C if guide == "logits" else K, dtype=torch.float64)
    before = {n: p.clone() for n, p in net.named_parameters()}
    found = guide_gradient(net, study, quiz, v, 0.3, 0.7)
    assert torch.allclose(found, second_order(net, study, quiz, v, 0.3, 0.7), atol=1e-12, rtol=1e-9)
    assert found.abs().max() > 1e-6
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())


def trained_step(net, study, quiz, v, eta, weight, seed):
    """Return ∂Q/∂v by differentiating through a step of the net itself, in its own mode.

    The published code does the same: no copies, no other mode, one graph of second order. The net's
    buffers change.
    """
    v = v.clone().requires_grad_()
    torch.manual_seed(seed)
    g, logits = net(study[0])
    ce = torch.nn.functional.cross_entropy(logits, study[1])
    loss = ce + weight * (g - v[study[1]]).square().mean()
    names, theta = zip(*net.named_parameters(), strict=True)
    slope = torch.autograd.grad(loss, theta, create_graph=True, materialize_grads=True)
    stepped = {n: p - eta * s for n, p, s in zip(names, theta, slope, strict=True)}
    _, logits = functional_call(net, stepped, (quiz[0],))
    return torch.autograd.grad(torch.nn.functional.cross_entropy(logits, quiz[1]), v)[0]


def norm_net(guide, dropout):
    """Return a net with BatchNorm over maps and over features, and dropout."""
    torch.manual_seed(3)
    extractor = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU()),
        *(torch.nn.Dropout(dropout), torch.nn.Flatten(), torch.nn.Linear(6 * 36, 8)),
        *(torch.nn.BatchNorm1d(8), torch.nn.Tanh()),
    )
    model = pf.models.SplitModel(extractor, torch.nn.Linear(8, 4), 8)
    return GuidedModel(model.double(), guide)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_in_training_mode_the_gradient_is_that_of_a_plain_loop(guide, dropout):
    net = norm_net(guide, dropout).train()
    study = torch.randn(7, 3, 8, 8, dtype=torch.float64), torch.arange(7) % 3
    quiz = torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.arange(5) % 4
    v = torch.randn(4, 4 if guide == "logits" else 8, dtype=torch.float64)
    before = {n: value.clone() for n, value in net.state_dict().items()}
    stream = torch.get_rng_state()
    found = guide_gradient(net, study, quiz, v, 0.3, 0.7, seed=11)
    assert torch.equal(torch.get_rng_state(), stream)
    assert all(torch.equal(value, before[n]) for n, value in net.state_dict().items())
    expected = trained_step(net, study, quiz, v, 0.3, 0.7, seed=11)
    assert not torch.equal(net.state_dict()["model.extractor.1.running_mean"], torch.zeros(6))
    assert torch.allclose(found, expected, atol=1e-12, rtol=1e-9)
    net.load_state_dict(before)
    evaluated = guide_gradient(net.eval(), study, quiz, v, 0.3, 0.7, seed=11)
    assert not torch.allclose(evaluated, expected, rtol=0.1)
    assert found[3].abs().max() == 0 and found[:3].abs().min() > 0  # no study sample of class 3


class Recurrent(torch.nn.Module):
    """The last output of an LSTM."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 8, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


def test_nets_with_an_lstm_whose_fused_kernel_has_no_forward_mode():
    """In float32; in float64, torch takes the plain kernel by itself."""
    torch.manual_seed(3)
    net = GuidedModel(pf.models.SplitModel(Recurrent(), torch.nn.Linear(8, 4), 8), "logits")
    study = torch.randn(7, 5, 3), torch.arange(7) % 4
    quiz = torch.randn(5, 5, 3), torch.arange(5) % 4
    found = guide_gradient(net, study, quiz, v := torch.randn(4, 4), 0.3, 0.7)
    study, quiz = ((x.double(), y) for x, y in (study, quiz))
    expected = second_order(net.double(), study, quiz, v.double(), 0.3, 0.7)
    assert torch.allclose(found.double(), expected, atol=1e-6, rtol=1e-3)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("guide", GUIDES)
def test_an_upload_is_computed_in_training_mode(toy, guide):
    federation = toy("fedl2g", set={"guide": guide, "warmup": 1})
    record = federation.prepare(1, federation.server.global_state, double=False)
    client = pf.Client(record, "fedl2g")
    assert len(client.state["quiz"]) >= client.least_batch
    before = {n: value.clone() for n, value in record.model.state_dict().items()}
    upload = federation.call("upload_payload", client=client)
    assert all(torch.equal(v, before[n]) for n, v in record.model.state_dict().items())
    assert not any(module.training for module in record.model.modules())
    rows = torch.randperm(len(client.state["studied"]), generator=client.generator("study"))
    study = labelled(client, client.state["studied"][rows[: client.batch_size]])
    quiz = labelled(client, client.state["quiz"])
    v, _ = client.received.table("guides", client.num_classes)
    net = GuidedModel(record.model, guide).train()
    assert any(isinstance(m, NORMS) for m in net.modules())
    seed = client.generator("dropout").initial_seed()
    expected = trained_step(net, study, quiz, v, client.lr, 1.0, seed)
    found = upload["guide_gradients"]
    assert torch.allclose(found, expected[upload["classes"]], atol=1e-7, rtol=1e-3)


def test_batches_too_small_for_batch_norm_are_computed_in_evaluation_mode(toy):
    federation = toy("fedl2g", set={"warmup": 1})
    record = federation.prepare(1, federation.server.global_state, double=False)
    client = pf.Client(record, "fedl2g")
    client.state["quiz"] = client.state["quiz"][: client.least_batch - 1]
    found = federation.call("upload_payload", client=client)["guide_gradients"]
    rows = torch.randperm(len(client.state["studied"]), generator=client.generator("study"))
    study = labelled(client, client.state["studied"][rows[: client.batch_size]])
    quiz = labelled(client, client.state["quiz"])
    v, _ = client.received.table("guides", client.num_classes)
    expected = guide_gradient(
        GuidedModel(record.model, "logits").eval(), study, quiz, v, client.lr, 1.0
    )
    assert torch.equal(found, expected[torch.bincount(study[1], minlength=len(v)) > 0])


def test_the_official_variant_trains_as_the_published_code():
    official = FedL2G.Config(variant="official")
    expected = {"drop_last": True, "same_init": True, "shuffle": False, "clip": 100.0}
    assert run_defaults(FedL2G, official) == expected
    assert run_defaults(FedL2G, FedL2G.Config()) == {}


@pytest.mark.parametrize("guide", GUIDES)
def test_the_loss_guides_each_sample_to_its_class(toy, guide):
    federation = toy("fedl2g", set={"guide": guide, "weight": 0.5})
    client = pf.Client(federation.client(0), "fedl2g")
    client.received["guides"] = torch.randn(4, 4 if guide == "logits" else client.feature_dim)
    client.received["classes"] = torch.arange(4)
    y = [2, 0, 2]
    x = torch.rand(3, *client.sample.shape)
    z = client.features(x)
    output = pf.Output(z, client.head(z))
    given = {"v": client.received["guides"]}
    batch = pf.Batch(x, torch.tensor(y), torch.arange(3))
    terms = federation.call(
        "local_loss", client=client, batch=batch, output=output, constants=given
    )
    rows = numbers(output.logits if guide == "logits" else z)
    v = numbers(client.received["guides"])
    squares = [
        (a - b) ** 2 for row, c in zip(rows, y, strict=True) for a, b in zip(row, v[c], strict=True)
    ]
    assert terms["guide"].item() == pytest.approx(0.5 * sum(squares) / len(squares), rel=1e-5)
    assert terms["ce"].item() == pytest.approx(
        mean_cross_entropy(numbers(output.logits), y), rel=1e-5
    )


@pytest.mark.parametrize(("size", "bounded"), [(1.0, False), (500.0, True)])
def test_the_server_steps_along_the_mean_over_those_who_sent_a_class(toy, size, bounded):
    federation = toy("fedl2g", set={"eta_s": 0.2})
    sent = {0: [0, 3], 1: [3], 2: [1, 0]}
    uploads = {
        i: pf.Payload(guide_gradients=size * torch.randn(len(c), 4), classes=torch.tensor(c))
        for i, c in sent.items()
    }
    before = federation.server.global_state["guides"].clone()
    mean = torch.zeros(4, 4)
    for c in range(4):
        rows = [u["guide_gradients"][sent[i].index(c)] for i, u in uploads.items() if c in sent[i]]
        if rows:
            mean[c] = sum(rows) / len(rows)
    norm = mean.square().sum().sqrt()
    assert (norm > 100) == bounded
    expected = before - 0.2 * mean * (100 / norm if bounded else 1)
    found = federation.call("server_aggregate", server=federation.views()[1], uploads=uploads)
    assert torch.allclose(found["guides"], expected, atol=1e-5)


def test_clients_start_to_train_when_guides_are_warm(toy):
    federation = toy("fedl2g", set={"warmup": 2}, rounds=4)
    guides, weights = [], []
    for _ in range(4):
        federation.rounds(1)
        guides.append(federation.server.global_state["guides"].clone())
        weights.append(next(federation.client(0).model.parameters()).clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert not torch.equal(guides[0], guides[1])
    assert [
        "warmed_up" in pf.Payload.from_bytes(federation.pool.downloads(r)[0]) for r in range(4)
    ] == [False, False, True, True]


def test_the_warm_up_is_at_most_half_of_the_rounds(toy):
    federation = toy("fedl2g", rounds=3)
    federation.rounds(3)
    assert [
        "warmed_up" in pf.Payload.from_bytes(federation.pool.downloads(r)[0]) for r in range(3)
    ] == [False, True, True]


def test_nobody_trains_on_its_quiz_batch(toy):
    federation = toy("fedl2g", set={"warmup": 0})
    federation.rounds(1)
    for number in range(4):
        record = federation.client(number)
        state = record.state["fedl2g"]
        both = torch.cat([state["quiz"], state["studied"]])
        assert sorted(both.tolist()) == list(range(len(record.train)))
        assert len(state["quiz"]) == min(
            federation.plan.settings.batch_size, len(record.train) // 2
        )
    seen = {job.client: reply.samples for job, reply in federation.pool.trained}
    assert seen == {i: len(federation.client(i).state["fedl2g"]["studied"]) for i in range(4)}
