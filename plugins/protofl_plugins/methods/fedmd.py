"""FedMD: clients digest the mean of all clients' scores of public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop,
Algorithm 1.

    communicate   z_i(x), client i's logits of the public samples
    aggregate     z̃(x) = 1/M · Σ_i z_i(x)
    digest        min over w_i of  mean |z_i(x) − z̃(x)| over public samples and classes
    revisit       min over w_i of  E_{(x, y) ~ D_i} ℓ(z_i(x), y)

A round here is digest, revisit, communicate, aggregate; in round 0 there is nothing to digest. The
distance of digest is that of the authors' code. Their start on labelled public data is left out, as
public samples have no labels here. Inference is by the head.
"""

from __future__ import annotations

from torch.nn.functional import cross_entropy, l1_loss

import protofl as pf
from protofl_plugins import public_distillation as D


class FedMD(D.ScoresDown):
    """Clients digest the mean of all clients' scores of public samples (Li and Wang, 2019)."""

    class Config(D.PublicPhaseConfig):
        """Options."""

        paper_epochs = {"local_epochs": 10, "public_epochs": 20}

    native_widths = True
    terms = {
        "digest": "mean absolute difference to the consensus logits on public samples",
        "ce": "cross-entropy on private samples",
    }
    uploads = {"public_logits": "logits of all public samples: what the model takes them for"}
    downloads = {"public_logits": "the mean of the clients' logits"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Public samples."""
        return D.without_public(run)

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Digest, then revisit."""
        digest = D.public_phase("digest", config, when="before_upload", terms=("digest",))
        return [digest, pf.Phase(terms=("ce",))]

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output, given: pf.Given) -> pf.Terms:
        """Digest, or revisit."""
        if batch.phase == "digest":
            consensus = given["scores"][batch.index]
            return {"digest": l1_loss(output.logits, consensus)}
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """z_i."""
        return pf.Payload(public_logits=D.public_logits(client))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """z̃."""
        return pf.Payload(public_logits=D.stacked(uploads, "public_logits").mean(0))
