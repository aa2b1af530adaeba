"""FedTGP's trainable prototypes: Eq. 10 minimised, plainly and fast."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from protofl.functional._checks import (
    check_classes,
    check_labels,
    check_shape,
)
from protofl.functional.margins import margin_contrastive_loss


def train_prototypes(
    vectors: Tensor,
    processor: nn.Module | None,
    anchored: Tensor,
    labels: Tensor,
    margin: Tensor | float,
    batches: Sequence[Tensor],
    lr: float,
) -> None:
    """Train vectors e^c and their processor F by SGD on FedTGP Eq. 10, in place.

    P̂ = F(e), and the loss of a mini-batch of client prototypes is its mean
    `margin_contrastive_loss`. An F of FC–ReLU–FC, the paper's, or none is trained with the gradient
    written out: a server's epochs are thousands of steps on a handful of vectors, in which
    autograd and the update of weights cost several times the arithmetic. Any other F is trained
    by `train_prototypes_by_autograd`, which does the same.

    Args:
        vectors: e [C, K].
        processor: F, from [C, K] to [C, K]; None where P̂ = e.
        anchored: P_i^c of all clients, [N, K].
        labels: Their classes, [N] integers in 0…C−1.
        margin: δ, a number or a 0-d tensor.
        batches: The rows of each mini-batch, one batch after the other.
        lr: Learning rate η.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    _check(vectors, anchored, labels, margin)
    layers = _two_layers(processor)
    if layers is None:
        train_prototypes_by_autograd(vectors, processor, anchored, labels, margin, batches, lr)
    elif batches:
        _ByHand(vectors, layers, lr).train(anchored, labels, margin, batches)


@torch.enable_grad()
def train_prototypes_by_autograd(
    vectors: Tensor,
    processor: nn.Module | None,
    anchored: Tensor,
    labels: Tensor,
    margin: Tensor | float,
    batches: Sequence[Tensor],
    lr: float,
) -> None:
    """Compute `train_prototypes` with gradients by autograd.

    Args:
        vectors: e [C, K].
        processor: F, any module from [C, K] to [C, K]; None where P̂ = e.
        anchored: P_i^c of all clients, [N, K].
        labels: Their classes, [N] integers in 0…C−1.
        margin: δ, a number or a 0-d tensor.
        batches: The rows of each mini-batch, one batch after the other.
        lr: Learning rate η.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    _check(vectors, anchored, labels, margin)
    e = vectors.detach().requires_grad_()  # the same memory
    weights = [e, *(processor.parameters() if processor is not None else ())]
    for rows in batches:
        P = e if processor is None else processor(e)
        loss = margin_contrastive_loss(anchored[rows], labels[rows], P, margin)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=lr)


def _check(vectors: Tensor, anchored: Tensor, labels: Tensor, margin: Tensor | float) -> None:
    check_shape("vectors", vectors, "C K")
    check_classes(anchored, vectors, "anchored")
    check_labels("labels", labels, anchored.shape[0])
    if isinstance(margin, Tensor) and margin.ndim != 0:
        raise ValueError(f"margin must be a number or a 0-d tensor: got shape {[*margin.shape]}")


def _two_layers(processor: nn.Module | None) -> list[nn.Linear] | None:
    """The linear layers of FC–ReLU–FC, none of no processor; None of another one."""
    if processor is None:
        return []
    kinds = [type(layer) for layer in processor.children()]
    if type(processor) is not nn.Sequential or kinds != [nn.Linear, nn.ReLU, nn.Linear]:
        return None
    layers = [layer for layer in processor if isinstance(layer, nn.Linear)]
    return layers if all(layer.bias is not None for layer in layers) else None


class _ByHand:
    """SGD on Eq. 10 with its gradient written out; E is `vectors`.

    With P = F(E), d_nc = ‖q_n − P_c‖ and L the mean over N rows of
    −log softmax_c(−(d_nc + [c = y_n]·δ)) at c = y_n, the probabilities p give

        ∂L/∂d_nc = ([c = y_n] − p_nc)/N          ∂d_nc/∂P_c = (P_c − q_n)/d_nc

    and for F = FC–ReLU–FC the usual rules of the chain follow. A step is some twenty operations,
    and each weight matrix is updated by the product that its gradient is, without storing it.
    """

    def __init__(self, vectors: Tensor, layers: list[nn.Linear], lr: float) -> None:
        self._vectors, self._layers, self._lr = vectors, layers, lr
        # Distances by a product need float64 (see `protofl.functional`), which MPS lacks.
        self._wide = torch.float32 if vectors.device.type == "mps" else torch.float64

    @torch.no_grad()
    def train(
        self, anchored: Tensor, labels: Tensor, margin: Tensor | float, batches: Sequence[Tensor]
    ) -> None:
        """All steps, in order."""
        wide = anchored.to(self._wide)
        norms = wide.square().sum(1, keepdim=True)
        hot = nn.functional.one_hot(labels.long(), len(self._vectors)).to(self._wide)
        shift = hot * margin
        index = torch.cat(list(batches))
        # Gathered once: a step then takes slices.
        sizes = [len(rows) for rows in batches]
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
