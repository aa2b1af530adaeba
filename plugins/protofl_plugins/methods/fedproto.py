"""FedProto: clients are guided by the mean of all clients' prototypes.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022; the
equations are numbered as in FedTGP (Zhang et al., AAAI 2024), which restates them.

    P_i^c   client i's prototype of class c: mean feature of its samples          (Eq. 2)
    P̄^c    global prototype: Σ_{i in N_c} |D_i,c|/N_c · P_i^c                     (Eq. 3)
    L_i     E ℓ(h_i(f_i(x)), y) + λ·E_{c ~ C_i} φ(P_i^c, P̄^c)                     (Eq. 4)

Inference: the class of the nearest global prototype; the head, before there are any.

Eq. 3 as printed divides by |N_c| once more, which shrinks prototypes, as the weights sum to 1
already: ``aggregate=eq3``. The default ``weighted`` leaves that division out. With ρ < 1 a class
may be absent from a round; it keeps its last prototype (``absent``).
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.shared.prototypes import (
    MEANS,
    WHEN_ONLINE,
    GuideConfig,
    MeansConfig,
    collect_online,
    default_weight,
    global_prototypes,
    guided_loss,
    guides,
    mean_prototypes,
    nearest_prototype,
    sent_prototypes,
    with_absent,
)


class FedProto:
    """Clients are guided by the mean of all clients' prototypes (Tan et al., 2022)."""

    class Config(MeansConfig, GuideConfig):
        """Options, with the paper's symbols.

        Shared: lambda, distance, align, collect, aggregate, absent.
        """

        official = {"drop_last": True, "same_init": True}
        deviations = MeansConfig.deviations | GuideConfig.deviations

    tasks = ("classification", "multilabel")
    asynchronous = True
    terms = {
        "ce": "cross-entropy, the first part of Eq. 4",
        "align": "λ·E_c φ(P_i^c, P̄^c), the second part of Eq. 4",
    }
    uploads = {
        **MEANS,
        "counts": "|D_i,c|, the class distribution (not with aggregate=uniform)",
    }
    downloads = {"prototypes": "P̄^c of the classes that anybody has sent"}

    resolve = staticmethod(default_weight)  # λ
    download_payload = staticmethod(global_prototypes)  # P̄
    before_training = staticmethod(guides)  # P̄ as a table C×K, and the classes that have one
    local_loss = staticmethod(guided_loss)  # Eq. 4: E ℓ + λ·E_c φ(P_i^c, P̄^c)
    after_batch = staticmethod(collect_online)  # P_i^c (Eq. 2), if they are taken during training
    after_batch_if = WHEN_ONLINE
    upload_payload = staticmethod(sent_prototypes)  # P_i^c (Eq. 2), with counts if Eq. 3 weights

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """P̄ (Eq. 3)."""
        P, known = mean_prototypes(server, uploads, server.config.aggregate)
        P, known = with_absent(server, P, known, server.config.absent)
        return pf.class_rows(known, prototypes=P)

    inference = staticmethod(nearest_prototype)  # the nearest P̄^c; the head, before there are any
