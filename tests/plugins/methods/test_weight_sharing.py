"""Tests of shared weights in FedAvg, FedProx and LG-FedAvg: averages, buffers, refusals."""

from __future__ import annotations

import pytest
import torch
from slow_equations import numbers

import protofl as pf
from protofl.testing import toy as toyfed

METHODS = ["fedavg", "fedprox", "lg-fedavg"]
ONE = toyfed.group(toyfed.NORM)
TWO_HEADS = toyfed.group(toyfed.CNN, toyfed.TWO_LAYERS)


def random_uploads(found, part, samples):
    """Return uploads for {client: n_i}, with random weights in the shapes of client 0's model."""
    client, _ = found.views()
    uploads = {}
    for number, n in samples.items():
        payload = pf.models.pack_weights(client.module(part), part)
        generator = torch.Generator().manual_seed(number)
        for name, tensor in payload.items():
            if tensor.is_floating_point():
                payload[name] = torch.randn(tensor.shape, generator=generator).double()
            else:
                payload[name] = torch.tensor([40, 0, 90, 7][number])
        payload["samples"] = torch.tensor(n)
        uploads[number] = payload
    return uploads


def slow_average(uploads, name, weighted):
    """Return Σ_i (n_i/n) · w_i, one number at a time."""
    flat = [numbers(u[name].flatten()) for u in uploads.values()]
    counts = [int(u["samples"]) if weighted else 1 for u in uploads.values()]
    total = sum(counts)
    return [
        sum(n / total * w[k] for n, w in zip(counts, flat, strict=True))
        for k in range(len(flat[0]))
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", ["weighted", "uniform"])
def test_the_average(toy, method, mode):
    found = toy(method, set={"aggregate": mode}, models=ONE)
    part = "head" if method == "lg-fedavg" else "model"
    uploads = random_uploads(found, part, {0: 3, 2: 10, 3: 1})
    _, server = found.views()
    result = found.call("server_aggregate", server=server, uploads=uploads)
    assert result.keys() == uploads[0].keys() - {"samples"}
    for name, tensor in result.items():
        assert tensor.shape == uploads[0][name].shape
        if tensor.is_floating_point():
            slow = slow_average(uploads, name, mode == "weighted")
            assert numbers(tensor.flatten()) == pytest.approx(slow, rel=1e-9, abs=1e-12)
        else:
            assert name == "model/buffer/extractor.2.num_batches_tracked"
            assert int(tensor) == max(int(u[name]) for u in uploads.values())
    assert any(not t.is_floating_point() for t in result.values()) == (part == "model")


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_buffers_are_averaged_and_installed(toy, method):
    found = toy(method, models=ONE)
    found.rounds(1)
    uploads = {c: pf.Payload.from_bytes(b) for c, b in found.pool.uploads(0).items()}
    key = "model/buffer/extractor.2.running_mean"
    mean = slow_average(uploads, key, True)
    assert numbers(found.server.global_state[key]) == pytest.approx(mean, rel=1e-5, abs=1e-6)
    record = found.prepare(1, found.server.global_state, double=False)
    assert numbers(record.model.extractor[2].running_mean) == pytest.approx(
        mean, rel=1e-5, abs=1e-6
    )
    assert len({tuple(numbers(u[key])) for u in uploads.values()}) == 4


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_local_buffers_stay_on_the_client(toy, method):
    found = toy(method, set={"buffers": "local"}, models=ONE)
    found.rounds(2)
    for blob in [*found.pool.uploads(1).values(), *found.pool.downloads(1).values()]:
        assert blob
        assert not any("/buffer/" in name for name in toyfed.header(blob))
    assert not any("/buffer/" in name for name in found.server.global_state)
    means = []
    for number in range(4):
        before = found.client(number).model.extractor[2].running_mean.clone()
        record = found.prepare(number, found.server.global_state, double=False)
        assert torch.equal(before, record.model.extractor[2].running_mean)
        means.append(tuple(before.tolist()))
    assert len({*means}) == 4
    weights = [found.client(n).model.extractor[1].weight for n in range(4)]
    assert all(torch.equal(weights[0], w) for w in weights)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_everybody_starts_from_the_servers_model(toy, method):
    found = toy(method, models=ONE)
    own = [found.client(n).model.head.weight.clone() for n in range(4)]
    assert not torch.equal(own[0], own[1])
    found.rounds(1)
    downloads = found.pool.downloads(0)
    assert len({*downloads.values()}) == 1
    payload = pf.Payload.from_bytes(downloads[0])
    assert payload.keys() == pf.models.pack_weights(found.client(0).model, "model").keys()
    assert not any(torch.equal(payload["model/head.weight"], w) for w in own)


def test_lg_fedavg_shares_the_head_only(toy):
    found = toy("lg-fedavg")
    found.rounds(2)
    for blob in found.pool.uploads(0).values():
        assert toyfed.header(blob).keys() == {"head/weight", "head/bias", "samples"}
    for blob in found.pool.downloads(1).values():
        assert toyfed.header(blob).keys() == {"head/weight", "head/bias"}
    uploads = {c: pf.Payload.from_bytes(b) for c, b in found.pool.uploads(0).items()}
    for client, upload in uploads.items():
        assert int(upload["samples"]) == sum(toyfed.MIXED[client])
    download = pf.Payload.from_bytes(found.pool.downloads(1)[2])
    for name in ("head/weight", "head/bias"):
        slow = slow_average(uploads, name, True)
        assert numbers(download[name].flatten()) == pytest.approx(slow, rel=1e-5, abs=1e-7)
    record = found.prepare(2, download, double=False)
    assert torch.equal(record.model.head.weight, download["head/weight"])
    assert torch.equal(record.model.head.bias, download["head/bias"])


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_lg_fedavg_begins_with_one_head(toy, variant):
    """The first mean of different initial heads would fit no client's features."""
    found = toy("lg-fedavg", set={"variant": variant}, same_init=False)
    own = [found.client(n).model.head.weight.clone() for n in range(4)]
    assert not any(torch.equal(own[0], w) for w in own[1:])
    server = found.views()[1]
    head = server.build(server.clients[0].architecture).head
    for number in range(4):
        download = found.call("download_payload", server=server, client_id=number)
        assert download.keys() == {"head/weight", "head/bias"}
        record = found.prepare(number, download, double=False)
        for name, parameter in record.model.head.named_parameters():
            assert torch.equal(parameter, dict(head.named_parameters())[name])
    first = found.rounds(1)[0]
    assert first["download_floats"] == first["upload_floats"] > 0
    blobs = {*found.pool.downloads(0).values()}
    assert len(blobs) == 1 and b"" not in blobs


def test_lg_fedavg_official_drops_the_last_batch(toy):
    assert toy("lg-fedavg").plan.settings.drop_last is False
    assert toy("lg-fedavg", set={"variant": "official"}).plan.settings.drop_last is True


@pytest.mark.parametrize("method", METHODS)
def test_inference_is_by_the_installed_model(toy, method):
    found = toy(method, models=ONE)
    found.rounds(1)
    record = found.prepare(0, found.server.global_state, double=False)
    record.model.eval()
    x = record.test.inputs()
    scores = found.call("inference", client=pf.Client(record, method), x=x)
    assert torch.equal(scores, record.model(x))


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_whole_models_need_one_architecture(toy, method):
    with pytest.raises(pf.UsageError) as caught:
        toy(method)
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert "2 architectures (cnn, norm)" in text
    assert "--models cnn4" in text and "fedproto" in text


def test_lg_fedavg_needs_one_head(toy):
    with pytest.raises(pf.UsageError) as caught:
        toy("lg-fedavg", models=TWO_HEADS)
    assert caught.value.exit_code == 2
    assert "(linear, 5)" in str(caught.value)
    assert "--models htfe8" in str(caught.value)
    assert toy("lg-fedavg").rounds(1)  # two extractors with one kind of head


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ditto", "scaffold"])
def test_each_architecture_has_a_model_of_its_own(toy, method):
    found = toy(method, set={"scope": "architecture"}, models=TWO_HEADS)
    found.rounds(2)
    first, second = (found.pool.downloads(number) for number in (0, 1))
    uploads = {c: pf.Payload.from_bytes(b) for c, b in found.pool.uploads(0).items()}
    assert [first[0], first[1]] == [first[2], first[3]] and first[0] != first[1]
    assert [second[0], second[1]] == [second[2], second[3]]
    for pair in ((0, 2), (1, 3)):
        sent = [uploads[client] for client in pair]
        start, mean = (pf.Payload.from_bytes(of[pair[0]]) for of in (first, second))
        for name, found_mean in mean.under("model").items():
            if method == "scaffold":
                changes = [numbers(u[f"model_update/{name}"].flatten()) for u in sent]
                old = numbers(start[f"model/{name}"].flatten())
                slow = [w + (a + b) / 2 for w, a, b in zip(old, *changes, strict=True)]
            else:
                slow = slow_average(dict(enumerate(sent)), f"model/{name}", True)
            assert numbers(found_mean.flatten()) == pytest.approx(slow, rel=1e-5, abs=1e-6)
        if method == "scaffold":  # c of two clients, not of all four
            for name, c in mean.under("control").items():
                a, b = (numbers(u[f"control_update/{name}"].flatten()) for u in sent)
                slow = [(p + q) / 2 for p, q in zip(a, b, strict=True)]
                assert numbers(c.flatten()) == pytest.approx(slow, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ditto", "scaffold"])
def test_the_refusal_of_several_architectures_names_the_scope(toy, method):
    with pytest.raises(pf.UsageError, match="--set scope=architecture"):
        toy(method, models=TWO_HEADS)
