"""Distillation: ensembles of logits, and the divergence of student and teacher."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from protofl.functional._checks import check_floating, check_shape, result_dtype


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
    negative_entropy = (
        torch.xlogy(teacher, teacher) if detach else teacher * F.log_softmax(p, dim=1)
    )
    divergence = negative_entropy - teacher * student
    terms = rows * classes if mean == "elements" else rows
    return divergence.sum() * (temperature**2 / max(terms, 1))
