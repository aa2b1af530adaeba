"""Tests of DepthFL against loops: its loss, FedDyn, the means of parts, and published numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

import protofl as pf
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.methods.depthfl import DepthFL, mutual_distillation

DEEP = toyfed.group(*toyfed.EXITS)
"""Clients 0 and 2 have two stages, 1 and 3 have one."""


@pytest.fixture
def found(toy):
    data = toyfed.make_images(toyfed.MIXED)

    def made(models=DEEP, **options):
        run = options.pop("run", {})
        return toy("depthfl", set=options, models=models, data=data, **run)

    return made


def uploads_of(federation, round):
    sent = federation.pool.uploads(round)
    return {client: pf.Payload.from_bytes(blob) for client, blob in sorted(sent.items())}


# --- the loss -------------------------------------------------------------------------------------


def softmax(row):
    total = sum(map(math.exp, row))
    return [math.exp(value) / total for value in row]


def slow_distillation(scores):
    """Return 1/(d − 1)·Σ_i Σ_{j≠i} KL(p_j ‖ p_i), mean over samples, number by number."""
    total, count = 0.0, len(scores[0])
    for i, learner in enumerate(scores):
        for j, teacher in enumerate(scores):
            if i == j:
                continue
            for own, other in zip(learner.tolist(), teacher.tolist(), strict=True):
                for p_i, p_j in zip(softmax(own), softmax(other), strict=True):
                    total += p_j * math.log(p_j / p_i) / count
    return total / (len(scores) - 1)


def exits_of_the_test():
    numbers = torch.arange(12, dtype=torch.float64)
    return [torch.sin(numbers * (i + 1)).reshape(3, 4) * (i + 1) for i in range(3)]


def test_exits_teach_one_another_as_in_a_loop_and_in_published_code():
    """``KLLoss`` in ``_train_one_epoch`` of adap/flower's baseline depthfl, commit 1df316e."""
    scores = exits_of_the_test()
    result = mutual_distillation(scores).item()
    assert result == pytest.approx(slow_distillation(scores), rel=1e-12)
    assert result == pytest.approx(3.8970081420431297, rel=1e-6)  # the code adds 1e-7 to p_j


def test_a_teacher_is_a_constant():
    scores = [z.requires_grad_() for z in exits_of_the_test()]
    gradients = torch.autograd.grad(mutual_distillation(scores), scores)
    for i, gradient in enumerate(gradients):
        p = [torch.tensor([softmax(row) for row in z.tolist()]) for z in scores]
        # ∂KL(p_j ‖ p_i)/∂z_i = p_i − p_j; by p_j's own scores there is none
        wanted = sum((p[i] - p[j]) / 3 for j in range(3) if j != i) / 2
        torch.testing.assert_close(gradient, wanted.double(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, 1.0),
        ({"w": 0.5}, 0.5),
        ({"variant": "official"}, math.exp(-5 * (1 - 7 / 300) ** 2)),
        ({"rampup": 7}, 1.0),
        ({"rampup": 14, "w": 2}, 2 * math.exp(-1.25)),
    ],
)
def test_the_loss_is_that_of_a_loop(found, options, weight):
    with double_precision():
        federation = found(alpha=0.3, **options)
        federation.rounds(1)
        record = federation.client(0)
        record.round = 7
        client = pf.Client(record, "depthfl")
        g = client.state["g"]
        constants = federation.lifecycle("before_training", client=client)["depthfl"]
        start = torch.cat([p.detach().flatten() for p in record.model.parameters()])
        with torch.no_grad():  # a step away from W_k
            for p in record.model.parameters():
                p += 0.1
        x, y = record.train.inputs(slice(4)), record.train.y[:4]
        record.model.eval()
        z = record.model.features(x)
        output = pf.Output(z, record.model.head(z))
        batch = pf.Batch(x, y, torch.arange(4))
        terms = federation.call(
            "local_loss", client=client, batch=batch, output=output, constants=constants
        )
        heads, scores = record.model.head.classifiers, []
        for n, h in enumerate(heads):
            scores.append(z[:, 4 * n : 4 * n + 4] @ h.weight.T + h.bias)
        ce = -sum(
            math.log(softmax(row)[c]) / 4
            for each in scores
            for row, c in zip(each.tolist(), y.tolist(), strict=True)
        )
        assert terms["ce"].item() == pytest.approx(ce, rel=1e-9)
        assert terms["kd"].item() == pytest.approx(weight * slow_distillation(scores), rel=1e-7)
        theta = torch.cat([p.detach().flatten() for p in record.model.parameters()])
        dyn = 0.0
        for now, was, own in zip(theta.tolist(), start.tolist(), g.tolist(), strict=True):
            dyn += 0.3 / 2 * (now - was) ** 2 - now * own
        assert terms["dyn"].item() == pytest.approx(dyn, rel=1e-9)
        mean = torch.stack(scores).mean(0)
        torch.testing.assert_close(output.logits, mean, atol=1e-12, rtol=1e-9)


