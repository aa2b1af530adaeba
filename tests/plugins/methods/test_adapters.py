"""Tests of adapters on a frozen net: means against loops, ranks, bad options and uploads."""

from __future__ import annotations

import itertools

import pytest
import torch
from slowness import quick

import protofl as pf
from protofl.federation.federation import Federation
from protofl.federation.jobs import Train
from protofl.hooks.views.snapshots import pack_client
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.models.low_rank import Factors, best_of_rank
from protofl_plugins.shared.adapters import adapters_of, known

METHODS = ("hetlora", "flexlora", "flora", "raflora")
RANKS = (3, 1, 2, 3)
"""Ranks of the four clients, with ``ranks=3,1,2``."""


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


@pytest.fixture
def found(toy):
    group, data = toyfed.group(toyfed.CNN), toyfed.make_images(toyfed.MIXED)

    def made(method, **options):
        run = options.pop("run", {})
        given = {"ranks": "3,1,2", **options}
        return toy(method, set=given, models=group, data=data, **run)

    return made


def factors(rank, rows=7, columns=5, seed=0):
    drawn = torch.Generator().manual_seed(seed + rank)
    made = (torch.randn(*s, generator=drawn).double() for s in ((rows, rank), (rank, columns)))
    return Factors(*made)


def uploads_of(federation, round):
    sent = federation.pool.uploads(round)
    return {client: pf.Payload.from_bytes(blob) for client, blob in sorted(sent.items())}


# --- products of thin factors ---------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 4, 5, 9])
def test_the_svd_of_thin_factors_is_the_dense_one(rank):
    product = factors(rank)
    U, S, V = product.svd()
    dense = product.b @ product.a
    assert len(S) == min(rank, 5)
    torch.testing.assert_close((U * S) @ V, dense, atol=1e-9, rtol=1e-9)
    wanted = torch.linalg.svdvals(dense)[: len(S)]
    torch.testing.assert_close(S, wanted, atol=1e-9, rtol=1e-9)
    assert float(product.norm()) == pytest.approx(float(dense.norm()), rel=1e-9)


@pytest.mark.parametrize("rank", [2, 4, 6])
def test_the_best_product_of_a_rank_is_the_cut_dense_svd(rank):
    product, fresh = factors(4), torch.ones(rank, 5).double()
    best = best_of_rank(product, fresh)
    U, S, V = torch.linalg.svd(product.b @ product.a, full_matrices=False)
    kept = min(rank, 4)
    dense = (U[:, :kept] * S[:kept]) @ V[:kept]
    torch.testing.assert_close(best.b @ best.a, dense, atol=1e-9, rtol=1e-9)
    assert best.rank == rank
    assert not best.b[:, 4:].any() and (best.a[4:] == 1).all()


# --- means ----------------------------------------------------------------------------------------


def product_of(server, name, cut=None):
    own = known(server.global_state, name)
    return own.b[:, :cut] @ own.a[:cut]


def by_number(each, p, weight):
    """Sum weight(i, k)·B_i[:, k]·A_i[k] over clients and slices, one number at a time."""
    rows, columns = len(each[0].b), each[0].a.shape[1]
    total = torch.zeros(rows, columns, dtype=torch.float64)
    for i, own in enumerate(each):
        for k in range(own.rank):
            for row in range(rows):
                for column in range(columns):
                    total[row, column] += weight(i, k, each, p) * own.b[row, k] * own.a[k, column]
    return total


def plain(i, k, each, p):
    return p[i]


def by_slice(i, k, each, p):
    return p[i] / sum(p[j] for j, own in enumerate(each) if own.rank > k)


@pytest.mark.parametrize(
    ("method", "weight"), [("flexlora", plain), ("flora", plain), ("raflora", by_slice)]
)
def test_the_mean_of_products_is_that_of_a_loop(found, method, weight):
    with double_precision():
        federation = found(method, layers="all")
        federation.rounds(1)
        uploads = uploads_of(federation, 0)
        total = sum(int(u["samples"]) for u in uploads.values())
        p = [int(u["samples"]) / total for u in uploads.values()]
        names = federation.server.state[method]["columns"]
        assert len(names) == 2
        for name in names:
            each = [known(u, name) for u in uploads.values()]
            assert [own.rank for own in each] == [*RANKS]
            wanted = by_number(each, p, weight)
            if method != "flora":
                U, S, V = torch.linalg.svd(wanted)
                wanted = (U[:, :3] * S[:3]) @ V[:3]
            torch.testing.assert_close(
                product_of(federation.server, name), wanted, atol=1e-9, rtol=1e-9
            )


