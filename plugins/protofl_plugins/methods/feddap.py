"""FedDAP: each domain has prototypes, which pull its clients and guide the others.

Le et al., "FedDAP: Domain-Aware Prototype Learning for Federated Learning under Domain Shift",
CVPR 2026 (arXiv 2604.06795).

    p_i^(c,d)   client i's prototype of class c, of its domain d: mean feature         (Eq. 3)
    S_i         Σ_{j ≠ i} cos(p_i^(c,d), p_j^(c,d)), over the clients of the domain     (Eq. 4)
    P^(c,d)     Σ_i α_i·p_i^(c,d), with α = softmax(S / τ_agg)                          (Eq. 5)
    ℓ_DPA       1 − cos(f, P^(y,d)), d the client's own domain                          (Eq. 6)
    ℓ_CPCL      −log( Σ_{e ≠ d} e^{cos(f, P^(y,e))/τ} / Σ_{c, e ≠ d} e^{cos(f, P^(c,e))/τ} )
                                                                                        (Eq. 8)
    L_i         E ℓ(h(f(x)), y) + λ₁·E ℓ_DPA + λ₂·E ℓ_CPCL                              (Eq. 9)
    server      w ← Σ_i (n_i / n) · w_i                                                 (Eq. 10)

Inference: the shared model's head.

A sample whose class has no prototype adds 0 to the term that needs it. A class and domain that
no client of the round has keeps its prototype. The paper needs data with domains. Where a client's
domain is not known (`Client.domain`), the client is a domain of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import weights
from protofl_plugins.shared.prototypes import MEANS, class_prototypes, sent_rows


class FedDAP:
    """Prototypes of each class and domain guide a shared model (Le et al., 2026)."""

    class Config(weights.ModelSharingConfig):
        """Options, with the paper's symbols; shared: aggregate, buffers."""

        lambda_1: float = pf.Field(
            1.0, ge=0, description="λ₁, weight of align; 0 ignores the prototypes of the own domain"
        )
        lambda_2: float = pf.Field(
            1.0, ge=0, description="λ₂, weight of contrast; 0 ignores those of other domains"
        )
        tau: float = pf.Field(
            0.02, gt=0, description="τ, temperature of contrast; large: all classes pull alike"
        )
        tau_agg: float = pf.Field(
            0.001,
            gt=0,
            description="τ_agg, temperature of the weights of a domain's clients; large: the plain "
            "mean, small: the prototype that is most like the others alone",
        )

    asynchronous = "versions"
    terms = {
        "ce": "cross-entropy, the first part of Eq. 9",
        "align": "λ₁·E ℓ_DPA, to the prototype of the class in the own domain (Eq. 6)",
        "contrast": "λ₂·E ℓ_CPCL, contrast with the prototypes of other domains (Eq. 8)",
    }
    uploads = {
        **weights.UPLOADS,
        **MEANS,
        "domain": pf.Key(
            "[] int", "d, the number of the client's domain", reveals="the client's domain, exactly"
        ),
    }
    downloads = {
        **weights.DOWNLOADS,
        "prototypes": "P^(c,d) of the classes and domains that anybody has sent",
        "domains": pf.Key("[n] int", "the domain of each prototype", by_class=True),
    }
    download_rules = {"classes": "several"}
    native_widths = False
    ablations = {
        "without alignment in the domain": "--set lambda_1=0",
        "without contrast with other domains": "--set lambda_2=0",
        "plain mean of a domain's clients": "--set tau_agg=1e9",
    }

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # w

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send w, and P of all domains."""
        return server.global_state.select("model/*", "prototypes", "domains")

    receive = weights.MODEL.receive  # w_i ← w

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """P of the own domain as a table C×K with its known classes; all P, [n, K], of any domain.

        ``elsewhere`` says which rows of all P are of other domains.
        """
        if "prototypes" not in client.received:
            return {}
        P, classes = client.received.rows("prototypes", client.feature_dim)
        here = client.received["domains"] == domain_of(client)
        own, known = F.class_means(P[here], classes[here], client.num_classes)
        return {
            "own": own, "known": known > 0, "P": P, "classes": classes, "elsewhere": ~here
        }  # fmt: skip

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Eq. 9."""
        config, f, y = client.config, output.features, batch.y
        terms = {"ce": cross_entropy(output.logits, y)}
        if constants:
            align = F.cosine_alignment(f, y, constants["own"], constants["known"])
            terms["align"] = config.lambda_1 * align
            P, classes, elsewhere = (constants[name] for name in ("P", "classes", "elsewhere"))
            contrast = domain_contrast(f, y, P, classes, elsewhere, config.tau)
            terms["contrast"] = config.lambda_2 * contrast.mean()
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """w_i and n_i; p_i^(c,d) of an evaluation pass after training (Eq. 3), and d."""
        sent = weights.MODEL.upload_payload(client)
        domain = torch.tensor(domain_of(client))
        return pf.Payload({**sent, **class_prototypes(client, "uniform")}, domain=domain)

    @pf.hookimpl
    def check_upload(self, server: pf.Server[Config], client_id: int, upload: pf.Payload) -> str:
        """Refuse the number of an unknown domain: there are at most as many domains as clients."""
        domain, count = int(upload["domain"]), len(server.clients)
        return "" if 0 <= domain < count else f"domain {domain}, expected 0 to {count - 1}"

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average w (Eq. 10); fuse P of the round's classes and domains (Eq. 4, 5), keep others."""
        count, config = len(server.clients), server.config
        p, classes = sent_rows(uploads, "prototypes", server.feature_dim)
        sent = [u["domain"].expand(len(u.classes_of("prototypes"))) for u in uploads.values()]
        pairs, group = torch.unique(classes * count + torch.cat(sent), return_inverse=True)
        P = torch.stack([fused(p[group == g], config.tau_agg) for g in range(len(pairs))])
        if "prototypes" in server.global_state:
            old, old_classes = server.global_state.rows("prototypes")
            old_pairs = old_classes * count + server.global_state["domains"]
            absent = ~torch.isin(old_pairs, pairs)
            P, pairs = torch.cat([P, old[absent]]), torch.cat([pairs, old_pairs[absent]])
        pairs, order = pairs.sort()
        rows = {"prototypes": P[order], "classes": pairs // count, "domains": pairs % count}
        return pf.Payload({**weights.MODEL.server_aggregate(server, uploads), **rows})

    global_models = weights.MODEL.global_models


def domain_of(client: pf.Client[FedDAP.Config]) -> int:
    """Return d, the number of the client's domain; its own number where none is known."""
    return client.id if client.domain is None else client.domain


def fused(p: Tensor, tau: float) -> Tensor:
    """Return P^(c,d), [K], of the prototypes p_i^(c,d) of a domain's clients, n×K (Eq. 4 and 5)."""
    unit = normalize(F.in_float64(p), dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(0)
    alpha = (cosines.sum(1) / tau).softmax(0)  # float64: 1/τ enlarges what rounding changes
    return alpha.to(p) @ p


def domain_contrast(
    f: Tensor, y: Tensor, P: Tensor, classes: Tensor, elsewhere: Tensor, tau: float
) -> Tensor:
    """Return ℓ_CPCL of features B×K with labels [B], [B] (Eq. 8).

    It is 0 where no other domain has a prototype of the class.

    Args:
        f: The features.
        y: Their labels.
        P: The prototypes of all classes and domains, n×K.
        classes: The class of each, [n].
        elsewhere: [n] bool, those of other domains.
        tau: τ.
    """
    s = normalize(f, dim=1) @ normalize(P.to(f.dtype), dim=1).T / tau  # B×n
    positive = elsewhere & (y.unsqueeze(1) == classes)
    # Without a positive both sums have the same rows, so that the loss and its gradient are 0.
    lacks = ~positive.any(1, keepdim=True)
    above = s.masked_fill(~(positive | lacks), -torch.inf)
    below = s.masked_fill(~(elsewhere | lacks), -torch.inf)
    return below.logsumexp(1) - above.logsumexp(1)
