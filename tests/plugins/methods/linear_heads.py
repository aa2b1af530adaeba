"""Features, splits and checks for the tests of methods that compute a linear head."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from toy_federation import Toy

import protofl as pf


def drawn(count, K, C, seed):
    """Return features [count, K] in float64 that depend on their labels [count], of all C."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randperm(count, generator=generator) % C
    means = torch.randn(C, K, generator=generator, dtype=torch.float64)
    return means[y] + torch.randn(count, K, generator=generator, dtype=torch.float64), y


def split_at_random(count, clients, seed):
    """Return {client: its rows}: uneven, and each client has a row at least."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=generator)
    cuts = torch.randperm(count - 1, generator=generator)[: clients - 1].sort().values + 1
    return dict(enumerate(torch.tensor_split(order, cuts)))


def upload_of(method, config, X, y, C):
    """Return the upload of a client with features and labels, through the bytes of the wire."""
    counts = torch.bincount(y, minlength=C)
    client = SimpleNamespace(
        config=config,
        num_classes=C,
        class_counts=counts,
        received=pf.Payload(),
        device=X.device,
        train_features=lambda: (X, y),
    )
    return pf.Payload.from_bytes(method.upload_payload(client).to_bytes())


def features_of(toy, client):
    """Return the features of a client's training samples in float64, and their labels."""
    features, labels = toy.client(client).train_features()
    return features.double(), labels


def sent_by(toy):
    """Return {(round, client): its upload}, without empty ones."""
    uploads = [(job, pf.Payload.from_bytes(result.blob)) for job, result in toy.pool.trained]
    return {(job.round, job.client): upload for job, upload in uploads if upload}


def counted_once(name, keys, data_dir):
    """Check the payloads of rounds in which half of the clients take part."""
    whole = Toy(name, data_dir, same_init=True)
    whole.rounds(1)
    assert all(upload.keys() == keys for upload in sent_by(whole).values())
    toy = Toy(name, data_dir, same_init=True, participation=0.5, rounds=8)
    toy.rounds(8)
    assert sorted(client for _, client in sent_by(toy)) == [0, 1, 2, 3]
    assert {round_ for round_, _ in sent_by(toy)} != {0} and len(toy.up) == 16
    for key, tensor in whole.global_state.items():
        torch.testing.assert_close(toy.global_state[key], tensor, rtol=1e-5, atol=1e-5)