def test_hetlora_pads_and_weights_by_norms(found):
    with double_precision():
        federation = found("hetlora")
        federation.rounds(2)
        each = [*uploads_of(federation, 1).values()]
        (name,) = federation.server.state["hetlora"]["columns"]
        own = [known(u, name) for u in each]
        norms = [float((f.b @ f.a).norm()) for f in own]
        assert all(norms)
        now = known(federation.server.global_state, name)
        largest = max(f.rank for f in own)
        for k in range(largest):
            has = [(n, f) for n, f in zip(norms, own, strict=True) if f.rank > k]
            for axis in ("a", "b"):
                slices = [(f.a[k] if axis == "a" else f.b[:, k]) for _, f in has]
                wanted = sum(n * s for (n, _), s in zip(has, slices, strict=True)) / sum(norms)
                mean = now.a[k] if axis == "a" else now.b[:, k]
                torch.testing.assert_close(mean, wanted, atol=1e-9, rtol=1e-9)


def test_heads_are_averaged_by_samples_or_stay(found, method):
    federation = found(method)
    federation.rounds(1)
    uploads = [*uploads_of(federation, 0).values()]
    n = [int(u["samples"]) for u in uploads]
    wanted = sum(k * u["head/weight"].double() for k, u in zip(n, uploads, strict=True)) / sum(n)
    torch.testing.assert_close(
        federation.server.global_state["head/weight"].double(), wanted, atol=1e-6, rtol=1e-6
    )
    local = found(method, head="local")
    local.rounds(1)
    assert "head/weight" not in uploads_of(local, 0)[0]
    assert "head/weight" not in local.server.global_state


# --- clients --------------------------------------------------------------------------------------


def test_clients_begin_with_their_slices(found):
    federation = found("flexlora")
    federation.rounds(1)
    server = pf.Server(federation.server, "flexlora")
    (name,) = server.state["columns"]
    whole = known(server.global_state, name)
    for client, rank in enumerate(RANKS):
        sent = known(federation.call("download_payload", server=server, client_id=client), name)
        assert torch.equal(sent.a, whole.a[:rank]) and torch.equal(sent.b, whole.b[:, :rank])


@pytest.mark.parametrize("layers", ["linear", "all"])
def test_an_adapted_net_has_the_weights_w_plus_s_b_a(found, layers):
    with double_precision():
        federation = found("flexlora", layers=layers, scale=0.5)
        record = federation.client(0)
        net = record.model.extractor
        plain = toyfed.CNN.build(record.info.sample, 4, record.info.feature_dim).extractor
        frozen = net.frozen.on(torch.device("cpu"))
        plain.load_state_dict(frozen.state_dict())
        with torch.no_grad():
            for name, own in net.adapters().items():
                own.b.normal_(generator=torch.Generator().manual_seed(1))
                W = plain.get_parameter(name)
                W += 0.5 * (own.b @ own.a).reshape(W.shape)
            x = record.test.inputs()
            torch.testing.assert_close(net(x), plain(x), atol=1e-9, rtol=1e-9)


def test_clients_share_the_frozen_net_and_keep_only_what_is_trained(found, method):
    federation = found(method)
    federation.rounds(1)
    records = [federation.client(n) for n in range(4)]
    nets = {id(r.model.extractor.frozen.on(torch.device("cpu"))) for r in records}
    assert len(nets) == 1
    tensors, _ = pack_client(records[1], received=False)
    names = {name.partition("/")[2] for name in tensors if name.startswith("model/")}
    merged = {"buffer/extractor.merged_0"} if method == "flora" else set()
    assert names == {"extractor.a.0", "extractor.b.0", "head.weight", "head.bias"} | merged


def test_a_frozen_net_stays_as_it_is(found, method):
    federation = found(method)
    net = federation.client(0).model.extractor.frozen.on(torch.device("cpu"))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    federation.rounds(2)
    after = federation.client(0).model.extractor.frozen.on(torch.device("cpu")).state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


# --- FLoRA ----------------------------------------------------------------------------------------


