"""FedKTL: a server-side generator turns prototypes into image-vector pairs that guide features.

Zhang et al., "An Upload-Efficient Scheme for Transferring Knowledge From a Server-Side
Pre-trained Generator to Clients in Heterogeneous Federated Learning", CVPR 2024.

    V          simplex ETF, √(C/(C−1))·U(I − 11ᵀ/C), UᵀU = I, K×C; drawn, not sent   (Sec. 3.3.2)
    g_i        h_i∘f_i: features K' projected into the ETF space, K
    L_A        E −log( e^{s·cos(θ_y+m)} / (e^{s·cos(θ_y+m)} + Σ_{c≠y} e^{s·cos θ_c}) )    (Eq. 1)
    P_i^c      E_{(x,c) ~ D_i^c} g_i(x), after local training
    L_MSE      1/C Σ_c 1/|M_c| Σ_{i in M_c} ℓ(F(P_i^c), Q^c), Q^c = 1/|M_c| Σ_j F(P_j^c)   (Eq. 2)
    L_MMD      ‖E_Q φ(Q) − E_w φ(w)‖², w sampled by the generator's G_m                  (Eq. 3)
    L          L_MMD + λ·L_MSE trains F = FC–BN–ReLU–FC
    I^c        G_s(Q̄^c), one image per class, Q̄^c = Q^c of the trained F
    L_M        1/C Σ_c ℓ(h'_i(f_i(I^c)), Q̄^c), h' linear, with one start for all clients  (Eq. 4)
    L_i        L_A + μ·L_M;  *L_A is Eq. 1 with s = 1, m = 0                            (Eq. 6)

ℓ is the mean squared error. h' is one layer, drawn at set-up: every client starts from it in every
round, trains it and forgets it. A step takes a mini-batch of pairs, `guide_batch`, and a server's
step a batch of B_S prototypes; Eq. 2 and 4 are then over the classes of that batch. F's hidden
layer is as wide as its input, K → K → H, as in published code. F keeps its weights from round to
round, Adam starts afresh. A class that no client has sent in a round keeps its last Q̄^c.
Inference: the class whose v_c has the largest cosine with g_i(x).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.engines.server_steps import minimise
from protofl_plugins.shared.prototypes import sent_rows


class FedKTL:
    """A server-side generator's image-vector pairs guide features (Zhang et al., 2024)."""

    class Config(pf.VariantConfig):
        """Options, with the paper's symbols."""

        official = {"same_init": True}
        deviations = {
            "unit": pf.Deviation(
                "P_i^c, Sec. 3.3.2", False, True, "the code scales g(x) and the mean to length 1"
            ),
            "centroids": pf.Deviation(
                "Eq. 2",
                "mean",
                "embedding",
                "the code trains Q^c beside F, from the means; from N(0, 1) where no class was",
            ),
            "mse": pf.Deviation("Eq. 2", "class", "batch", "the code takes the plain mean"),
        }
        mu: float = pf.Field(50.0, ge=0, description="μ of L_M; 0 regresses to local training")
        s: float = pf.Field(64.0, gt=0, description="s, the scale of cosines in Eq. 1")
        m: float = pf.Field(0.5, ge=0, le=1.5, description="m, the angle added in Eq. 1")
        K: int = pf.Field(
            None, ge=2, description="K, dimension of the ETF space, at least C. None: C"
        )
        lambda_: float = pf.Field(
            1.0, alias="lambda", ge=0, description="λ of L_MSE; 0 leaves it out"
        )
        eta_S: float = pf.Field(0.01, gt=0, description="η_S, learning rate of F (Adam)")
        B_S: int = pf.Field(100, ge=2, description="B_S, prototypes in a batch of the server")
        E_S: int = pf.Field(100, ge=0, description="E_S, epochs of the server")
        clip_F: float = pf.Field(
            100.0, ge=0, description="largest gradient norm of F, and of Q^c; 0 for any"
        )
        hidden: int = pf.Field(
            None, ge=1, description="width between F's two layers. None: that of its input"
        )
        centroids: Literal["mean", "embedding"] = pf.Field(
            None, description="Q^c of L_MSE: the batch's class means, or an embedding trained too"
        )
        mse: Literal["class", "batch"] = pf.Field(
            None, description="L_MSE: mean over a class's vectors, then over classes; or plain mean"
        )
        guide_batch: int = pf.Field(
            None, ge=0, description="pairs of a step; 0 for all. None: the batch size"
        )
        unit: bool = pf.Field(
            None, description="scale g(x) and its mean P_i^c to length 1 before sending"
        )
        mmd: bool = pf.Field(True, description="L_MMD; false leaves it out (−L_MMD, Table 7)")
        etf: bool = pf.Field(
            True, description="h_i and V; false keeps each model's own classifier (−ETF, Table 7)"
        )
        mix: bool = pf.Field(
            False, description="generated images join the private ones in L_A (−Q̄, Table 7)"
        )
        conditional: bool = pf.Field(
            False,
            description="one pair for each of C random classes of a conditional generator, "
            "drawn once; no upload, no F (+CS, Table 7)",
        )

    needs_generator = True
    asynchronous = True
    check_options = {"E_S": 5}  # server epochs, of which a hundred are the default
    terms = {
        "arcface": "L_A, Eq. 1; cross-entropy of the own classifier with etf=false",
        "guide": "μ·L_M, Eq. 4",
    }
    uploads = {
        "prototypes": "P_i^c of the client's classes in the ETF space",
        "classes": "which classes the client has",
    }
    downloads = {
        "images": pf.Key(
            "[n, channels, H, W]",
            "I^c, one generated image per class, in the data's size",
            by_class=True,
        ),
        "latents": pf.Key(
            "[n, H]", "Q̄^c, the vector of which the image was generated", by_class=True
        ),
    }
    ablations = {
        # A dropped term is computed still, through BatchNorm.
        "−L_M (Table 7)": "--set mu=0",
        "−L_MSE (Table 7)": "--set lambda=0",
        "−L_MMD (Table 7)": "--set mmd=false",
        "−ETF (Table 7)": "--set etf=false",
        "−Q̄ (Table 7)": "--set mix=true --drop local_loss.guide",
        "+CS (Table 7), with a conditional generator": "--set conditional=true",
        "*L_A (Table 17)": "--set s=1 --set m=0",
        "NC (Table 10)": "--set unit=true --with gaussian-noise --set gaussian-noise.direction=up",
        "NG (Table 10)": "--with gaussian-noise --set gaussian-noise.direction=down",
        "NC + NG (Table 10)": "--set unit=true --with gaussian-noise",
        "one client (Table 9)": "--clients 1",
    }

    @pf.hookimpl
    def run_defaults(self, config: pf.VariantConfig) -> dict[str, Any]:
        """Gradients of norm 100 at most, as in published code; ⌊n_i/10⌋ steps (Sec. 4.1).

        The paper is silent on clipping. Eq. 1 does not depend on the length of g(x), so its
        gradient is s/‖g‖ and more: at the start of a net without BatchNorm ‖g‖ is near 0.1, and one
        step of lr 0.01 takes ‖f(x)‖² from 1 to 10⁵, where μ·L_M diverges.
        """
        return {"clip": 100.0, "drop_last": True}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """The generator makes images. UᵀU = I needs K ≥ C, although the text says K ≥ C−1."""
        if run.sample.kind != "image":
            return [
                "its server sends generated images, on which clients train beside their own data; "
                f"these data are {run.sample}"
            ]
        if config.etf and run.num_classes < 2:
            return ["an ETF needs at least 2 classes; --set etf=false needs none"]
        if config.etf and config.K is not None and run.num_classes > config.K:
            C = run.num_classes
            return [f"K = {config.K} is less than the {C} classes; leave K out, or set K={C}"]
        return []

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: Config) -> dict[str, Any]:
        """K = C, as many pairs as samples in a step, and F of K → K → H."""
        pairs = run.batch_size if config.guide_batch is None else config.guide_batch
        K = config.K or max(run.num_classes, 2)
        hidden = config.hidden or (K if config.etf else run.feature_dim)
        return {"K": K, "guide_batch": pairs, "hidden": hidden}

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """F and Q̄; with `conditional` the pairs of C random classes of the generator."""
        config, H, C = server.config, server.generator_outline.latent_dim, server.num_classes
        if config.conditional:
            return conditional_pairs(server)
        width = config.K if config.etf else server.feature_dim
        first, last = nn.Linear(width, config.hidden), nn.Linear(config.hidden, H)
        transformer = nn.Sequential(first, nn.BatchNorm1d(config.hidden), nn.ReLU(), last)
        server.modules["F"] = transformer.to(server.device)
        embedding = config.centroids == "embedding"
        Q = torch.randn(C, H, generator=server.generator("Q")) if embedding else torch.zeros(C, H)
        server.state["Q"] = Q.to(server.device)
        server.state["known"] = torch.full((C,), embedding, device=server.device)
        return pf.Payload()

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """h_i, V and the start of h': the last two the same on all clients, by the run's seed."""
        config = client.config
        # A layer on each client would be in every checkpoint; its seed will do.
        client.state["h'"] = client.shared_generator("h'").initial_seed()
        if config.etf:
            V = F.simplex_etf(client.num_classes, config.K, client.shared_generator("V"))
            client.add_module("V", _Columns(V), train=False)
            h = nn.Linear(client.feature_dim, config.K)
            client.add_module("h", h, with_model=True)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """The pairs D_I, Q̄ (step 5 of Fig. 3)."""
        return server.global_state.select("images", "latents")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """The pairs as the model takes them, h', and the mini-batch of pairs of each step."""
        received, config = client.received, client.config
        if "latents" not in received:
            return {}
        latents = received["latents"]
        client.add_module("h_prime", _h_prime(client, latents.shape[1]), temporary=True)
        n, size = len(latents), config.guide_batch
        if config.mix:  # every image about once an epoch, as if it were among the private ones
            size = -(-n * client.batch_size // client.num_samples)
        size = min(size or n, n)
        # Epochs of pairs one after the other, each in an order of its own.
        generator, epochs = client.generator("pairs"), -(-size * client.steps // n)
        order = torch.cat([torch.randperm(n, generator=generator) for _ in range(epochs)])
        chosen = order[: size * client.steps].view(client.steps, size)
        return {
            "images": client.prepare(received["images"]),
            "latents": latents,
            "classes": received.classes_of("images"),
            "rows": pf.per_step(chosen.to(client.device)),
        }

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_A (Eq. 1) and μ·L_M (Eq. 4)."""
        config = client.config
        if not constants:
            return {"arcface": supervised(client, output.features, batch.y)}
        if not (config.mu or config.mix):  # no pass through BatchNorm either
            L_A = supervised(client, output.features, batch.y)
            return {"arcface": L_A, "guide": torch.zeros_like(L_A)}
        rows = constants["rows"]
        features = features_of(client, constants["images"][rows], batch.x)
        z, y = output.features, batch.y
        if config.mix:
            z, y = torch.cat([z, features]), torch.cat([y, constants["classes"][rows]])
        L_A = supervised(client, z, y)  # Eq. 1
        L_M = mse_loss(client.module("h_prime")(features), constants["latents"][rows])  # Eq. 4
        return {"arcface": L_A, "guide": config.mu * L_M}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """P_i^c in the ETF space, without counts."""
        config = client.config
        if config.conditional:
            return pf.Payload()
        features, labels = client.train_features()
        g = client.module("h")(features) if config.etf else features
        g = normalize(g) if config.unit else g
        P, counts = F.class_means(g, labels, client.num_classes)
        return pf.class_rows(counts > 0, prototypes=normalize(P) if config.unit else P)

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """F by Eq. 2 and 3; then Q̄, and one image per class."""
        if server.config.conditional:
            return pf.Payload()
        width = server.config.K if server.config.etf else server.feature_dim
        P, labels = sent_rows(uploads, "prototypes", width)
        transformer, state = server.modules["F"], server.state
        train_F(server, transformer, P, labels)  # Eq. 2 and 3
        state["Q"], sent = centroids(server, transformer, P, labels)
        state["known"] = sent | state["known"]
        pairs = pf.class_rows(state["known"], latents=state["Q"])
        pairs["images"] = server.generate(pairs["latents"])
        return pairs

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Cosines with V, or the own classifier's scores."""
        features = client.features(x)
        if not client.config.etf:
            return client.head(features)
        return cosines(client, features)


# --- on a client ----------------------------------------------------------------------------------


def cosines(client: pf.Learner[FedKTL.Config], features: Tensor) -> Tensor:
    """Return cos θ_c between g_i(x) and v_c, B×C."""
    g = client.module("h")(features.float())
    return cast(Tensor, client.module("V")(normalize(g)))


def supervised(client: pf.Learner[FedKTL.Config], features: Tensor, labels: Tensor) -> Tensor:
    """Return L_A (Eq. 1), or the cross-entropy of the own classifier."""
    config = client.config
    if not config.etf:
        return cross_entropy(client.head(features).float(), labels)
    return arcface_loss(cosines(client, features), labels, config.s, config.m)


def arcface_loss(cosines: Tensor, labels: Tensor, s: float = 64.0, m: float = 0.5) -> Tensor:
    """Return the ArcFace loss (Eq. 1), a mean over rows.

    With a = cos(θ_y + m), a row costs −log(e^{s·a} / (e^{s·a} + Σ_{c≠y} e^{s·cos θ_c})). Taken as
    printed: beyond θ_y = π − m, a rises again with θ_y. s = 1 and m = 0 give Eq. 6.

    Args:
        cosines: cos θ_c, N×C; clamped to ±(1 − 1e-7), where the gradient of arccos is still finite.
        labels: y, [N].
        s: The scale, without unit.
        m: The margin, in radians.
    """
    cosines = cosines.clamp(-(1 - 1e-7), 1 - 1e-7)
    is_label = labels.unsqueeze(1) == torch.arange(cosines.shape[1], device=labels.device)
    scores = s * torch.where(is_label, (cosines.acos() + m).cos(), cosines)
    return cross_entropy(scores, labels, reduction="sum") / max(len(cosines), 1)


def features_of(client: pf.Learner[FedKTL.Config], images: Tensor, x: Tensor) -> Tensor:
    """Return f(I); very few images are seen together with the batch, for BatchNorm's sake."""
    if len(images) < client.least_batch:
        return client.features(torch.cat([images, x]))[: len(images)].float()
    return client.features(images).float()


class _Columns(nn.Module):
    """V as a frozen module: x ↦ xV."""

    def __init__(self, V: Tensor) -> None:
        super().__init__()
        self.register_buffer("V", V)

    def forward(self, x: Tensor) -> Tensor:
        return x @ cast(Tensor, self.V)


def _h_prime(client: pf.Client[FedKTL.Config], out: int) -> nn.Linear:
    """h': a linear layer with PyTorch's usual start, drawn alike on all clients."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, client.feature_dim, out)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(client.state["h'"])
    bound = client.feature_dim**-0.5
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


# --- on the server --------------------------------------------------------------------------------


@torch.no_grad()
def centroids(
    server: pf.Server[FedKTL.Config], transformer: nn.Module, P: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Q̄^c, the mean of F(P_i^c), and the sent classes; of the others the last Q̄^c."""
    means, counts = F.class_means(transformer.eval()(P), labels, server.num_classes)
    sent = counts > 0
    return torch.where(sent.unsqueeze(1), means, server.state["Q"]), sent


def train_F(
    server: pf.Server[FedKTL.Config], transformer: nn.Module, P: Tensor, labels: Tensor
) -> None:
    """Train F, and beside it an embedding of Q^c where asked for: L = L_MMD + λ·L_MSE."""
    config, C = server.config, server.num_classes
    trained: list[list[Tensor]] = [[*transformer.parameters()]]
    embedding = None
    if config.centroids == "embedding":
        start = centroids(server, transformer, P, labels)[0]
        kept = server.scratch.setdefault("Q", torch.empty_like(start))  # where recorded steps look
        embedding = kept.detach().copy_(start).requires_grad_()
        trained.append([embedding])
    optimizer = torch.optim.Adam([{"params": group} for group in trained], config.eta_S)
    transformer.train(len(P) > 1)

    def batches() -> Iterator[tuple[Tensor, ...]]:
        generator = server.generator("align")
        for _ in server.epochs(config.E_S):
            order = torch.randperm(len(P), generator=generator).to(P.device)
            for rows in _batches(order, config.B_S):
                yield (rows, server.sample_latents(len(rows), generator)) if config.mmd else (rows,)

    def loss(P: Tensor, y: Tensor, *w: Tensor) -> Tensor:
        Q = transformer(P)
        goal = F.class_means(Q, y, C)[0] if embedding is None else embedding
        distance = config.lambda_ * centroid_distance(Q, y, goal, config.mse)  # Eq. 2
        return distance + mmd_rbf(Q, w[0]) if config.mmd else distance  # Eq. 3

    minimise(
        server,
        loss,
        optimizer,
        batches(),
        of=(P, labels),
        changes=[transformer],
        clip=config.clip_F,
    )


def centroid_distance(
    Q: Tensor, labels: Tensor, centroids: Tensor, average: Literal["class", "batch"] = "class"
) -> Tensor:
    """Return L_MSE (Eq. 2), the mean squared error of vectors to the centroids of their classes.

    Where the centroids are the means of these very rows the gradient through them is 0, as
    deviations from a mean sum to 0.

    Args:
        Q: F(P_i^c), N×H.
        labels: Their classes, [N].
        centroids: Q^c, C×H; the rows of classes that don't occur are not looked at.
        average: ``class``: the mean over a class's vectors, then over the classes that occur;
            ``batch``: the mean over all vectors, as in published code.
    """
    rows = (Q - centroids[labels]).square().mean(1)
    if average == "batch":
        return rows.sum() / max(len(rows), 1)
    counts = rows.new_zeros(len(centroids)).index_add(0, labels, torch.ones_like(rows))
    return (rows / counts[labels]).sum() / (counts > 0).sum().clamp(min=1)


def mmd_rbf(x: Tensor, y: Tensor, bandwidths: Sequence[float] = (10, 15, 20, 50)) -> Tensor:
    """Return L_MMD (Eq. 3), the squared maximum mean discrepancy of two samples.

    The kernel is κ(a, b) = Σ_w exp(−‖a − b‖²/2w) over the bandwidths w, and the estimate is the
    biased one, diagonals in: mean κ(x, x) + mean κ(y, y) − 2 mean κ(x, y), which is never
    negative but for rounding.

    Args:
        x: N×H, N ≥ 1.
        y: M×H, M ≥ 1.
        bandwidths: The w, in the unit of squared distance.
    """

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = F.squared_distances(a, b)
        kernels = [(squared / (-2.0 * bandwidth)).exp() for bandwidth in bandwidths]
        return torch.stack(kernels).sum(0).mean()

    return (mean_kernel(x, x) + mean_kernel(y, y) - 2.0 * mean_kernel(x, y)).to(x.dtype)


def _batches(order: Tensor, size: int) -> list[Tensor]:
    """Batches; a last one of a single prototype, which BatchNorm refuses, joins the one before."""
    parts = list(torch.split(order, size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def conditional_pairs(server: pf.Server[FedKTL.Config]) -> pf.Payload:
    """Return a pair for each of C classes of the generator that are drawn at random (+CS)."""
    C, available = server.num_classes, server.generator_outline.num_classes
    if available is not None and available < C:
        raise pf.UsageError(
            f"conditional=true needs a generator conditioned on at least {C} classes",
            f"the chosen one has {available}",
            "choose another with --generator, or leave conditional=true out",
        )
    generator = server.generator("classes")
    chosen = torch.randperm(available or C, generator=generator)[:C]
    latents = server.sample_latents(C, generator, chosen.to(server.device))
    every = torch.ones(C, dtype=torch.bool, device=server.device)
    return pf.class_rows(every, images=server.generate(latents), latents=latents)
