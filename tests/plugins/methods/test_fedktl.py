"""Tests of FedKTL: equations against slow float64 versions, variants, traffic, randomness."""

import math
from copy import deepcopy
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import protofl as pf
from protofl import functional as F
from protofl.backends import Host, Plan
from protofl.federation.jobs.jobs import StartTrial
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy as toyfed
from protofl_plugins.generators.tiny_style.plugin import TinyStyle
from protofl_plugins.methods import fedktl
from protofl_plugins.methods.fedktl import FedKTL

C, SIDE, M, WIDTH = 4, 32, 3, 16
FAST = {"E_S": 3}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Return the file of 60 images, 3×32×32, of four classes that differ in brightness."""
    generator = np.random.default_rng(0)
    labels = np.arange(60) % C
    images = generator.integers(0, 60, (60, SIDE, SIDE, 3)) + 45 * labels[:, None, None, None]
    path = tmp_path_factory.mktemp("toy") / "toy.npz"
    np.savez(path, x_train=images.astype(np.uint8), y_train=labels)
    return path


def options(toy, tmp_path, **more):
    return {
        "models": "cnn4",
        "dataset": f"npz:{toy}",
        "data_dir": tmp_path.parent / "cache",
        "partition": "iid",
        "clients": M,
        "rounds": 2,
        "feature_dim": WIDTH,
        "dry_run": False,
        "lr": 1e-3,  # at 0.01 and μ = 50, three steps diverge in a net without BatchNorm
        "backend": "local",
        "checkpoint_every": 0,
        **more,
    }


def run(toy, tmp_path, method="fedktl", set=(), **more):
    out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    values = options(toy, tmp_path, **more)
    return pf.run(method, out=out, set={**FAST, **dict(set)}, **values)


def plan(toy, tmp_path, set=(), **more):
    given = options(toy, tmp_path, method="fedktl", **more)
    given["options"] = {"fedktl": {**FAST, **dict(set)}}
    return Plan.make(given)


def config(**values):
    return FedKTL.Config(**{"K": 5, "guide_batch": 3, "hidden": 8, **values})


def stub(settings, h, V, **more):
    modules = {"h": h, "V": V, **more.pop("modules", {})}
    return SimpleNamespace(
        config=settings, least_batch=4, num_classes=V.V.shape[1], module=modules.__getitem__, **more
    )


def double_parts():
    torch.manual_seed(0)
    h = nn.Linear(6, 5).double()
    V = fedktl._Columns(F.simplex_etf(C, 5, torch.Generator().manual_seed(1)).double())
    return h, V, torch.randn(7, 6).double(), torch.tensor([0, 1, 2, 3, 1, 1, 0])


# --- equations --------------------------------------------------------------------------------


@pytest.mark.parametrize(("s", "m"), [(64.0, 0.5), (1.0, 0.0)])
def test_supervised_loss_is_eq_1_and_6(s, m):
    h, V, z, y = double_parts()
    h.requires_grad_(False)
    client = stub(config(s=s, m=m), h, V)
    found = fedktl.arcface_loss(_cosines(h, V, z), y, s, m)
    total = 0.0
    for row, label in zip(z, y, strict=True):
        g = [float(sum(h.weight[k, j] * row[j] for j in range(6)) + h.bias[k]) for k in range(5)]
        length = math.sqrt(sum(value**2 for value in g))
        angles = [
            math.acos(sum(g[k] * float(V.V[k, c]) for k in range(5)) / length) for c in range(C)
        ]
        own = math.exp(s * math.cos(angles[label] + m))
        rest = sum(math.exp(s * math.cos(angles[c])) for c in range(C) if c != label)
        total -= math.log(own / (own + rest))
    assert float(found) == pytest.approx(total / len(y), rel=1e-9)
    # the hook computes the loss in float32
    h.float(), V.float()
    batch, output = SimpleNamespace(y=y), SimpleNamespace(features=z.float())
    hook = FedKTL().local_loss(client, batch, output, {})
    assert float(hook["arcface"]) == pytest.approx(total / len(y), rel=1e-3)


def _cosines(h, V, z):
    g = h(z)
    return V(g / g.norm(dim=1, keepdim=True))


def test_guide_is_eq_4():
    h, V, _, y = double_parts()
    torch.manual_seed(2)
    h.float(), V.float()
    h_prime, f = nn.Linear(6, 9), nn.Linear(12, 6)
    images, latents = torch.randn(C, 12), torch.randn(C, 9)
    client = stub(config(mu=50.0), h, V, modules={"h_prime": h_prime}, features=f)
    rows = torch.arange(C)
    given = {"images": images, "latents": latents, "classes": rows, "rows": rows}
    batch, output = SimpleNamespace(y=y, x=None), SimpleNamespace(features=torch.randn(7, 6))
    h_prime.requires_grad_(False), f.requires_grad_(False), h.requires_grad_(False)
    found = FedKTL().local_loss(client, batch, output, given)
    f, h_prime = f.double(), h_prime.double()
    total = 0.0
    for c in range(C):
        made = h_prime(f(images[c].double()))
        total += sum(float(made[k] - latents[c, k]) ** 2 for k in range(9)) / 9
    assert float(found["guide"]) == pytest.approx(50 * total / C, rel=1e-5)


def test_few_pairs_pass_with_the_batch():
    """BatchNorm on a 1×1 map refuses a batch of one."""
    seen = []
    client = SimpleNamespace(least_batch=4, features=lambda x: seen.append(len(x)) or x)
    assert len(fedktl.features_of(client, torch.zeros(1, 2), torch.zeros(10, 2))) == 1
    assert seen == [11]


def test_no_batch_of_one_prototype_on_the_server():
    sizes = [len(b) for b in fedktl._batches(torch.arange(101), 100)]
    assert sizes == [101]
    assert [len(b) for b in fedktl._batches(torch.arange(105), 50)] == [50, 50, 5]


class _Server:
    """A server view with a generator whose latents w have mean 2."""

    def __init__(self, **values):
        torch.manual_seed(0)
        self.config = config(**{"E_S": 60, "hidden": 16, **values})
        self.num_classes, self.device = C, torch.device("cpu")
        self.modules, self.state, self.round = {}, {}, 0
        self.replays, self.scratch = False, {}
        self.generator_outline = pf.datasets.Outline(latent_dim=6)

    def generator(self, purpose):
        return torch.Generator().manual_seed(3)

    def epochs(self, n):
        return range(n)

    def sample_latents(self, count, generator, labels=None):
        w = torch.randn(count, 6, generator=generator) + 2
        return w.to(self.modules["F"][0].weight.dtype)

    def generate(self, latents):
        return latents[:, :, None, None].repeat(1, 1, 2, 2)


def _uploads(classes=(1, 3)):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(classes), 5, generator=generator)
    return {
        i: pf.Payload(
            prototypes=rows + 0.1 * torch.randn(len(classes), 5, generator=generator),
            classes=torch.tensor(classes),
        )
        for i in range(6)
    }


def _slow_alignment(transformer, centroids, P, labels, settings):
    """Train F in plain torch, by the paper and its published code. Return the centroids."""
    generator = torch.Generator().manual_seed(3)
    embedding = nn.Embedding.from_pretrained(centroids.clone(), freeze=False)
    with torch.no_grad():  # the embedding starts from the means of F(P)
        for c in {*labels.tolist()}:
            embedding.weight[c] = transformer.eval()(P[labels == c]).mean(0)
    parts = [transformer.parameters(), embedding.parameters()]
    optimizers = [torch.optim.Adam(part, settings.eta_S) for part in map(list, parts)]
    transformer.train()
    for _ in range(settings.E_S):
        order = torch.randperm(len(P), generator=generator)
        for start in range(0, len(P), settings.B_S):
            rows = order[start : start + settings.B_S]
            Q, y = transformer(P[rows]), labels[rows].tolist()
            centres = {c: Q[[i for i, own in enumerate(y) if own == c]].mean(0) for c in {*y}}
            if settings.centroids == "embedding":
                centres = {c: embedding.weight[c] for c in centres}
            squares = [(q - centres[c]).square().mean() for q, c in zip(Q, y, strict=True)]
            weights = [1 / (len({*y}) * y.count(c)) for c in y]
            if settings.mse == "batch":
                weights = [1 / len(y)] * len(y)
            loss = settings.lambda_ * sum(w * s for w, s in zip(weights, squares, strict=True))
            w = torch.randn(len(rows), 6, generator=generator) + 2
            for a, b, sign in ((Q, Q, 1), (w, w, 1), (Q, w, -2)):
                distances = (a[:, None] - b[None]).square().sum(2)
                for bandwidth in (10, 15, 20, 50):
                    loss = loss + sign * (-distances / (2 * bandwidth)).exp().mean()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                if settings.clip_F:
                    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], settings.clip_F)
                optimizer.step()
    found = centroids.clone()
    with torch.no_grad():
        for c in {*labels.tolist()}:
            found[c] = transformer.eval()(P[labels == c]).mean(0)
    return found


@pytest.mark.parametrize(
    ("variant", "clip_F"),
    [
        ({}, 0.0),
        ({}, 0.02),
        ({"mse": "batch"}, 100.0),
        ({"centroids": "embedding"}, 0.02),
        ({"variant": "official"}, 100.0),
    ],
    ids=str,
)
def test_the_servers_training_is_the_slow_one(variant, clip_F):
    server, method = _Server(B_S=5, E_S=15, clip_F=clip_F, **variant), FedKTL()
    method.setup_server(server)
    server.modules["F"].double()  # a bias before BatchNorm has gradient 0 up to rounding
    server.state["Q"] = server.state["Q"].double()
    uploads = {i: pf.Payload(u, prototypes=u["prototypes"].double()) for i, u in _uploads().items()}
    P = torch.cat([u["prototypes"] for u in uploads.values()])
    transformer, centroids = deepcopy(server.modules["F"]), server.state["Q"].clone()
    found = method.server_train(server, uploads)
    slow = _slow_alignment(transformer, centroids, P, torch.tensor([1, 3] * 6), server.config)
    torch.testing.assert_close(
        server.modules["F"].state_dict(), transformer.state_dict(), rtol=1e-5, atol=1e-6
    )
    rows = found["classes"]
    torch.testing.assert_close(found["latents"], slow[rows], rtol=1e-5, atol=1e-6)
    official = server.config.centroids == "embedding"
    assert rows.tolist() == (list(range(C)) if official else [1, 3])
    if official:  # classes that were never sent keep their initial values
        assert torch.equal(found["latents"][[0, 2]], centroids[[0, 2]])
        assert 0.5 < float(centroids.std()) < 1.5


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_a_class_that_nobody_sends_keeps_its_last_pair(variant):
    server, method = _Server(variant=variant), FedKTL()
    method.setup_server(server)
    first = method.server_train(server, _uploads())
    second = method.server_train(server, _uploads([1]))
    every = list(range(C)) if variant == "official" else [1, 3]
    assert first["classes"].tolist() == second["classes"].tolist() == every
    assert torch.equal(second["images"], server.generate(second["latents"]))
    row = every.index(3)
    assert torch.equal(second["latents"][row], first["latents"][row])
    assert not torch.equal(second["latents"][every.index(1)], first["latents"][every.index(1)])


def test_server_trains_f_and_generates_from_centroids():
    server, method = _Server(), FedKTL()
    method.setup_server(server)
    P = torch.cat([u["prototypes"] for u in _uploads().values()])
    before = server.modules["F"].eval()(P).detach()
    found = method.server_train(server, _uploads())
    after = server.modules["F"](P).detach()
    w = server.sample_latents(200, server.generator(""))
    assert fedktl.mmd_rbf(after, w) < 0.3 * fedktl.mmd_rbf(before, w)
    assert found["classes"].tolist() == [1, 3]
    for row, c in enumerate((1, 3)):
        chosen = [
            server.modules["F"](u["prototypes"])[[1, 3].index(c)] for u in _uploads().values()
        ]
        torch.testing.assert_close(found["latents"][row], sum(chosen) / 6, rtol=1e-4, atol=1e-5)
    assert torch.equal(found["images"], server.generate(found["latents"]))


@pytest.mark.parametrize("values", [{"lambda": 0}, {"mmd": False}])
def test_each_server_loss_can_go(values):
    """Without L_MSE, the vectors of a class spread more; without L_MMD, they miss W."""
    results = {}
    for name, more in (("whole", {}), ("part", values)):
        server, method = _Server(**more), FedKTL()
        method.setup_server(server)
        method.server_train(server, _uploads())
        P = torch.cat([u["prototypes"] for u in _uploads().values()])
        Q = server.modules["F"](P).detach()
        labels = torch.tensor([1, 3] * 6)
        w = server.sample_latents(200, server.generator(""))
        means, _ = F.class_means(Q, labels, C)
        spread = fedktl.centroid_distance(Q, labels, means)
        results[name] = (float(spread), float(fedktl.mmd_rbf(Q, w)))
    which = 0 if "lambda" in values else 1
    assert results["part"][which] > results["whole"][which]


def test_a_single_prototype_does_not_stop_the_server():
    server, method = _Server(), FedKTL()
    method.setup_server(server)
    one = {0: pf.Payload(prototypes=torch.ones(1, 5), classes=torch.tensor([2]))}
    assert method.server_train(server, one)["classes"].tolist() == [2]


# --- V and h' ---------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [None, 7])
def test_etf_is_the_same_everywhere_and_not_sent(toy, tmp_path, K):
    made = plan(toy, tmp_path, {"K": K})
    host = Host(made)
    host.handle(StartTrial(0))
    Vs = [host.client(i).modules["fedktl"]["V"].module.V for i in range(M)]
    late = Host(made)
    late.handle(StartTrial(0))
    Vs.append(late.client(0).modules["fedktl"]["V"].module.V)
    assert all(torch.equal(V, Vs[0]) for V in Vs)
    V = Vs[0].double()
    assert V.shape == (K or C, C)
    expected = torch.full((C, C), -1 / (C - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(V.t() @ V, expected, atol=1e-6, rtol=0)
    other = plan(toy, tmp_path, {"K": K}, seed=1)
    host = Host(other)
    host.handle(StartTrial(0))
    assert not torch.equal(host.client(0).modules["fedktl"]["V"].module.V, Vs[0])


def test_k_below_c_is_refused(toy, tmp_path):
    with pytest.raises(pf.UsageError, match="K = 3 is less than the 4 classes"):
        plan(toy, tmp_path, {"K": 3})


class WatchesHPrime(FedKTL):
    """FedKTL that records the initial weights of h'."""

    starts: ClassVar[list[tuple[int, int, torch.Tensor]]] = []

    @pf.hookimpl
    def before_training(self, client):
        given = super().before_training(client)
        if given:
            weight = client.module("h_prime").weight.detach().clone()
            self.starts.append((client.round, client.id, weight))
        return given