def test_a_client_that_missed_merges_gets_their_sum(found):
    with double_precision():
        federation = found("flora", run={"participation": 0.5})
        federation.rounds(3)
        server = pf.Server(federation.server, "flora")
        (name,) = server.state["columns"]
        total = server.global_state[f"adapter/{name}"]
        kinds = set()
        for number in range(4):
            received = federation.call("download_payload", server=server, client_id=number)
            record = federation.client(number)
            record.round, record.received = 3, received
            kinds.add(f"adapter/{name}/a" in received)
            for _ in range(2):  # the same download twice
                federation.lifecycle("receive", client=pf.Client(record, "flora"))
                M = record.model.extractor.merged()[name]
                torch.testing.assert_close(M, total, atol=1e-9, rtol=1e-9)
            (own,) = adapters_of(pf.Client(record, "flora")).values()
            assert not own.b.any() and own.a.any()
        assert kinds == {True, False}


# --- HetLoRA --------------------------------------------------------------------------------------


def test_the_tail_is_penalised_and_pruned(found):
    federation = found("hetlora", ranks="4", gamma=0.5, **{"lambda": 2})
    record = federation.client(0)
    client = pf.Client(record, "hetlora")
    (own,) = adapters_of(client).values()
    with torch.no_grad():
        own.b.normal_(generator=torch.Generator().manual_seed(1))
    given = federation.lifecycle("before_training", client=client)["hetlora"]
    x, y = record.train.inputs(slice(5)), record.train.y[:5]
    features = record.model.features(x)
    output = pf.Output(features, record.model.head(features))
    batch = pf.Batch(x, y, torch.arange(5))
    terms = federation.call(
        "local_loss", client=client, batch=batch, output=output, constants=given
    )
    wanted = 2 * own.b[:, 2:].norm().item() * own.a[2:].norm().item()
    assert terms["tail"].item() == pytest.approx(wanted, rel=1e-5)
    finish = torch.no_grad()(federation.lifecycle)
    finish("after_training", client=client)
    assert "rank" not in client.state  # the tail did not shrink
    federation.lifecycle("before_training", client=client)
    with torch.no_grad():
        own.b[:, 3] *= 0.5
    finish("after_training", client=client)
    assert client.state["rank"] == 2
    assert not own.b[:, 2:].any() and not own.a[2:].any()
    sent = federation.call("upload_payload", client=client)
    (name,) = record.model.extractor.sizes
    assert known(sent, name).rank == 2


def test_the_server_sends_the_pruned_rank(found):
    federation = found("hetlora", ranks="4")
    record = federation.client(0)
    pf.Client(record, "hetlora").state["rank"] = 2
    federation.rounds(1)
    server = pf.Server(federation.server, "hetlora")
    assert server.state["ranks"][0] <= 2
    (name,) = server.state["columns"]
    assert known(server.global_state, name).rank == 4
    sent = federation.call("download_payload", server=server, client_id=0)
    assert known(sent, name).rank == server.state["ranks"][0]


# --- bad options and uploads ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "words"), [("8,x", "rank 'x'"), ("0", "rank '0'"), ("4,", "rank ''"), ("-1", "'-1'")]
)
def test_a_rank_that_is_none_is_refused(found, method, ranks, words):
    with pytest.raises(pf.UsageError) as told:
        found(method, ranks=ranks)
    assert words in str(told.value)


def test_a_rank_above_the_layer_s_is_refused(found, method):
    with pytest.raises(
        pf.UsageError, match=r"rank 99 is above 8, the largest of the weight 4\.weigh"
    ):
        found(method, ranks="2,99")


def test_different_nets_and_nets_without_layers_are_refused(toy, method):
    with pytest.raises(pf.UsageError, match="one frozen net, and the clients have cnn, norm"):
        toy(method)
    with pytest.raises(pf.UsageError, match="pixels has no linear layer before its head"):
        toy(method, models=toyfed.group(toyfed.PIXELS))


class HostilePool(toyfed.WatchedPool):
    """A pool in which client 1 sends a changed upload."""

    def __init__(self, plan, change):
        super().__init__(plan)
        self.change = change

    def run(self, jobs):
        for job, reply in super().run(jobs):
            if isinstance(job, Train) and job.client == 1:
                upload = pf.Payload.from_bytes(reply.blob)
                name = next(k for k in upload if k.endswith("/a")).split("/")[1]
                self.change(upload, name)
                reply.blob = upload.to_bytes()
            yield job, reply


def more(upload, name, b=1, a=1):
    """Add slices to an adapter."""
    own = known(upload, name)
    upload[f"adapter/{name}/b"] = torch.cat([own.b] + [torch.zeros_like(own.b)] * b, 1)
    upload[f"adapter/{name}/a"] = torch.cat([own.a] + [torch.zeros_like(own.a)] * a)


