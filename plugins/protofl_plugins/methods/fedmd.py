"""FedMD: clients digest the mean of all clients' scores of public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop,
Algorithm 1.

    communicate   z_i(x), client i's logits of the public samples
    aggregate     z̃(x) = 1/M · Σ_i z_i(x)
    digest        min over w_i of  mean |z_i(x) − z̃(x)| over public samples and classes
    revisit       min over w_i of  E_{(x, y) ~ D_i} ℓ(z_i(x), y)

A round here is digest, revisit, communicate, aggregate; in the first round there is nothing to
digest. The distance of digest is that of the authors' code. Their start on labelled public data is
left out, as public samples have no labels here. Inference is by the head.
"""

from __future__ import annotations

from torch.nn.functional import l1_loss

import protofl as pf
from protofl_plugins.shared import public_data


class FedMD:
    """Clients digest the mean of all clients' scores of public samples (Li and Wang, 2019)."""

    class Config(public_data.PublicPhaseConfig):
        """Options; shared: epochs, public_epochs."""

        paper_epochs = {"local_epochs": 10, "public_epochs": 20}

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    needs_public = True
    terms = {
        "digest": "mean absolute difference to the consensus logits on public samples",
        "ce": "cross-entropy on private samples",
    }
    uploads = {"public_logits": "logits of all public samples: what the model takes them for"}
    downloads = {"public_logits": "the mean of the clients' logits"}

    run_defaults = staticmethod(public_data.paper_defaults)
    requires = staticmethod(public_data.without_public)

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Digest, then revisit."""
        terms = ("digest",)
        digest = public_data.public_phase("digest", config, when="before_upload", terms=terms)
        return [digest, pf.Phase(terms=("ce",))]

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send the consensus z̃; nothing before there are any."""
        return server.global_state.select("public_logits", "public_index")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Give the loss the consensus z̃, once there are any."""
        return public_data.received_scores(client, "public_logits")

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Digest, or revisit."""
        if batch.phase == "digest":
            consensus = constants["scores"][batch.index]
            return {"digest": l1_loss(output.logits, consensus)}
        return {"ce": client.task.loss(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Communicate z_i."""
        return pf.Payload(public_logits=public_data.public_logits(client))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Aggregate: z̃ = 1/M · Σ_i z_i."""
        return pf.Payload(public_logits=public_data.stacked(uploads, "public_logits").mean(0))