def test_h_prime_starts_alike_on_all_clients(tmp_path):
    WatchesHPrime.starts.clear()
    found = toyfed.make_plan(
        "watching",
        tmp_path,
        options={"watching": FAST},
        extra={("method", "watching"): WatchesHPrime},
        models=toyfed.group(toyfed.CNN, K=6),
    )
    toyfed.Toy(found).rounds(4)
    starts = WatchesHPrime.starts
    assert {(r, i) for r, i, _ in starts} == {(r, i) for r in (1, 2, 3) for i in range(4)}
    by_round = {r: [w for q, _, w in starts if q == r] for r in (1, 2, 3)}
    for weights in by_round.values():
        assert all(torch.equal(w, weights[0]) for w in weights)
    first = by_round[1][0]
    for other in (by_round[2][0], by_round[3][0]):  # h' was trained and discarded in between
        assert torch.equal(first, other)
    bound = 6**-0.5
    assert 0.99 * bound < float(first.abs().max()) <= bound


def test_f_and_h_are_clipped_together(tmp_path):
    """One client step changes the model and h_i together by a norm of η·clip."""
    found = toyfed.make_plan(
        "fedktl", tmp_path, options={"fedktl": FAST}, lr=0.5, clip=0.01, batch_size=100
    )
    toy = toyfed.Toy(found)
    record = toy.client(0)
    h = record.modules["fedktl"]["h"].module
    before = [w.detach().clone() for w in (*record.model.parameters(), *h.parameters())]
    toy.rounds(1)
    after = [*record.model.parameters(), *h.parameters()]
    moved = sum(float((a - b).detach().square().sum()) for a, b in zip(after, before, strict=True))
    assert math.sqrt(moved) == pytest.approx(0.5 * 0.01, rel=1e-3)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_whole_batches_alone_and_clipping_at_100(toy, tmp_path, variant):
    """The paper trains ⌊n_i/10⌋ steps."""
    settings = plan(toy, tmp_path, {"variant": variant}).settings
    assert (settings.drop_last, settings.clip) == (True, 100.0)