CHANGES = {
    "above its own": (lambda u, n: more(u, n), "rank 2, and its own rank is 1"),
    "above the layer's": (lambda u, n: more(u, n, 99, 99), "with rank 100"),
    "two ranks": (lambda u, n: more(u, n, b=0), "other factors with another"),
    "NaN": (lambda u, n: u[f"adapter/{n}/a"].fill_(torch.nan), "NaN or infinity"),
    "rows": (
        lambda u, n: u.update({f"adapter/{n}/b": u[f"adapter/{n}/b"][1:].contiguous()}),
        "of shape",
    ),
    "missing": (lambda u, n: u.pop(f"adapter/{n}/a"), "nothing under"),
}
STOPPED = [("stop", change) for change in CHANGES]


@pytest.mark.parametrize(
    ("policy", "change"),
    quick([*itertools.product(("stop", "skip"), CHANGES)], *STOPPED, ("skip", "NaN")),
)
def test_hostile_uploads_are_refused(found, method, change, policy):
    do, words = CHANGES[change]
    plan = found(method, run={"on_bad_upload": policy}).plan
    notes = []
    federation = Federation(plan, HostilePool(plan, do), notes.append)
    federation.learned = dry_run(plan)
    federation.start_trial(0)
    if policy == "stop":
        with pytest.raises(pf.RunFailure) as told:
            federation.round(0)
        assert "client 1 sent" in told.value.what and words in told.value.what
        return
    line = federation.round(0)[0]
    assert any(words in str(note) for note in notes)
    assert federation.server.global_state and line["participants"]
    assert federation.server.round == 0


# --- a scale of each rank -------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [None, 16.0])
def test_flexlora_splits_the_svd_as_published(found, alpha):
    """B = UΣ/(α/r_i) and A = V of ΔW = Σ p_i·(α/r_i)·B_i·A_i; α/r_i = 1 without alpha."""
    with double_precision():
        federation = found("flexlora", alpha=alpha, run={"lr": 0.001})
        federation.rounds(1)
        sent, view = uploads_of(federation, 0), pf.Server(federation.server, "flexlora")
        total = sum(int(upload["samples"]) for upload in sent.values())
        s = [1.0 if alpha is None else alpha / rank for rank in RANKS]
        for name in view.state["columns"]:
            dense = sum(
                int(u["samples"]) / total * s[i] * known(u, name).b @ known(u, name).a
                for i, u in sent.items()
            )
            U, S, V = torch.linalg.svd(dense, full_matrices=False)
            for client, rank in enumerate(RANKS):
                down = federation.call("download_payload", server=view, client_id=client)
                b, a = known(down, name)
                torch.testing.assert_close(b.norm(dim=0), S[:rank] / s[client])
                torch.testing.assert_close((a * V[:rank]).sum(1).abs(), a.new_ones(rank))
                wanted = (U[:, :rank] * S[:rank]) @ V[:rank]
                torch.testing.assert_close(s[client] * b @ a, wanted, atol=1e-9, rtol=1e-9)


def test_alpha_is_the_scale_of_each_clients_net(method, found):
    federation = found(method, alpha=6)
    scales = [federation.client(n).model.extractor.scale for n in range(4)]
    assert scales == [6 / rank for rank in RANKS]


def test_flora_merges_what_clients_of_all_scales_learned(found):
    """Every client's net has W + Σ p_i·s_i·B_i·A_i, whatever its own s."""
    with double_precision():
        federation = found("flora", alpha=6, run={"lr": 0.001})
        federation.rounds(2)
        sent = uploads_of(federation, 0)
        total = sum(int(upload["samples"]) for upload in sent.values())
        for name in pf.Server(federation.server, "flora").state["columns"]:
            wanted = sum(
                int(u["samples"]) / total * 6 / RANKS[i] * known(u, name).b @ known(u, name).a
                for i, u in sent.items()
            )
            for number in range(4):
                net = federation.client(number).model.extractor
                found_ = net.scale * net.merged()[name]
                torch.testing.assert_close(found_, wanted, atol=1e-9, rtol=1e-9)


def test_alpha_and_scale_exclude_each_other(found):
    with pytest.raises(pf.UsageError, match="alpha=16 sets s_i = α/r_i, and scale=2 sets s"):
        found("flexlora", alpha=16, scale=2)
