"""HeteroFL: clients train the first channels of one net.

Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients", ICLR 2021 (arXiv 2010.01264).

    W_i    the first ⌈r_i·n⌉ of the n channels of each layer of W, for a client of width r_i
    W      each number: its mean over the clients that have it; without any it stays

A client's loss knows only its own classes, and only its classes' rows of the head enter the mean
(masked cross-entropy). The model group divides the outputs of a client's layers by r_i, in training
and evaluation (Scaler; the code in training only, as it evaluates the whole net). Inference: the
client's part.
"""

from __future__ import annotations

from protofl_plugins.submodels import SharedSubmodel, SubmodelConfig


class HeteroFL(SharedSubmodel):
    """Clients train the first channels of one net (Diao et al., 2021)."""

    Config = SubmodelConfig
    ablations = {
        "scored without the mask": "--set mask=loss",
        "without masked cross-entropy": "--set mask=none",
    }