@pytest.mark.parametrize(
    ("set", "width"), [({}, C), ({"K": 9}, 9), ({"etf": False}, WIDTH), ({"hidden": 3}, 3)]
)
def test_f_is_as_wide_as_its_input(toy, tmp_path, set, width):
    config = plan(toy, tmp_path, set).composition.configs["fedktl"]
    assert config.hidden == width


def test_mini_batches_of_pairs(toy, tmp_path):
    client = SimpleNamespace(
        received=pf.Payload(
            images=torch.zeros(C, 3, 8, 8), latents=torch.zeros(C, 9), classes=torch.arange(C)
        ),
        config=config(guide_batch=3),
        steps=11,
        feature_dim=6,
        device=torch.device("cpu"),
        prepare=lambda x: x,
        add_module=lambda *a, **k: None,
        state={"h'": 0},
        generator=lambda purpose: torch.Generator(),
        batch_size=10,
        num_samples=104,
    )
    draws = FedKTL().before_training(client)["rows"].rows
    assert draws.shape == (11, 3)
    order = draws.flatten().tolist()  # each epoch has every pair once
    epochs = [order[i : i + C] for i in range(0, 33 - C + 1, C)]
    assert len(epochs) == 8 and all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    client.config = config(guide_batch=0)
    draws = FedKTL().before_training(client)["rows"].rows
    assert all(sorted(row.tolist()) == [0, 1, 2, 3] for row in draws) and len(draws) == 11
    client.config = config(mix=True)  # every image about once per epoch
    draws = FedKTL().before_training(client)["rows"].rows
    assert draws.shape == (11, 1)
    assert all(n >= 2 for n in torch.bincount(draws.flatten(), minlength=C).tolist())


