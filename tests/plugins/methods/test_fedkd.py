"""FedKD against loop versions of its losses and of its compression; who holds which broadcast."""

from __future__ import annotations

import math

import numpy as np
import protofl as pf
import pytest
import torch
from protofl.views.client import Client
from protofl_plugins.methods.fedkd import FedKD, _moved, compress, threshold
from torch import nn
from toy_federation import (
    ONE_CLASS,
    Toy,
    batch_of,
    check_contract,
    client,
    improves,
    same_everywhere,
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def softmax(row):
    powers = [math.exp(v) for v in row]
    return [p / sum(powers) for p in powers]


def parts(floor=0.1, **options):
    batch, output = batch_of(6, 4, 3)
    auxiliary = pf.SplitModel(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), nn.Linear(3, 4), 3
    ).double()
    W_h = nn.Linear(3, 3, bias=False).double()
    view = client(
        FedKD.Config(floor=floor, **options), module={"auxiliary": auxiliary, "W_h": W_h}.get
    )
    return batch, output, auxiliary, W_h, FedKD().local_loss(view, batch, output)


@pytest.mark.parametrize("floor", [0.1, 50.0])
def test_losses(floor):
    batch, output, auxiliary, W_h, terms = parts(floor)
    f_a = auxiliary.features(batch.x)
    scores, W = auxiliary.head(f_a).tolist(), W_h.weight.tolist()
    ce = aux_ce = kl = aux_kl = hidden = 0.0
    for n, y in enumerate(batch.y.tolist()):
        p, q = softmax(output.logits[n].tolist()), softmax(scores[n])
        ce -= math.log(p[y]) / 6
        aux_ce -= math.log(q[y]) / 6
        kl += sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)) / 6
        aux_kl += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 6
        for k in range(3):
            seen = sum(w * v for w, v in zip(W[k], f_a[n].tolist(), strict=True))
            hidden += (output.features[n, k].item() - seen) ** 2 / 18
    D = max(ce + aux_ce, floor)
    expected = {
        "ce": ce,
        "kl": kl / D,
        "hidden": hidden / D,
        "aux_ce": aux_ce,
        "aux_kl": aux_kl / D,
        "aux_hidden": hidden / D,
    }
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-10)


def test_who_learns_from_which_term():
    _, output, auxiliary, W_h, terms = parts()
    head, extractor = auxiliary.head.weight, auxiliary.extractor[1].weight
    weights = [output.logits, output.features, head, extractor, W_h.weight]
    reached = {
        name: [
            g is not None
            for g in torch.autograd.grad(term, weights, allow_unused=True, retain_graph=True)
        ]
        for name, term in terms.items()
    }
    assert reached == {
        "ce": [True, False, False, False, False],
        "kl": [True, False, False, False, False],
        "hidden": [False, True, False, False, True],
        "aux_ce": [False, False, True, True, False],
        "aux_kl": [False, False, True, True, False],
        "aux_hidden": [False, False, False, True, False],
    }


def test_a_client_that_has_learned_everything_has_finite_terms():
    batch, output = batch_of(4, 4, 3)
    sure = 100.0 * nn.functional.one_hot(batch.y, 4).float()
    output = pf.Output(output.features.float().detach(), sure.requires_grad_())

    class Sure(nn.Module):
        def features(self, x):
            return torch.zeros(4, 3)

        def head(self, z):
            return sure.detach()

    modules = {"auxiliary": Sure(), "W_h": nn.Linear(3, 3, bias=False)}
    terms = FedKD().local_loss(client(FedKD.Config(), module=modules.get), batch, output)
    assert terms["ce"].item() + terms["aux_ce"].item() == 0.0
    assert all(math.isfinite(v.item()) for v in terms.values())


def test_compression():
    draw = torch.Generator().manual_seed(0)
    updates = {
        "conv": torch.randn(6, 2, 3, 3, generator=draw, dtype=torch.float64),
        "dense": torch.randn(5, 8, generator=draw, dtype=torch.float64),
        "still": torch.zeros(4, 4, dtype=torch.float64),
        "bias": torch.randn(7, generator=draw, dtype=torch.float64),
    }
    payload = compress(updates, 0.8)
    zero = {name: torch.zeros_like(u) for name, u in updates.items()}
    rebuilt = _moved(zero, payload)
    for name, update in updates.items():
        key = f"auxiliary_update/{name}"
        if name == "bias":
            assert torch.equal(payload[key], update)
            continue
        u, s, vh = np.linalg.svd(update.reshape(len(update), -1).numpy(), full_matrices=False)
        total, held, rank = float((s**2).sum()), 0.0, 0
        while rank < len(s) and (rank == 0 or held <= 0.8 * total) and (total > 0 or rank == 0):
            held += float(s[rank] ** 2)
            rank += 1
        assert payload[f"{key}/u"].shape == (len(update), rank)
        assert payload[f"{key}/s"].shape == (rank,)
        assert payload[f"{key}/vh"].shape == (rank, update[0].numel())
        slow = (u[:, :rank] * s[:rank]) @ vh[:rank]
        torch.testing.assert_close(rebuilt[name], torch.from_numpy(slow).view_as(update))
    assert payload["auxiliary_update/still/s"].shape == (1,)
    assert payload["auxiliary_update/conv/s"].numel() < 6
    whole = _moved(zero, compress(updates, 1.0))
    assert all(torch.allclose(whole[name], update) for name, update in updates.items())


