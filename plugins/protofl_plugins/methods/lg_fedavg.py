"""LG-FedAvg: clients share the head and keep their feature extractors.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020; as in FedTGP, section "Baseline methods": the last layer h is shared.

    local     min over f_i, h_i of  E_{(x, y) ~ D_i} ℓ(h_i(f_i(x)), y), h_i starting from h
    server    h ← Σ_i (n_i / n) · h_i

The server builds h and sends it from the first round: the algorithm begins with one global part,
and so does published code, which takes the first client's head. Clients train with cross-entropy
and infer by the head.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.shared import weights


class LGFedAvg:
    """Clients share the head and keep their own feature extractors (Liang et al., 2020)."""

    class Config(weights.SharingConfig, pf.VariantConfig):
        """Options; shared: aggregate."""

        official = {"drop_last": True, "same_init": True}

    tasks = pf.datasets.Task.OF_HEADS
    asynchronous = "versions"
    uploads = {
        "head/*": "the classifier after local training; its bias hints at the class shares",
        "samples": "n_i, the number of training samples",
    }
    downloads = {
        "head/*": "h, one head for all; the average of the clients' heads from the second round on"
    }

    requires = weights.HEAD.requires
    setup_server = weights.HEAD.setup_server  # h
    download_payload = weights.HEAD.download_payload  # h
    receive = weights.HEAD.receive  # h_i ← h
    upload_payload = weights.HEAD.upload_payload  # h_i and n_i
    server_aggregate = weights.HEAD.server_aggregate  # h ← Σ_i (n_i / n) · h_i