# --- runs ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_rounds_and_their_traffic(toy, tmp_path):
    result = run(toy, tmp_path)
    first, second = result.record
    assert first["loss_terms"].keys() == {"arcface"}
    assert second["loss_terms"].keys() == {"arcface", "guide"}
    held = M * C  # iid: every client has every class; K = C floats per class
    assert first["upload_floats"] == second["upload_floats"] == held * C
    assert first["download_floats"] == first["download_bytes"] == 0
    assert second["download_floats"] == M * C * (3 * SIDE * SIDE + 512)
    assert 0 <= second["test_accuracy"] <= 1


def test_uploads_count_own_classes_only(toy, tmp_path):
    result = run(
        toy, tmp_path, partition="pathological", clients=2, set={"partition.classes_per_client": 2}
    )
    assert result.record[1]["upload_floats"] == 2 * 2 * C
    assert result.record[1]["download_floats"] == 2 * C * (3 * SIDE * SIDE + 512)


@pytest.mark.parametrize(
    ("values", "drop", "terms", "up"),
    [
        ({"mu": 0}, [], {"arcface", "guide"}, C),
        ({"lambda": 0}, [], {"arcface", "guide"}, C),
        ({"mmd": False}, [], {"arcface", "guide"}, C),
        ({"etf": False}, [], {"arcface", "guide"}, WIDTH),
        ({"mix": True}, ["guide"], {"arcface"}, C),
        ({"conditional": True}, [], {"arcface", "guide"}, 0),
        ({"s": 1, "m": 0}, [], {"arcface", "guide"}, C),
        ({"variant": "official"}, [], {"arcface", "guide"}, C),
    ],
    ids=["-L_M", "-L_MSE", "-L_MMD", "-ETF", "-Q", "+CS", "*L_A", "official"],
)
def test_variants(toy, tmp_path, values, drop, terms, up):
    result = run(toy, tmp_path, set=values, drop=drop)
    last = result.record[1]
    assert last["loss_terms"].keys() == terms
    assert last["upload_floats"] == M * C * up
    assert all(math.isfinite(v) for v in last["loss_terms"].values())
    if "mu" in values:
        assert last["loss_terms"]["guide"] == 0
    if "conditional" in values:  # pairs are sent from round 0 on
        assert result.record[0]["download_floats"] == last["download_floats"] > 0