def test_threshold_is_linear_in_the_round():
    config = FedKD.Config(T_start=0.5, T_end=0.9)
    found = [threshold(client(config, round=r, rounds=4)) for r in range(4)]
    assert found == pytest.approx([0.6, 0.7, 0.8, 0.9])


def global_model(toy):
    return {
        key.removeprefix("auxiliary/"): value
        for key, value in toy.knowledge.items()
        if key.startswith("auxiliary/")
    }


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_server_and_clients_hold_the_same_model(data_dir, participation):
    toy = Toy(
        "fedkd", data_dir, clients=4, rounds=6, participation=participation, set={"T_start": 0.5}
    )
    whole = updates = 0
    took_part = set()
    for r in range(5):
        before = {name: value.clone() for name, value in global_model(toy).items()}
        toy.rounds(1)
        now = {i for n, i in toy.down if n == r}
        for i in now:
            held = toy.client(i).state["fedkd"]
            assert held["version"] == r
            for name, tensor in held["broadcast"].items():
                assert torch.equal(tensor, before[name])
            sent = toy.down[r, i]
            has_update = any(key.startswith("auxiliary_update/") for key in sent)
            assert has_update == (i in took_part)
            assert has_update != ("auxiliary/head.weight" in sent)
            whole, updates = whole + (not has_update), updates + has_update
        took_part = now
    assert whole > 0 and updates > 0


def test_server_takes_the_mean_of_rebuilt_updates(data_dir):
    toy = Toy("fedkd", data_dir, set={"T_start": 0.6, "T_end": 0.6})
    before = {name: value.clone() for name, value in global_model(toy).items()}
    toy.rounds(1)
    for name, start in before.items():
        if name.startswith("buffer/"):
            continue
        key = f"auxiliary_update/{name}"
        mean = torch.zeros(start.shape, dtype=torch.float64)
        for i in range(4):
            sent = toy.up[0, i]
            if start.dim() == 1:
                mean += sent[key].double() / 4
            else:
                u, s, vh = (sent[f"{key}/{part}"].double() for part in ("u", "s", "vh"))
                mean += (u @ torch.diag(s) @ vh).view_as(start) / 4
        if start.dim() > 1:
            u, s, vh = np.linalg.svd(mean.reshape(len(mean), -1).numpy(), full_matrices=False)
            share = np.cumsum(s**2) / (s**2).sum()
            rank = int((share <= 0.6).sum()) + 1
            mean = torch.from_numpy((u[:, :rank] * s[:rank]) @ vh[:rank]).view_as(start)
        now = global_model(toy)[name].double()
        torch.testing.assert_close(now - start.double(), mean, rtol=1e-4, atol=1e-6)


def test_the_same_download_twice_changes_nothing(data_dir):
    toy = Toy("fedkd", data_dir)
    toy.rounds(2)
    record = toy.client(1)
    view = Client(record, "fedkd")
    held = {name: t.clone() for name, t in record.state["fedkd"]["broadcast"].items()}
    record.received = toy.down[1, 1]
    FedKD().receive(view)
    assert all(torch.equal(held[n], t) for n, t in record.state["fedkd"]["broadcast"].items())
    loaded = dict(view.module("auxiliary").named_parameters())
    assert all(torch.equal(loaded[name], tensor) for name, tensor in held.items())


def test_evaluation_changes_nothing(data_dir):
    ever, never = (Toy("fedkd", data_dir, rounds=4, eval_every=n) for n in (1, 4))
    ever.rounds(3), never.rounds(3)
    for key, value in ever.knowledge.items():
        assert torch.equal(value, never.knowledge[key]), key


def test_a_diverged_update_is_reported_as_such(data_dir):
    updates = {"w": torch.full((3, 3), torch.nan)}
    assert compress(updates, 0.9).nonfinite() == "auxiliary_update/w"
    toy = Toy("fedkd", data_dir, lr=1e12)
    with pytest.raises(pf.RunFailure, match="NaN or infinity"):
        toy.rounds(3)


def test_contract(data_dir):
    toy = check_contract("fedkd", data_dir)
    assert "auxiliary/buffer/extractor.1.running_mean" in toy.up[0, 0]
    assert "auxiliary/buffer/extractor.1.running_mean" in toy.down[1, 0]
    check_contract("fedkd", data_dir, feature_dim=5)
    check_contract("fedkd", data_dir, clients=6, **ONE_CLASS)


def test_traffic(data_dir):
    toy = Toy(
        "fedkd", data_dir, dataset="toy", models="flat", clients=4, batch_size=64, eval_every=3
    )
    toy.rounds(2)
    first, second = toy.lines
    assert first["download_floats"] == 4 * 924_708
    assert first["upload_floats"] < 4 * 924_708
    assert second["download_floats"] < 4 * 924_708
    conv = toy.up[0, 0]["auxiliary_update/extractor.3.weight/vh"]
    assert conv.shape[1] == 32 * 5 * 5


@pytest.mark.slow
def test_improves_over_chance(tmp_path, data_dir):
    improves("fedkd", tmp_path, data_dir)


@pytest.mark.slow
def test_same_on_processes_and_after_a_resume(tmp_path, data_dir):
    same_everywhere("fedkd", tmp_path, data_dir)
