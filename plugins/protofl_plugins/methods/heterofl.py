"""HeteroFL: clients train the first channels of one net.

Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients", ICLR 2021 (arXiv 2010.01264).

    W_i    the first ⌈r_i·n⌉ of the n channels of each layer of W, for a client of width r_i
    W      each number: its mean over the clients that have it; without any it stays

A client's loss knows only its own classes, and only its classes' rows of the head enter the mean
(masked cross-entropy). The model group divides the outputs of a client's layers by r_i, in training
and evaluation (Scaler; the code in training only, as it evaluates the whole net). Inference: the
client's part, with scores of classes that the client does not have set to 0, as the code's
Local-Accuracy. The server's net is scored without a mask (Global-Accuracy).
"""

from __future__ import annotations

from types import MappingProxyType

from protofl_plugins.submodels import SharedSubmodel, SubmodelConfig


class HeteroFL(SharedSubmodel):
    """Clients train the first channels of one net (Diao et al., 2021)."""

    Config = SubmodelConfig
    sgd = MappingProxyType({"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4})
    ablations = {
        "scored without the mask": "--set mask=loss",
        "without masked cross-entropy": "--set mask=none",
    }
