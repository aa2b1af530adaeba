"""Tests of adapters on a frozen net: means against loops, ranks, bad options and uploads."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from slowness import quick

import protofl as pf
from protofl.federation.jobs.jobs import Train
from protofl.federation.round.federation import Federation
from protofl.hooks.views.snapshots import pack_client
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.methods.lora import FedIT, FedSALoRA, FFALoRA
from protofl_plugins.models.low_rank import Factors, best_of_rank
from protofl_plugins.shared.adapters import adapters_of, known

MERGING = ("flora", "fedex-lora")
"""Methods whose clients keep a sum of merges, M."""
METHODS = (*MERGING, "hetlora", "flexlora", "raflora", "fedit", "ffa-lora", "fedsa-lora")
ONE_FACTOR = ("ffa-lora", "fedsa-lora")
"""Methods whose clients send A or B alone."""
ONE_RANK = ("fedex-lora",)
"""Methods whose clients have one rank: 1 here."""
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
        given = {"ranks": "1" if method in ONE_RANK else "3,1,2", **options}
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
    federation = found(method, head="average")
    federation.rounds(1)
    uploads = [*uploads_of(federation, 0).values()]
    n = [int(u["samples"]) for u in uploads]
    wanted = sum(k * u["head/weight"].double() for k, u in zip(n, uploads, strict=True)) / sum(n)
    torch.testing.assert_close(
        federation.server.global_state["head/weight"].double(), wanted, atol=1e-6, rtol=1e-6
    )
    local = found(method, head="local")
    dry_run(local.plan)  # refuses hooks that read what no download has
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
    merged = {"buffer/extractor.merged_0"} if method in MERGING else set()
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
                name = next(k for k in upload if k.startswith("adapter/")).split("/")[1]
                self.change(upload, name)
                reply.blob = upload.to_bytes()
            yield job, reply


def factors_in(upload, name):
    """Return the factors of a weight in an upload, {key: (tensor, dimension of the rank)}."""
    keys = {f"adapter/{name}/a": 0, f"adapter/{name}/b": 1}
    return {key: (upload[key], dim) for key, dim in keys.items() if key in upload}


def more(upload, name, slices=1, keys="ab"):
    """Add slices to the factors of an adapter."""
    for key, (own, dim) in factors_in(upload, name).items():
        if key[-1] in keys:
            upload[key] = torch.cat([own] + [torch.zeros_like(own)] * slices, dim)


def cut_across(upload, name):
    """Take the first row of B, or the first column of A."""
    key, (own, dim) = [*factors_in(upload, name).items()][-1]
    upload[key] = own.narrow(1 - dim, 1, own.shape[1 - dim] - 1).contiguous()


def spoilt(upload, name):
    next(iter(factors_in(upload, name).values()))[0].fill_(torch.nan)


CHANGES = {
    "above its own": (more, "rank 2, and its own rank is 1"),
    "above the layer's": (lambda u, n: more(u, n, 99), "with rank 100"),
    "two ranks": (lambda u, n: more(u, n, keys="a"), "other factors with another"),
    "NaN": (spoilt, "NaN or infinity"),
    "rows": (cut_across, "of shape"),
    "missing": (lambda u, n: u.pop(next(iter(factors_in(u, n)))), "nothing under"),
}


@pytest.mark.parametrize(
    ("policy", "change"),
    quick(
        itertools.product(("stop", "skip"), CHANGES),
        *(("stop", "NaN"), ("stop", "two ranks"), ("skip", "NaN")),
    ),
)
def test_hostile_uploads_are_refused(found, method, change, policy):
    if change == "two ranks" and method in ONE_FACTOR:
        pytest.skip("one factor has one rank")
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
    assert scales == [6.0] * 4 if method in ONE_RANK else [6 / rank for rank in RANKS]


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


# --- FedIT, FFA-LoRA, FedSA-LoRA: means of A, of B, or of both -----------------------------------


def slice_by_slice(sent, p, weight, dim):
    """Sum weight(k)·X_i's slice k over clients, one number at a time; ``sent`` has matrices."""
    matrices = [X if dim == 0 else X.T for X in sent]
    largest, width = max(map(len, matrices)), matrices[0].shape[1]
    rows = []
    for k in range(largest):
        row = [0.0] * width
        for i, X in enumerate(matrices):
            if k < len(X):
                for column in range(width):
                    row[column] += weight(k, i, p, matrices) * X[k, column].item()
        rows.append(row)
    total = torch.tensor(rows, dtype=torch.float64)
    return total if dim == 0 else total.T