@pytest.mark.slow
def test_without_guidance_clients_train_alone(toy, tmp_path):
    """−L_M: server options do not change the clients."""
    alone = run(toy, tmp_path, set={"mu": 0})
    other = run(toy, tmp_path, set={"mu": 0, "lambda": 0})
    key = "arcface"
    assert [r["loss_terms"][key] for r in alone.record] == [
        r["loss_terms"][key] for r in other.record
    ]


def test_conditional_needs_enough_classes(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(
        TinyStyle,
        "outline",
        pf.hookimpl(lambda self, config, data_dir: pf.datasets.Outline(num_classes=2)),
    )
    with pytest.raises(pf.UsageError, match="at least 4 classes"):
        run(toy, tmp_path, set={"conditional": True}, dry_run=True)


def test_single_client(toy, tmp_path):
    """Appendix B."""
    result = run(toy, tmp_path, clients=1)
    assert result.record[1]["upload_floats"] == C * C
    assert result.record[1]["download_floats"] == C * (3 * SIDE * SIDE + 512)
    assert "guide" in result.record[1]["loss_terms"]


@pytest.mark.slow
def test_grey_data_get_grey_images(few, tmp_path):
    result = run(few.removeprefix("npz:"), tmp_path, set={"mu": 1}, clients=2)
    assert result.record[1]["download_floats"] == 2 * 10 * (8 * 8 + 512)


@pytest.mark.slow
def test_noisy_prototypes_and_pairs(toy, tmp_path):
    """Table 10."""
    clean = run(toy, tmp_path)
    noisy = run(toy, tmp_path, transforms=["gaussian-noise"])
    guide = [r.record[1]["loss_terms"]["guide"] for r in (clean, noisy)]
    assert guide[0] != guide[1]


def test_dry_run_does_not_load_the_generator(toy, tmp_path, monkeypatch):
    def boom(self, config, device, data_dir):
        raise RuntimeError("loaded")

    monkeypatch.setattr(TinyStyle, "open_generator", pf.hookimpl(boom))
    made = plan(toy, tmp_path)
    dry_run(made)
    with pytest.raises(RuntimeError, match="loaded"):
        made.images.outline  # noqa: B018 - the access loads the generator


@pytest.mark.slow
def test_process_equals_local(toy, tmp_path):
    drop = {"seconds", "time"}
    lines = [
        [{k: v for k, v in row.items() if k not in drop} for row in r.record]
        for r in (
            run(toy, tmp_path),
            run(toy, tmp_path, backend="process", workers=2),
        )
    ]
    assert lines[0] == lines[1]


@pytest.mark.always
@pytest.mark.slow
def test_resumed_run_is_the_same_and_checkpoints_are_light(toy, tmp_path):
    whole = run(toy, tmp_path, rounds=3)

    def stop(event):
        if isinstance(event, pf.events.RoundStarted) and event.round == 2:
            raise KeyboardInterrupt

    out = tmp_path / "interrupted"
    values = options(toy, tmp_path, rounds=3, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        pf.run("fedktl", out=out, set=FAST, progress=stop, **values)
    names = set()
    for file in (out / "checkpoint").rglob("*.safetensors"):
        from safetensors import safe_open

        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    assert any("fedktl/h/" in n for n in names) and any("fedktl/F/" in n for n in names)
    assert not any("h_prime" in n or "fedktl/V" in n or "synthesis" in n for n in names)
    resumed = pf.run(out=out, resume=True, backend="local")
    drop = {"seconds", "time"}
    assert [{k: v for k, v in r.items() if k not in drop} for r in resumed.record] == [
        {k: v for k, v in r.items() if k not in drop} for r in whole.record
    ]
