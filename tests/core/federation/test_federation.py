"""Tests of the hooks in a round: modes, threads, evaluation without side effects, errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from runtime_toys import lines_of, make_plan, open_federation, without_times
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.data.batches import LEAST
from protofl.federation.jobs.jobs import Evaluate


class Projecting:
    """Predicts with its own module (BatchNorm and dropout), which is trained with the model."""

    terms = {"ce": "cross-entropy of the own module"}

    @pf.hookimpl
    def setup_client(self, client):
        layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)]
        client.add_module("own", nn.Sequential(*layers), lr=0.2)
        client.add_module("frozen", nn.BatchNorm1d(6), train=False)

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        assert client.module("own").training
        assert not client.module("frozen").training
        scores = client.module("own")(client.module("frozen")(output.features))
        return {"ce": cross_entropy(scores, batch.y)}

    @pf.hookimpl
    def inference(self, client, x):
        assert not client.module("extractor").training
        assert not client.module("frozen").training
        return client.module("own")(client.features(x))


class Receiving(Projecting):
    """Like `Projecting`, with a receive hook whose changes evaluation must undo."""

    @pf.hookimpl
    def receive(self, client):
        client.state["seen"] = client.state.get("seen", 0) + 1
        with torch.no_grad():
            client.module("head").bias.add_(1)
            client.module("own")[0].bias.add_(1)

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(seen=torch.tensor(float(client.state["seen"])))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        return {"seen": torch.stack([u["seen"] for u in uploads.values()])}


@pytest.mark.parametrize("method", [Projecting, Receiving, "fedsa", "fedavg", "fedproto"])
def test_evaluation_changes_nothing(method):
    options = {"rounds": 3, "models": "toy1"}
    every = lines_of(make_plan(method, **options, eval_every=1))
    last = lines_of(make_plan(method, **options, eval_every=5))
    assert [line["test_accuracy"] is None for line in last] == [True, True, False]
    for one, two in zip(without_times(every), without_times(last), strict=True):
        assert one["loss_terms"] == two["loss_terms"]
        assert one["upload_bytes"] == two["upload_bytes"]
    assert every[-1]["test_accuracy"] == last[-1]["test_accuracy"]


def test_evaluation_may_be_repeated():
    federation = open_federation(make_plan(Receiving))
    federation.round(0)
    found = []
    for _ in range(2):
        jobs = [Evaluate(c, 0) for c in range(4)]
        found.append({j.client: r.correct for j, r in federation.pool.run(jobs)})
    assert found[0] == found[1]


def test_the_own_module_scores_in_eval_mode():
    modes = []

    class Watching(Projecting):
        @pf.hookimpl
        def inference(self, client, x):
            modes.append(client.module("own").training)
            return super().inference(client, x)

    lines_of(make_plan(Watching))
    assert modes
    assert not any(modes)


def test_modules_train_with_their_own_rate_and_frozen_ones_do_not():
    seen = {}

    class Watching(Projecting):
        @pf.hookimpl
        def before_training(self, client):
            if client.id == 0:
                seen["before"] = {
                    k: v.clone() for k, v in client.module("own").state_dict().items()
                }
                seen["frozen"] = client.module("frozen").weight.clone()

        @pf.hookimpl
        def upload_payload(self, client):
            if client.id == 0:
                seen["after"] = client.module("own").state_dict()
                assert torch.equal(seen["frozen"], client.module("frozen").weight)
                assert client.module("frozen").num_batches_tracked == 0
            return pf.Payload()

    lines_of(make_plan(Watching), rounds=1)
    assert not torch.equal(seen["before"]["0.weight"], seen["after"]["0.weight"])


@pytest.mark.parametrize("with_model", [True, False])
def test_a_module_with_the_model_shares_its_bound_on_the_gradient(with_model):
    """One step with η = 0.5 moves each group by η·clip, or less if its gradient is smaller."""
    moved = []

    class Clipped:
        terms = {"ce": "cross-entropy of the own module"}

        @pf.hookimpl
        def setup_client(self, client):
            client.add_module("own", nn.Linear(6, 4), with_model=with_model)

        @pf.hookimpl
        def local_loss(self, client, batch, output):
            return {"ce": cross_entropy(client.module("own")(output.features), batch.y)}

        @pf.hookimpl
        def before_training(self, client):
            client.state["before"] = [w.detach().clone() for w in self.weights(client)]

        @pf.hookimpl
        def upload_payload(self, client):
            pairs = zip(self.weights(client), client.state.pop("before"), strict=True)
            squares = [float((a - b).square().sum()) for a, b in pairs]
            moved.append((sum(squares[-2:]) ** 0.5, sum(squares) ** 0.5))
            return pf.Payload()

        @staticmethod
        def weights(client):
            return [*client.parameters(), *client.module("own").parameters()]

    lines_of(make_plan(Clipped, lr=0.5, clip=0.01, batch_size=500), rounds=1)
    for own, both in moved:
        if with_model:
            assert own < both == pytest.approx(0.005, rel=1e-3)
        else:
            assert both == pytest.approx(2**0.5 * 0.005, rel=1e-3)
            assert own == pytest.approx(0.005, rel=1e-3)


def test_few_samples_train_in_eval_mode():
    modes = {}

    class Watching:
        terms = {"ce": "x"}

        @pf.hookimpl
        def before_training(self, client):
            return {"samples": client.num_samples}

        @pf.hookimpl
        def local_loss(self, client, batch, output, constants):
            modes[constants["samples"]] = client.module("model").training
            return {"ce": cross_entropy(output.logits, batch.y)}

    found = make_plan(Watching)
    whole = found.split(0)

    class Short:
        def __init__(self, split):
            self._split = split

        def __getattr__(self, name):
            return getattr(self._split, name)

        def train(self, client):
            return self._split.train(client)[: client + 1]

    lines_of(replace(found, splits=lambda seed: Short(whole)), rounds=1)
    assert modes == {n: n >= LEAST for n in (1, 2, 3, 4)}


def test_threads_of_clients_and_server():
    seen = {}

    def note(hook):
        seen.setdefault(hook, set()).add(torch.get_num_threads())

    class Watching:
        @pf.hookimpl
        def setup_server(self, server):
            note("setup_server")

        @pf.hookimpl
        def setup_client(self, client):
            note("setup_client")

        @pf.hookimpl
        def download_payload(self, server):
            note("download_payload")
            return pf.Payload()

        @pf.hookimpl
        def after_training(self, client):
            note("after_training")

        @pf.hookimpl
        def server_aggregate(self, server, uploads):
            note("server_aggregate")
            return {}

        @pf.hookimpl
        def end_round(self, server):
            note("end_round")

        @pf.hookimpl
        def inference(self, client, x):
            note("inference")
            return client.head(client.features(x))

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        lines_of(make_plan(Watching, server_threads=3), rounds=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    clients = {"setup_client", "after_training", "inference"}
    assert seen == {hook: {1} if hook in clients else {3} for hook in seen}
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("hook", "arguments", "place"),
    [
        ("setup_server", "server", "setup_server"),
        ("setup_client", "client", "setup_client 0"),
        ("download_payload", "server", "download_payload, client 0, round 1"),
        ("receive", "client", "receive, client 0, round 1"),
        ("before_training", "client", "before_training, client 0, round 1"),
        ("local_loss", "client", "local_loss, client 0, round 1"),
        ("after_training", "client", "after_training, client 0, round 1"),
        ("upload_payload", "client", "upload_payload, client 0, round 1"),
        ("server_aggregate", "uploads", "server_aggregate, round 1"),
        ("server_train", "uploads", "server_train, round 1"),
        ("inference", "client, x", "inference, client 0, evaluation of round 1"),
        ("end_round", "server", "end_round, round 1"),
    ],
)
def test_an_error_in_a_hook_says_where(hook, arguments, place):
    if hook == "local_loss":
        arguments = "client, batch, output"
    space = {"pf": pf}
    exec(
        "class Failing:\n    terms = {'ce': ''}\n    @pf.hookimpl\n"
        f"    def {hook}(self, {arguments}):\n        raise ZeroDivisionError('seven')",
        space,
    )
    with pytest.raises(pf.RunFailure) as caught:
        lines_of(make_plan(space["Failing"], clients=1))
    assert f"{place}: ZeroDivisionError: seven" in caught.value.what
    assert caught.value.exit_code == 1


def test_figures_of_a_line():
    class Uploading:
        @pf.hookimpl
        def download_payload(self, server, client_id):
            return pf.Payload(x=torch.zeros(3), i=torch.tensor(4))

        @pf.hookimpl
        def upload_payload(self, client):
            return pf.Payload(y=torch.zeros(client.id))

        @pf.hookimpl
        def inference(self, client, x):
            scores = torch.zeros(len(x), 4)
            scores[:, client.id % 4] = 1
            return scores

    plan = make_plan(Uploading, participation=0.5)
    federation = open_federation(plan)
    line, clients = federation.round(0)
    assert len(clients) == line["participants"] == 2
    assert line["download_floats"] == 6
    assert line["download_bytes"] == 2 * len(
        pf.Payload(x=torch.zeros(3), i=torch.tensor(4)).to_bytes()
    )
    assert line["upload_floats"] == sum(clients)
    hits, counts = [], []
    for client in range(4):
        labels = plan.data.y[plan.split(0).test(client)]
        hits.append(int((labels == client).sum()))
        counts.append(len(labels))
    shares = [h / n for h, n in zip(hits, counts, strict=True)]
    mean = sum(shares) / 4
    assert line["test_accuracy"] == pytest.approx(sum(hits) / sum(counts))
    assert line["client_test_accuracy"] == pytest.approx(mean)
    assert line["test_accuracy_std"] == pytest.approx(
        math.sqrt(sum((s - mean) ** 2 for s in shares) / 4)
    )
    assert federation.client_accuracy == pytest.approx(dict(enumerate(shares)))


def test_participants_depend_on_seed_and_round_alone():
    def chosen(method, seed, trial=0):
        federation = open_federation(make_plan(method, participation=0.5, seed=seed), trial)
        return [federation._rounds.participants(n) for n in range(8)]

    reference = chosen("local", 0)
    assert all(c == sorted(set(c)) and len(c) == 2 for c in reference)
    assert len({tuple(c) for c in reference}) > 1
    assert chosen("fedsa", 0) == reference
    assert chosen("local", 1) != reference
    assert chosen("local", 0, trial=1) == chosen("local", 1)
    one = open_federation(make_plan("local", participation=0.01))
    assert len(one._rounds.participants(0)) == 1


def test_comparisons_between_methods_are_paired():
    plans = [make_plan(m, models="toy1") for m in ("local", "fedsa")]
    assert plans[0].split(0).hash == plans[1].split(0).hash
    for client in range(4):
        one, two = (p.initial_model(client, 0).state_dict() for p in plans)
        assert all(torch.equal(a, b) for a, b in zip(one.values(), two.values(), strict=True))
    weights = [plans[0].initial_model(c, 0).head.weight for c in range(2)]
    assert not torch.equal(*weights)
    same = make_plan("local", models="toy1", same_init=True)
    assert torch.equal(*(same.initial_model(c, 0).head.weight for c in range(2)))
    assert not torch.equal(weights[0], plans[0].initial_model(0, 1).head.weight)
