"""FedDistill (FD): clients distil the mean outputs that other clients have for each class.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", 2018 (arXiv:1811.11479), Algorithm 1; γ = 1 as in FedTGP
(Zhang et al., AAAI 2024, appendix A).

    F_i^c   client i's mean of s(h_i(f_i(x))) over its samples of class c      (Alg. 1, lines 6, 8)
    F̂_i^c  Σ_{j ≠ i} F_j^c / (M_c − 1): the mean over the others that have c   (Alg. 1, line 15)
    L_i     ℓ(s(h_i(f_i(x))), y) + γ·ℓ(s(h_i(f_i(x))), F̂_i^y)                  (Alg. 1, line 5)

    s   softmax        ℓ   cross-entropy        M_c   clients that have sent a row of class c

Outputs are collected in train mode before each step. A class that no other client has sent adds
nothing; one that no client sent in a round keeps its last mean (``absent``). Inference is by the
client's own head.

The code that produced the figures of FedTGP and FedKTL averages the scores before the softmax
(``average``), takes their mean squared difference as ℓ of the second term (``loss``), and leaves
the own part in (``exclude_own``). Since April 2024 it has the cross-entropy with s(F̂_i^y).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf


class FedDistill:
    """Clients distil the mean outputs that others have for each class (Jeong et al., 2018)."""

    class Config(pf.VariantConfig):
        """Options, with the paper's symbols."""

        official = {"drop_last": True, "same_init": True}
        deviations = {
            "exclude_own": pf.Deviation(
                "Alg. 1, line 15", True, False, "the code averages over all, the client included"
            ),
            "average": pf.Deviation(
                "Alg. 1, line 6", "softmax", "logits", "F is normalised; the code averages scores"
            ),
            "loss": pf.Deviation(
                "Alg. 1, line 5", "ce", "mse", "the code takes the mean squared difference"
            ),
            "absent": pf.Deviation(
                "Alg. 1, line 12",
                "keep",
                "forget",
                "the code knows only the classes of this round's clients",
            ),
        }
        gamma: float = pf.Field(
            1.0, ge=0, description="γ of the distillation; 0 regresses to local training"
        )
        exclude_own: bool = pf.Field(
            None, description="leave the client's own part out of the mean that it downloads"
        )
        average: Literal["softmax", "logits"] = pf.Field(
            None, description="average the softmax of the scores, or the scores themselves"
        )
        loss: Literal["ce", "mse"] = pf.Field(
            None, description="ℓ of the distillation: cross-entropy, or mean squared difference"
        )
        absent: Literal["keep", "forget"] = pf.Field(
            None, description="F^c of a class that no client of the round has: the last, or none"
        )

    native_widths = True
    asynchronous = "a client downloads the mean of the others' outputs in the last step"
    terms = {
        "ce": "ℓ(s(h(f(x))), y), cross-entropy",
        "distill": "γ·ℓ(s(h(f(x))), F̂^y), difference from the others' mean output",
    }
    uploads = {
        "class_logits": pf.Key(
            "[n, C]",
            "F_i^c of the client's classes: mean outputs, which reveal what its model confuses, "
            "and no sample",
            by_class=True,
        ),
        "classes": "which classes the client has",
    }
    downloads = {
        "class_logits": pf.Key(
            "[n, C]",
            "F̂_i^c of the classes that others have sent; a class sent by one other client alone "
            "reveals that client's F^c",
            by_class=True,
        ),
        "classes": "which classes others have",
    }

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """F̂_i: the mean, without what this client has put into it."""
        client_rows = server.state.get("own", {}).get(client_id)
        if client_rows is None or not server.config.exclude_own:
            return server.global_state.select("class_logits")
        rows, known = pf.Payload(client_rows).table("class_logits", server.num_classes)
        others = server.state["number"] - known.long()
        mean = (server.state["sum"] - rows) / others.clamp(min=1).unsqueeze(1)
        return pf.class_rows(others > 0, class_logits=mean)

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """F̂_i as a table C×C, of probabilities for the cross-entropy, and the known classes."""
        if "class_logits" not in client.received:
            return {}
        table, known = client.received.table("class_logits", client.num_classes)
        scores = client.config.average == "logits" and client.config.loss == "ce"
        targets = table.softmax(1) if scores else table
        return {"targets": targets, "known": known}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Algorithm 1, line 5."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if constants:
            targets, known = constants["targets"][batch.y], constants["known"][batch.y]
            if client.config.loss == "ce":
                rows = cross_entropy(output.logits, targets, reduction="none")
            else:
                soft = client.config.average == "softmax"
                F = output.logits.softmax(1) if soft else output.logits
                rows = (F - targets).square().mean(1)
            terms["distill"] = client.config.gamma * (rows * known).mean()
        return terms

    @pf.hookimpl
    def after_batch(self, client: pf.Client[Config], batch: pf.Batch, output: pf.Output) -> None:
        """Add the batch to the sums of F_i (Algorithm 1, line 6)."""
        if not len(batch.y):
            return  # another method's phase on public samples
        soft = client.config.average == "softmax"
        F = output.logits.softmax(1) if soft else output.logits
        if "sums" not in client.scratch:
            C = client.num_classes
            client.scratch["sums"] = F.new_zeros(C, C), F.new_zeros(C)
        sums, counts = client.scratch["sums"]
        sums.index_add_(0, batch.y, F)
        counts.index_add_(0, batch.y, torch.ones_like(F[:, 0]))

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """F_i of the classes that training has met (Algorithm 1, line 8)."""
        if "sums" not in client.scratch:  # another method's phases left the training out
            nothing = torch.zeros(client.num_classes, client.num_classes, device=client.device)
            client.scratch["sums"] = nothing, nothing[0]
        sums, counts = client.scratch["sums"]
        return pf.class_rows(counts > 0, class_logits=sums / counts.clamp(min=1).unsqueeze(1))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The mean over clients, and each one's part, to leave it out of what it downloads."""
        rows, known = pf.stack_rows(uploads, "class_logits", server.num_classes)
        total, number = rows.sum(0), known.sum(0)
        client_rows = {i: dict(u.select("class_logits")) for i, u in uploads.items()}
        state = server.state
        if server.config.absent == "keep" and "sum" in state:
            fresh = number > 0
            client_rows = _kept(client_rows, state["own"], fresh)
            total = torch.where(fresh.unsqueeze(1), total, state["sum"])
            number = torch.where(fresh, number, state["number"])
        state["sum"], state["number"], state["own"] = total, number, client_rows
        return pf.class_rows(number > 0, class_logits=total / number.clamp(min=1).unsqueeze(1))


def _kept(
    current: dict[int, dict[str, Tensor]], before: dict[int, dict[str, Tensor]], fresh: Tensor
) -> dict[int, dict[str, Tensor]]:
    """Each client's part in every class's mean: of this round, and of before where none is fresh.

    Args:
        current: {client: its rows of this round}.
        before: {client: its rows in the means so far}.
        fresh: The classes that were sent this round, [C].
    """
    C, parts = len(fresh), dict(current)
    for client, rows in before.items():
        table, known = pf.Payload(rows).table("class_logits", C)
        known = known & ~fresh
        if client in current:
            now, sent = pf.Payload(current[client]).table("class_logits", C)
            table, known = torch.where(sent.unsqueeze(1), now, table), sent | known
        if known.any():
            parts[client] = dict(pf.class_rows(known, class_logits=table))
    return parts