def zeros_count(k, i, p, matrices):
    return p[i]


def holders_only(k, i, p, matrices):
    return p[i] / sum(p[j] for j, X in enumerate(matrices) if len(X) > k)


def shares_of(uploads):
    total = sum(int(u["samples"]) for u in uploads.values())
    return [int(u["samples"]) / total for u in uploads.values()]


@pytest.mark.parametrize("alpha", [None, 6.0])
@pytest.mark.parametrize(
    ("method", "parts", "weight"),
    [
        ("fedit", "ab", zeros_count),
        ("ffa-lora", "b", zeros_count),
        ("fedsa-lora", "a", holders_only),
    ],
)
def test_the_mean_of_a_factor_is_that_of_a_loop(found, method, parts, weight, alpha):
    with double_precision():
        federation = found(method, layers="all", alpha=alpha, run={"lr": 0.001})
        federation.rounds(2)
        uploads = uploads_of(federation, 1)
        p, state = shares_of(uploads), federation.server.global_state
        assert len({*p}) > 1
        names = federation.server.state[method]["columns"]
        sent = {key for key in uploads[0] if key.startswith("adapter/")}
        assert sent == {f"adapter/{name}/{part}" for name in names for part in parts}
        for key in sent:
            dim = 0 if key.endswith("/a") else 1
            s = [1 if alpha is None or dim == 0 else alpha / rank for rank in RANKS]
            each = [s[i] * upload[key] for i, upload in uploads.items()]
            assert [X.shape[dim] for X in each] == [*RANKS]
            assert all(X.any() for X in each)
            wanted = slice_by_slice(each, p, weight, dim)
            torch.testing.assert_close(state[key], wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("method", ["fedit", "ffa-lora", "fedsa-lora"])
def test_slices_that_no_client_of_the_round_has_stay(found, method):
    federation = found(method, ranks="1,3", run={"participation": 0.25})
    before = dict(federation.server.global_state)
    kept = 0
    for round in range(4):
        federation.rounds(1)
        ((client, _),) = uploads_of(federation, round).items()
        now = dict(federation.server.global_state)
        for key, old in before.items():
            if client % 2 == 0 and key.startswith("adapter/"):
                further = (slice(1, None), slice(None)) if key.endswith("/a") else (slice(None), 1)
                assert torch.equal(now[key][further], old[further])
                kept += 1
        before = now
    assert kept


def matrix(rows, columns, first):
    return torch.arange(rows * columns, dtype=torch.float64).reshape(rows, columns) * 0.1 + first


def aggregated(method, ranks, samples, factors_of):
    """Return what a method's server makes of one layer's factors, {key: tensor}."""
    uploads = {
        i: pf.Payload(samples=torch.tensor(n), **{f"adapter/w/{k}": t for k, t in sent.items()})
        for i, (n, sent) in enumerate(zip(samples, factors_of, strict=True))
    }
    largest = max(ranks)
    old = {"adapter/w/a": torch.zeros(largest, 5), "adapter/w/b": torch.zeros(4, largest)}
    config = SimpleNamespace(head="local", alpha=None, ranks=",".join(map(str, ranks)))
    server = SimpleNamespace(
        config=config,
        state={"columns": {"w": 5}},
        global_state={key: tensor.double() for key, tensor in old.items()},
    )
    return method().server_aggregate(server, uploads)


def test_fedit_pads_as_the_published_code_of_flora():
    """``FedAvg(…, stacking=True, zero_padding=True)`` of github.com/ATP-1010/FederatedLLM.

    The numbers are those of its commit 7bea158 for these factors and samples.
    """
    ranks = [3, 1, 2]
    sent = [{"a": matrix(r, 5, i), "b": matrix(4, r, -i)} for i, r in enumerate(ranks)]
    result = aggregated(FedIT, ranks, [5, 2, 3], sent)
    published = {
        "a": [[0.8, 0.9, 1, 1.1, 1.2], [1, 1.08, 1.16, 1.24, 1.32], [0.5, 0.55, 0.6, 0.65, 0.7]],
        "b": [[-0.8, -0.52, 0.1], [-0.57, -0.31, 0.25], [-0.34, -0.1, 0.4], [-0.11, 0.11, 0.55]],
    }
    for part, numbers in published.items():
        wanted = torch.tensor(numbers, dtype=torch.float64)
        torch.testing.assert_close(result[f"adapter/w/{part}"], wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "part"), [(FedSALoRA, "a"), (FFALoRA, "b"), (FedIT, "a"), (FedIT, "b")]
)
def test_one_rank_is_averaged_as_the_published_code_of_fedsa_lora(method, part):
    """The numbers are those that published code gave for these factors and samples.

    They are the same of ``_para_weighted_avg`` of github.com/Pengxin-Guo/FedSA-LoRA, commit
    fc276b5, which has FFA-LoRA too, and of ``FedAvg`` of FedIT's code,
    github.com/JayZhang42/FederatedGPT-Shepherd, commit bcffa00.
    """
    sent = [{"a": matrix(2, 5, i) ** 2, "b": matrix(4, 2, -i) ** 2} for i in range(3)]
    if method is not FedIT:
        sent = [{part: factors[part]} for factors in sent]
    result = aggregated(method, [2, 2, 2], [5, 2, 3], sent)
    published = {
        "a": [[1.4, 1.57, 1.76, 1.97, 2.2], [2.45, 2.72, 3.01, 3.32, 3.65]],
        "b": [[1.4, 1.25], [1.12, 1.01], [0.92, 0.85], [0.8, 0.77]],
    }
    wanted = torch.tensor(published[part], dtype=torch.float64)
    torch.testing.assert_close(result[f"adapter/w/{part}"], wanted, atol=1e-6, rtol=1e-6)


