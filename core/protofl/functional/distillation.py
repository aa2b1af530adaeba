"""Knowledge on public samples: ensembles of logits, the filter, distillation."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from protofl.functional._checks import (
    check_classes,
    check_floating,
    check_labels,
    check_mask,
    check_shape,
    result_dtype,
)


def variance_weights(logits: Tensor) -> Tensor:
    """β: each client's share in the variance of a sample's logits over classes, FedPKD Eq. 7.

    Args:
        logits: [M, N, C], of M clients on N samples.

    Returns:
        [M, N], summing to 1 over the clients; uniform on a sample where all variances are 0.

    Raises:
        ValueError: A shape or dtype is wrong, or M or C is 0.
    """
    check_shape("logits", logits, "M N C")
    check_floating(logits=logits)
    if logits.shape[0] == 0 or logits.shape[2] == 0:
        raise ValueError(f"logits needs a client and a class: got shape {list(logits.shape)}")
    logits = logits.to(result_dtype(logits))
    # The shift leaves the variance as it is, and makes that of equal logits exactly 0.
    shifted = logits - logits[..., :1]
    variances = (shifted - shifted.mean(2, keepdim=True)).square().mean(2)
    total = variances.sum(0)
    flat = total == 0
    return (variances / total.masked_fill(flat, 1.0)).masked_fill(flat, 1.0 / logits.shape[0])


def ensemble_logits(logits: Tensor, weights: Literal["variance", "uniform"] = "variance") -> Tensor:
    """S(x) = Σ_c β_c(x)·M_c(x), the logits of all clients as one: FedPKD Eq. 6.

    Args:
        logits: [M, N, C], of M clients on N samples.
        weights: β, ``variance`` for `variance_weights`, ``uniform`` for 1/M (FedPKD Eq. 3).

    Returns:
        [N, C].

    Raises:
        ValueError: A shape or dtype is wrong, M or C is 0, or ``weights`` is neither of the two.
    """
    if weights not in ("variance", "uniform"):
        raise ValueError(f"weights must be 'variance' or 'uniform': got {weights!r}")
    beta = variance_weights(logits)
    if weights == "uniform":
        beta = torch.full_like(beta, 1.0 / len(logits))
    return (beta.unsqueeze(2) * logits).sum(0)


def filter_by_prototype(
    features: Tensor, pseudo_labels: Tensor, prototypes: Tensor, known: Tensor, keep: float
) -> Tensor:
    """Keep, of every pseudo-class, the samples nearest to its prototype: FedPKD Alg. 1, Eq. 10.

    ⌈keep·n⌉ of a class's n samples are kept; of equally near ones those with the lower index. All
    are kept where the class has no prototype to measure by.

    Args:
        features: [N, K], of the server's model.
        pseudo_labels: [N] integers in 0…C−1.
        prototypes: [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool.
        keep: The fraction θ to keep, above 0 and at most 1.

    Returns:
        [N] bool, in the samples' order.

    Raises:
        ValueError: A shape or dtype is wrong, or ``keep`` is out of range.
    """
    check_classes(features, prototypes)
    check_labels("pseudo_labels", pseudo_labels, features.shape[0])
    check_mask("known", known, prototypes.shape[0])
    if not 0.0 < keep <= 1.0:
        raise ValueError(f"keep must be above 0 and at most 1: got {keep}")
    labels = pseudo_labels.long()
    dtype = result_dtype(features, prototypes)
    # The square orders the samples as the distance does.
    distances = (features.to(dtype) - prototypes.to(dtype)[labels]).square().sum(1)

    # Two stable sorts line the samples up by class, then distance, then index.
    order = distances.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]
    sizes = labels.new_zeros(known.shape[0]).index_add(0, labels, torch.ones_like(labels))
    starts = sizes.cumsum(0) - sizes
    ranks = torch.arange(labels.shape[0], device=labels.device) - starts[labels[order]]

    # 0.07 · 100 is 7.000000000000001 in floating point; its ceiling has to be 7.
    numbers = [max(1, math.ceil(keep * n - 1e-9)) for n in sizes.tolist()]
    quotas = torch.where(known, labels.new_tensor(numbers), sizes)
    mask = torch.empty_like(labels, dtype=torch.bool)
    mask[order] = ranks < quotas[labels[order]]
    return mask


def kl_divergence(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    *,
    mean: Literal["batch", "elements"] = "batch",
    detach: bool = True,
) -> Tensor:
    """T²·KL(softmax(teacher/T) ‖ softmax(student/T)), the mean over the batch.

    FedPKD Eq. 11 and 15 (T = 1), FedDF, FML, FedKD. T² keeps the size of the gradient, as Hinton,
    Vinyals and Dean (2015) have it.

    Args:
        student_logits: [N, C].
        teacher_logits: [N, C]; −∞ gives a class no probability (where detached).
        temperature: T, without unit.
        mean: Over the N samples of the batch, or over all N·C ``elements``, as published code of
            FML and FedKD has it: the divergence divided by C.
        detach: Let no gradient reach the teacher.

    Returns:
        Scalar, in nats; 0 where N = 0.

    Raises:
        ValueError: A shape or dtype is wrong, or ``temperature`` is not positive.
    """
    check_shape("student_logits", student_logits, "N C")
    rows, classes = student_logits.shape
    check_shape("teacher_logits", teacher_logits, "N C", N=rows, C=classes)
    check_floating(student_logits=student_logits, teacher_logits=teacher_logits)
    if not temperature > 0:
        raise ValueError(f"temperature must be positive: got {temperature}")
    dtype = result_dtype(student_logits, teacher_logits)
    target = teacher_logits.detach() if detach else teacher_logits
    q, p = student_logits.to(dtype), target.to(dtype)
    if temperature != 1:
        q, p = q / temperature, p / temperature
    student, teacher = F.log_softmax(q, dim=1), F.softmax(p, dim=1)
    # Σ p·log p − p·log q by hand: F.kl_div has no rule for vmap. xlogy makes 0·log 0 a 0, but has
    # no gradient there.
    own = torch.xlogy(teacher, teacher) if detach else teacher * F.log_softmax(p, dim=1)
    divergence = own - teacher * student
    terms = rows * classes if mean == "elements" else rows
    return divergence.sum() * (temperature**2 / max(terms, 1))


def entropy_reduction(probabilities: Tensor, temperature: float = 0.1) -> Tensor:
    """softmax(mean over clients / T), DS-FL's entropy reduction aggregation (Itahara et al.).

    Args:
        probabilities: [M, N, C], of M clients on N samples.
        temperature: T, without unit: below 1 it sharpens what the mean has blurred.

    Returns:
        [N, C] probabilities.

    Raises:
        ValueError: A shape or dtype is wrong, M is 0, or ``temperature`` is not positive.
    """
    check_shape("probabilities", probabilities, "M N C")
    check_floating(probabilities=probabilities)
    if probabilities.shape[0] == 0:
        raise ValueError(f"probabilities needs a client: got {list(probabilities.shape)}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive: got {temperature}")
    mean = probabilities.to(result_dtype(probabilities)).mean(0)
    return F.softmax(mean / temperature, dim=1)