def test_one_exit_has_no_distillation_and_alpha_0_no_feddyn(found):
    federation = found(alpha=0)
    federation.rounds(1)
    client = pf.Client(federation.client(1), "depthfl")
    z, y = torch.randn(2, 8), torch.tensor([0, 1])
    constants = federation.lifecycle("before_training", client=client)["depthfl"]
    terms = federation.call(
        "local_loss",
        client=client,
        batch=pf.Batch(z, y, y),
        output=pf.Output(z, z[:, :4]),
        constants=constants,
    )
    assert terms["ce"] and not terms["kd"] and not terms["dyn"]
    assert "g" not in client.state
    assert "h" not in pf.Server(federation.server, "depthfl").state


@pytest.mark.parametrize("options", [{"w": 0}, {"alpha": 0}, {"w": 0, "alpha": 0}])
def test_parts_of_the_loss_can_be_turned_off(found, options):
    dry_run(found(**options).plan)
    dry_run(found(models=toyfed.group(toyfed.EXITS[1]), **options).plan)


# --- FedDyn and the means -------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["uniform", "weighted"])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_each_part_is_the_mean_over_those_who_have_it(found, alpha, aggregate):
    with double_precision():
        federation = found(alpha=alpha, aggregate=aggregate, run={"lr": 0.01})
        h = None
        for round in range(2):
            before = dict(federation.server.global_state)
            h = h or {key: torch.zeros_like(W) for key, W in before.items()}
            federation.rounds(1)
            uploads = uploads_of(federation, round)
            assert "model/extractor.stages.1.0.weight" in uploads[0]
            assert "model/extractor.stages.1.0.weight" not in uploads[1]
            for key, now in federation.server.global_state.items():
                sent = [u for u in uploads.values() if key in u.keys()]
                if not now.is_floating_point():
                    assert now == max(int(u[key]) for u in sent)
                    continue
                n = [int(u["samples"]) if aggregate == "weighted" else 1 for u in sent]
                mean = sum(a * u[key] for a, u in zip(n, sent, strict=True)) / sum(n)
                if alpha and "/buffer/" not in key:
                    h[key] = h[key] - alpha * (len(sent) / 4) * (mean - before[key])
                    mean = mean - h[key] / alpha
                torch.testing.assert_close(now, mean, atol=1e-9, rtol=1e-9)


def test_h_is_divided_by_the_clients_that_can_take_part(found):
    """M is 3 of 4 clients; all of them are in the round, so |S|/M = 1 and W = 2·mean − W."""
    with double_precision():
        federation = found(run={"unseen": 1, "lr": 0.01})
        before = dict(federation.server.global_state)
        federation.rounds(1)
        uploads = uploads_of(federation, 0)
        assert len(uploads) == 3
        key = "model/head.classifiers.0.weight"
        mean = torch.stack([upload[key] for upload in uploads.values()]).mean(0)
        now = federation.server.global_state[key]
        torch.testing.assert_close(now, 2 * mean - before[key], atol=1e-9, rtol=1e-9)