def test_ffa_lora_has_one_frozen_a_and_an_exact_mean(found):
    """(Σ_i p_i·B_i)·A_0 = Σ_i p_i·B_i·A_i, and every A_i is a part of A_0 that stays."""
    with double_precision():
        federation = found("ffa-lora", alpha=6, run={"lr": 0.001})
        start = [federation.client(n).model.extractor.adapters() for n in range(4)]
        start = [{name: own.a.clone() for name, own in each.items()} for each in start]
        federation.rounds(2)
        uploads = uploads_of(federation, 1)
        p, state = shares_of(uploads), federation.server.global_state
        for name in federation.server.state["ffa-lora"]["columns"]:
            whole = start[0][name]
            for client, rank in enumerate(RANKS):
                now = federation.client(client).model.extractor.adapters()[name].a
                assert torch.equal(now, whole[:rank]) and torch.equal(start[client][name], now)
                assert not now.requires_grad
            products = [
                p[i] * (6 / RANKS[i]) * upload[f"adapter/{name}/b"] @ whole[: RANKS[i]]
                for i, upload in uploads.items()
            ]
            mean = state[f"adapter/{name}/b"] @ whole
            assert mean.any()
            torch.testing.assert_close(mean, sum(products), atol=1e-12, rtol=1e-9)
        assert not any(key.endswith("/a") for key in state)


def test_fedsa_lora_keeps_b_and_the_head_on_the_client(found):
    federation = found("fedsa-lora", run={"participation": 0.5})
    federation.rounds(3)
    assert {key.rpartition("/")[2] for key in federation.server.global_state} == {"a"}
    server = pf.Server(federation.server, "fedsa-lora")
    assert {*uploads_of(federation, 2)} < {0, 1, 2, 3}
    own = []
    for number, rank in enumerate(RANKS):
        record = federation.client(number)
        (before,) = [f.b.clone() for f in record.model.extractor.adapters().values()]
        head = record.model.head.weight.clone()
        received = federation.call("download_payload", server=server, client_id=number)
        record.round, record.received = 3, received
        federation.lifecycle("receive", client=pf.Client(record, "fedsa-lora"))
        ((name, adapter),) = record.model.extractor.adapters().items()
        assert torch.equal(adapter.b, before) and torch.equal(record.model.head.weight, head)
        assert torch.equal(adapter.a, server.global_state[f"adapter/{name}/a"][:rank])
        own.append(before)
    assert any(b.any() for b in own)
    assert not torch.equal(own[0], own[3])  # of one rank


@pytest.mark.parametrize(
    ("method", "each", "head"),
    [("fedit", "ab", True), ("ffa-lora", "b", True), ("fedsa-lora", "a", False)],
)
def test_floats_that_travel(found, method, each, head):
    federation = found(method, layers="all")
    (line,) = federation.rounds(1)
    net = federation.client(0).model
    per_rank = sum(
        rows * ("b" in each) + columns * ("a" in each)
        for rows, columns in net.extractor.sizes.values()
    )
    heads = head * len(RANKS) * sum(p.numel() for p in net.head.parameters())
    assert line["upload_floats"] == line["download_floats"] == per_rank * sum(RANKS) + heads
