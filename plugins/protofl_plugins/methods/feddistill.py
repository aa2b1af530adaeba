"""FedDistill (FD): clients distil the mean logits that other clients have for each class.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", 2018 (arXiv:1811.11479), Algorithm 1; γ = 1 as in FedTGP
(Zhang et al., AAAI 2024, appendix A).

    F_i^c   client i's mean logit vector of class c, over its training steps   (Alg. 1, line 8)
    F̂_i^c  Σ_{j ≠ i} F_j^c / (M_c − 1): the mean over the others that have c   (Alg. 1, line 14)
    L_i     ℓ(s(h_i(f_i(x))), y) + γ·ℓ(s(h_i(f_i(x))), s(F̂_i^y))               (Alg. 1, line 6)

    s   softmax        ℓ   cross-entropy        M_c   clients that have sent a row of class c

Logits are collected in train mode before each step. A class that no other client has sent adds
nothing. Inference is by the client's own head.

Deviation: the code that produced published figures leaves the own part in (``exclude_own``). A
version of it passes averaged logits where the loss expects probabilities and ends in NaN; the
softmax s belongs there, in both variants.
"""

from __future__ import annotations

import protofl as pf
import torch
from torch.nn.functional import cross_entropy

from protofl_plugins.variants import DropsLastBatch


class FedDistill(DropsLastBatch):
    """Clients distil the mean logits that others have for each class (Jeong et al., 2018)."""

    class Config(pf.VariantConfig):
        """Options, with the paper's symbols."""

        deviations = {
            "exclude_own": pf.Deviation(
                "Alg. 1, line 14", True, False, "the code averages over all, the client included"
            ),
        }
        gamma: float = pf.Field(
            1.0, ge=0, description="γ of the distillation; 0 regresses to local training"
        )
        exclude_own: bool = pf.Field(
            None, description="leave the client's own logits out of the mean that it downloads"
        )

    terms = {
        "ce": "ℓ(s(h(f(x))), y), cross-entropy",
        "distill": "γ·ℓ(s(h(f(x))), s(F̂^y)), cross-entropy with the others' mean logits",
    }
    uploads = {
        "class_logits": "F_i^c of the client's classes: mean scores, which reveal what its model "
        "confuses, and no sample",
        "classes": "which classes the client has",
    }
    downloads = {
        "class_logits": "F̂_i^c of the classes that others have sent; a class sent by one other "
        "client alone reveals that client's F^c",
        "classes": "which classes others have",
    }

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """F̂_i: the mean, without what this client has put into it."""
        own = server.state.get("own", {}).get(client_id)
        if own is None or not server.config.exclude_own:
            return server.knowledge.select("class_logits")
        rows, known = pf.Payload(own).table("class_logits", server.num_classes)
        others = server.state["number"] - known.long()
        mean = (server.state["sum"] - rows) / others.clamp(min=1).unsqueeze(1)
        return pf.class_rows(others > 0, class_logits=mean)

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.Given:
        """s(F̂_i) as a table C×C with the mask of known classes."""
        if "class_logits" not in client.received:
            return {}
        table, known = client.received.table("class_logits", client.num_classes)
        return {"targets": table.softmax(1), "known": known}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, given: pf.Given
    ) -> pf.Terms:
        """Algorithm 1, line 6."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if given:
            targets, known = given["targets"][batch.y], given["known"][batch.y]
            rows = cross_entropy(output.logits, targets, reduction="none")
            terms["distill"] = client.config.gamma * (rows * known).mean()
        return terms

    @pf.hookimpl
    def after_batch(self, client: pf.Client[Config], batch: pf.Batch, output: pf.Output) -> None:
        """Add the batch to the sums of F_i (Algorithm 1, line 8)."""
        if not len(batch.y):
            return  # another method's phase on public samples
        if "sums" not in client.scratch:
            C = client.num_classes
            client.scratch["sums"] = output.logits.new_zeros(C, C), output.logits.new_zeros(C)
        sums, counts = client.scratch["sums"]
        sums.index_add_(0, batch.y, output.logits)
        counts.index_add_(0, batch.y, torch.ones_like(output.logits[:, 0]))

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """F_i of the classes that training has met."""
        sums, counts = client.scratch["sums"]
        return pf.class_rows(counts > 0, class_logits=sums / counts.clamp(min=1).unsqueeze(1))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The mean over clients, and each one's part, to leave it out of what it downloads."""
        rows, known = pf.stack_rows(uploads, "class_logits", server.num_classes)
        total, number = rows.sum(0), known.sum(0)
        server.state["sum"], server.state["number"] = total, number
        server.state["own"] = {i: dict(u.select("class_logits")) for i, u in uploads.items()}
        return pf.class_rows(number > 0, class_logits=total / number.clamp(min=1).unsqueeze(1))
