"""Helpers for tests of methods with public data: a recorded federation, slow reference code."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from toy_federation import Toy

import protofl as pf
from protofl.hooks.wire.payload import GlobalState


class Public(Toy):
    """A federation on toy data with public samples; takes the options of `Toy`."""

    def __init__(self, method, data_dir, set=None, **options):
        given = {"partition": "iid", "batch_size": 5, "public": 20} | options
        given = {name: value for name, value in given.items() if value is not None}
        super().__init__(method, data_dir, set, **given)
        self.view = pf.Server(self.server, method)
        self.method = self.plan.composition.members[method].instance

    def after(self, count):
        """Run ``count`` more rounds and return the federation."""
        self.rounds(count)
        return self

    def jobs(self, round, when="before_upload"):
        """Return a round's training jobs, sorted by client; the pool runs costly clients first."""
        found = [job for job in self.travelled() if (job.round, job.when) == (round, when)]
        return sorted(found, key=lambda job: job.client)

    def travelled(self):
        """Return every training job with its payloads."""
        return [
            SimpleNamespace(
                round=job.round,
                when=job.when,
                client=job.client,
                held=job.keep_received,
                down=pf.Payload.from_bytes(job.blob),
                up=pf.Payload.from_bytes(reply.blob),
                down_bytes=len(job.blob),
            )
            for job, reply in self.pool.trained
        ]


def check_the_papers_run(method, data_dir, set=None):
    """Check that ``epochs=paper`` trains as in FedPKD's comparison, unless options override it."""

    def run(epochs, **options):
        chosen = {**(set or {}), "epochs": epochs}
        plan = Public(method, data_dir, chosen, **{"batch_size": None, **options}).plan
        settings = plan.settings
        return settings.optimizer, settings.lr, settings.batch_size

    assert run("paper") == ("adam", 1e-3, 32)
    assert run("paper", optimizer="sgd", lr=0.05, batch_size=7) == ("sgd", 0.05, 7)
    plain = ("adam", 1e-3, 32) if method == "fedpkd" else ("sgd", 0.01, 10)
    assert run("one") == plain


class DoubleSamples:
    """Public samples of a server: images in float64."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    @property
    def memory(self):
        return [self.x]

    def inputs(self, index=slice(None)):
        return self.x[index]

    def chunks(self, size):
        return self.x.split(size)

    def at(self, rows):
        return DoubleSamples(self.x[rows])


class DoubleServer:
    """A server in float64 with models of one dense layer: f(x) = tanh(Ax), h(z) = Bz + b."""

    round, device, evaluates, test = 1, torch.device("cpu"), True, None
    least_batch, replays = 4, False

    def __init__(self, config, samples=12, pixels=5, feature_dim=3, classes=4, batch=4, clients=()):
        stream = torch.Generator().manual_seed(5)
        x = torch.randn(samples, pixels, generator=stream, dtype=torch.float64)
        self.config, self.num_classes, self.batch_size = config, classes, batch
        self.sizes = pixels, feature_dim, classes
        self.public = DoubleSamples(x)
        self.global_state, self.modules, self.state = GlobalState(), {}, {}
        self.scratch = {}
        self.clients = {i: SimpleNamespace(architecture=name) for i, name in enumerate(clients)}
        self.orders = {}

    def build(self, name):
        pixels, features, classes = self.sizes
        with torch.random.fork_rng():
            torch.manual_seed(len(name))
            extractor = nn.Sequential(nn.Linear(pixels, features, bias=False), nn.Tanh())
            model = pf.models.SplitModel(extractor, nn.Linear(features, classes), features)
        return model.double()

    def generator(self, purpose):
        self.purpose = purpose
        return torch.Generator().manual_seed(sum(map(ord, purpose)))

    def epochs(self, count):
        return range(count)

    def batches(self, count, generator):
        """Return batches in random order, which `orders` records for the reference."""
        order = torch.randperm(count, generator=generator)
        batches = order.split(self.batch_size)
        self.orders.setdefault(self.purpose, []).append([b.tolist() for b in batches])
        return batches


def slow_scores(model, x):
    """Return the features and scores of one image, by loops."""
    A, B, b = model.extractor[0].weight, model.head.weight, model.head.bias
    z = [sum(A[k, i] * x[i] for i in range(len(x))).tanh() for k in range(len(A))]
    return z, [sum(B[c, k] * z[k] for k in range(len(z))) + b[c] for c in range(len(B))]


def slow_log_softmax(scores):
    """Return the log softmax of a list of scalar tensors."""
    total = sum(torch.as_tensor(s, dtype=torch.float64).exp() for s in scores).log()
    return [s - total for s in scores]


def slow_kl(student, teacher):
    """Return KL(softmax(teacher) ‖ softmax(student)) of two lists of scores."""
    p = [v.exp() for v in slow_log_softmax(teacher)]
    q = slow_log_softmax(student)
    return sum(pi * (pi.log() - qi) for pi, qi in zip(p, q, strict=True))


def slow_weights(z):
    """Return β[client][sample] of FedPKD Eq. 7 for nested lists z[client][sample][class]."""

    def variance(row):
        mean = sum(row) / len(row)
        return sum((v - mean) ** 2 for v in row) / len(row)

    found = [[variance(row) for row in client] for client in z]
    totals = [sum(column) for column in zip(*found, strict=True)]
    return [[v / t for v, t in zip(client, totals, strict=True)] for client in found]


def slow_training(model, orders, loss, rate, *, kind, momentum=0.0):
    """Train on batches, with ``loss(sample)`` for each sample and Adam or SGD written out."""
    weights = list(model.parameters())
    first = [torch.zeros_like(w) for w in weights]
    second = [torch.zeros_like(w) for w in weights]
    step = 0
    for epoch in orders:
        for batch in epoch:
            step += 1
            total = sum(loss(n) for n in batch) / len(batch)
            gradients = torch.autograd.grad(total, weights)
            with torch.no_grad():
                for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
                    if kind == "sgd":
                        first[i] = momentum * first[i] + g
                        w -= rate(step) * first[i]
                        continue
                    first[i] = 0.9 * first[i] + 0.1 * g
                    second[i] = 0.999 * second[i] + 0.001 * g * g
                    m, v = first[i] / (1 - 0.9**step), second[i] / (1 - 0.999**step)
                    w -= rate(step) * m / (v.sqrt() + 1e-8)


def payload(**tensors):
    return pf.Payload(tensors)


def logits(clients, samples, classes, seed=0):
    """Return random scores [M, N, C] in float64."""
    stream = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(clients, samples, classes, generator=stream, dtype=torch.float64)
