"""FedTGP's trainable prototypes: one mini-batch step of Eq. 10, its gradient by hand.

A server's epoch is thousands of steps on a handful of vectors, in which autograd and the update
of weights cost several times the arithmetic. Here a step is some twenty operations, and each
weight matrix is updated by the product that its gradient is, without storing it.

With P = F(E), d_nc = ‖q_n − P_c‖ and L the mean over N rows of
−log softmax_c(−(d_nc + [c = y_n]·δ)) at c = y_n, the probabilities p give

    ∂L/∂d_nc = ([c = y_n] − p_nc)/N          ∂d_nc/∂P_c = (P_c − q_n)/d_nc

and for F = FC–ReLU–FC the usual rules of the chain follow.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


class Embeddings:
    """Vectors e^c and their processor F, trained on mini-batches of client prototypes.

    Args:
        vectors: E [C, K], updated in place.
        processor: F, FC–ReLU–FC, updated in place; None for none.
        lr: Learning rate η.
    """

    def __init__(self, vectors: Tensor, processor: nn.Sequential | None, lr: float) -> None:
        self._vectors, self._lr = vectors, lr
        self._layers: list[nn.Linear] = []
        if processor is not None:
            self._layers = [cast(nn.Linear, processor[0]), cast(nn.Linear, processor[2])]
        # Distances by a product need float64 (see `protofl.functional`), which MPS lacks.
        self._wide = torch.float32 if vectors.device.type == "mps" else torch.float64

    @torch.no_grad()
    def train(
        self, anchored: Tensor, labels: Tensor, margin: Tensor | float, orders: list[Tensor]
    ) -> None:
        """SGD on mini-batches of client prototypes.

        Args:
            anchored: P_i^c of all clients, [N, K].
            labels: Their classes, [N].
            margin: δ.
            orders: The rows of each mini-batch, one after the other.
        """
        if not orders:
            return
        wide = anchored.to(self._wide)
        norms = wide.square().sum(1, keepdim=True)
        hot = torch.nn.functional.one_hot(labels, len(self._vectors)).to(self._wide)
        shift = hot * margin
        index = torch.cat(orders)
        # Gathered once: a step then takes slices.
        sizes = [len(rows) for rows in orders]
        parts = [torch.split(t[index], sizes) for t in (wide, norms, hot, shift)]
        for Q, squares, target, delta in zip(*parts, strict=True):
            self._step(Q, squares, target, delta)

    def _step(self, Q: Tensor, squares: Tensor, target: Tensor, delta: Tensor) -> None:
        """One mini-batch: Q [B, K] with ‖q‖² [B, 1], its classes as 0 and 1 and δ there [B, C]."""
        E, lr = self._vectors, self._lr
        if self._layers:
            first, last = self._layers
            H = torch.addmm(first.bias, E, first.weight.T).relu_()
            P = torch.addmm(last.bias, H, last.weight.T)
        else:
            P = E
        wide = P.to(self._wide)
        sums = squares + wide.square().sum(1)
        squared = torch.addmm(sums, Q, wide.T, alpha=-2.0)
        # Where a prototype and a row coincide the distance and its gradient are 0.
        coincide = squared <= 32 * torch.finfo(self._wide).eps * sums
        distance = squared.masked_fill_(coincide, torch.inf).sqrt_()
        scores = distance.masked_fill(coincide, 0.0).add_(delta).neg_()
        A = (target - scores.softmax(1)).div_(len(Q)).div_(distance)
        dP = (wide * A.sum(0).unsqueeze(1)).addmm_(A.T, Q, alpha=-1.0).to(P.dtype)
        if not self._layers:
            E.add_(dP, alpha=-lr)
            return
        dH = (dP @ last.weight).mul_(H > 0)
        dE = dH @ first.weight
        for layer, gradient, given in ((last, dP, H), (first, dH, E)):
            layer.weight.addmm_(gradient.T, given, alpha=-lr)
            layer.bias.add_(gradient.sum(0), alpha=-lr)
        E.add_(dE, alpha=-lr)
