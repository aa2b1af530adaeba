"""Clients that train a part of the channels of one net: the first ones, or a rolling window."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import protofl as pf
from protofl_plugins.shared import submodels, weights


class HeteroFL:
    """Clients train the first channels of one net (Diao et al., 2021).

    Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for
    Heterogeneous Clients", ICLR 2021 (arXiv 2010.01264).

        W_i    the first ⌈r_i·n⌉ of the n channels of each layer of W, for a client of width r_i
        W      each number: its mean over the clients that have it; without any it stays

    A client's loss knows only its own classes, and only its classes' rows of the head enter the
    mean (masked cross-entropy). The model group divides the outputs of a client's layers by r_i, in
    training and evaluation (Scaler; the code in training only, as it evaluates the whole net).
    Inference: the client's part, with scores of classes that the client does not have set to 0, as
    the code's Local-Accuracy. The server's net is scored without a mask (Global-Accuracy).
    """

    class Config(submodels.SubmodelConfig):
        """Options; shared: aggregate, buffers, recipe, mask."""

    sgd = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}  # of the published code
    tasks = pf.datasets.Task.OF_HEADS
    asynchronous: bool | str = "versions"
    terms = {"ce": "cross-entropy"}
    uploads = {
        "model/*": "the client's part of the net after training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
        "classes": "the client's classes, whose rows of the head it has trained",
    }
    downloads = {"model/*": "the part of the server's net that the client's net has"}
    ablations = {
        "scored without the mask": "--set mask=loss",
        "without masked cross-entropy": "--set mask=none",
    }

    @pf.hookimpl
    def run_defaults(self, config: Config) -> dict[str, Any]:
        """Train with the published code's optimiser, unless another is asked for."""
        return submodels.optimiser(config, self.sgd)

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require one net, in one or several widths."""
        return submodels.unequal_nets(run)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build W, the widest client's net."""
        return submodels.widest_net(server)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send W_i."""
        return submodels.part_of(server, client_id, self.shift(server))

    receive = weights.MODEL.receive  # W_i

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Give the loss the mask of the classes that the client does not have."""
        return {"absent": submodels.absent_classes(client)}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Masked cross-entropy, over the client's classes."""
        scores = output.logits
        if client.config.mask != "none":
            scores = scores.masked_fill(constants["absent"], 0.0)
        return {"ce": client.task.loss(scores, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send W_i, n_i and the client's classes."""
        return submodels.trained_part(client)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average each number of W over the clients that have it."""
        return submodels.mean_over_holders(server, uploads, self.shift(server))

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return the scores of W_i; 0 for classes that the client does not have.

        Global accuracy has samples of all classes, so its scores have no mask.
        """
        scores = client.head(client.features(x))
        if client.config.mask != "both" or client.scores_all_classes:
            return scores
        return scores.masked_fill(submodels.absent_classes(client), 0.0)

    @pf.hookimpl
    def global_models(self, server: pf.Server[Config]) -> dict[str, nn.Module]:
        """Evaluate W on the global test samples, without a mask."""
        return weights.shared_model(server, server.build(server.state["whole"]))

    def shift(self, server: pf.Server[Config]) -> int:
        """Return the channel at which the parts of this round begin: the first."""
        return 0


class FedRolex(HeteroFL):
    """Clients train a window of one net's channels that rolls each round (Alam et al., 2022).

    Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
    Extraction", NeurIPS 2022 (arXiv 2212.01548).

        W_i^t    ⌈r_i·n⌉ of the n channels of each layer, from channel (−t) mod n on, round the end
        W        each number: its mean over the clients that have it; without any it stays

    As HeteroFL otherwise, mask and evaluation included. Inference: the client's part of this round.

    The window is that of the published code; the paper's text was not at hand to check its
    direction.
    """

    sgd = {"momentum": 0.9, "weight_decay": 1e-3}
    asynchronous = (
        "the part of the net that a client has moves in each step, so a stale upload is "
        "of another part"
    )

    def shift(self, server: pf.Server[HeteroFL.Config]) -> int:
        """Return t, the channels by which the window has rolled."""
        return max(server.round, 0)