def test_the_client_s_gradient_is_summed_over_its_rounds(found):
    """g_k ← g_k − α·(θ_k − W_k), also over rounds in which the client does not take part."""
    with double_precision():
        federation = found(run={"participation": 0.5, "lr": 0.01})
        g = [None] * 4
        for round in range(4):
            server = pf.Server(federation.server, "depthfl")
            downs = [
                federation.call("download_payload", server=server, client_id=n) for n in range(4)
            ]
            federation.rounds(1)
            for client, upload in uploads_of(federation, round).items():
                names = [n for n, _ in federation.client(client).model.named_parameters()]
                keys = [f"model/{name}" for name in names]
                moved = torch.cat([(upload[k] - downs[client][k]).flatten() for k in keys])
                g[client] = (0 if g[client] is None else g[client]) - 0.1 * moved
        for client, own in enumerate(g):
            state = pf.Client(federation.client(client), "depthfl").state
            if own is None:
                assert "g" not in state
            else:
                torch.testing.assert_close(state["g"], own, atol=1e-9, rtol=1e-9)


def test_two_rounds_of_the_server_are_those_of_published_code():
    """``aggregate`` of adap/flower's baseline depthfl, commit 14781b2, with α = 0.1 and M = 4."""
    start = {"model/a": torch.tensor([1.0, 2]).double(), "model/b": torch.tensor([3.0, 4]).double()}
    server = SimpleNamespace(
        config=DepthFL.Config(),
        num_clients=4,
        global_state=pf.Payload(start),
        state={"h": {key: torch.zeros_like(W) for key, W in start.items()}},
    )
    rounds = [
        ([{"a": [2.0, 0], "b": [1.0, 5]}, {"a": [4.0, 1]}], [[4, -0.25], [0.5, 5.25]]),
        ([{"a": [1.0, 1]}, {"a": [0.0, 3]}], [[-0.25, 2.375], [0.5, 5.25]]),
    ]
    for sent, published in rounds:
        uploads = {
            n: pf.Payload(
                {f"model/{key}": torch.tensor(v).double() for key, v in each.items()},
                samples=torch.tensor(n + 1),
            )
            for n, each in enumerate(sent)
        }
        server.global_state |= DepthFL().server_aggregate(server, uploads)
        now = [server.global_state[key].tolist() for key in start]
        assert [x for row in now for x in row] == pytest.approx([x for r in published for x in r])


def test_a_part_that_no_client_of_the_round_has_stays(found):
    federation = found(run={"participation": 0.25})
    stayed = 0
    for round in range(6):
        before = dict(federation.server.global_state)
        federation.rounds(1)
        ((client, _),) = uploads_of(federation, round).items()
        for key in ("model/extractor.stages.1.0.weight", "model/head.classifiers.1.weight"):
            same = torch.equal(before[key], federation.server.global_state[key])
            assert same == (client % 2 == 1)
            stayed += same
    assert stayed


# --- payloads and refusals ------------------------------------------------------------------------


def test_floats_that_travel(found):
    federation = found()
    (line,) = federation.rounds(1)
    sizes = [sum(p.numel() for p in federation.client(n).model.parameters()) for n in range(4)]
    assert sizes[0] > sizes[1] and sizes[0] == sizes[2]
    assert line["upload_floats"] == line["download_floats"] == sum(sizes)


def test_clients_begin_with_the_server_s_parts(found):
    federation = found()
    federation.rounds(2)
    server = pf.Server(federation.server, "depthfl")
    for client in range(4):
        sent = federation.call("download_payload", server=server, client_id=client)
        own = pf.models.pack_weights(federation.client(client).model, "model")
        assert {*sent} == {*own}
        assert all(torch.equal(t, server.global_state[key]) for key, t in sent.items())


@pytest.mark.parametrize(
    "members",
    [
        [toyfed.CNN],
        [toyfed.CNN, toyfed.NORM],
        [toyfed.EXITS[0], toyfed.CNN],
    ],
)
def test_nets_without_exits_are_refused(found, members):
    with pytest.raises(pf.UsageError, match="one net in several depths, with an exit after each"):
        found(models=toyfed.group(*members))


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_methods_of_widths_refuse_depths(toy, method):
    with pytest.raises(pf.UsageError, match="one net in several widths, and the clients have exit"):
        toy(method, models=DEEP)
