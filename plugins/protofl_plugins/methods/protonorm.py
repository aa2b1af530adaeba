"""ProtoNorm: global prototypes repel each other on the unit sphere and are scaled up.

Lee et al., "Heterogeneous Federated Learning with Prototype Alignment and Upscaling", 2025
(arXiv 2507.04310).

    P_i^c      client i's prototype of class c: mean feature of its samples
    Q^c        mean of the P_i^c over the clients that have class c
    P^c        Q^c on the unit sphere, after the C points have repelled each other like charges
               (prototype alignment, after the Thomson problem)
    L_i        E ℓ(h_i(f_i(x)), y) + λ·E ‖f_i(x) − s·P^y‖²/K       (prototype upscaling by s)

Inference: the class of the nearest P^c; the head, before there are any. All P^c have one length, so
the scale does not matter there.

``variant=official`` follows github.com/regulationLee/ProtoNorm, commit e816cef. The paper's text
could not be read, so the default potential, that of the Thomson problem which the abstract names,
is not checked against its equation.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared.prototypes import (
    MEANS,
    Absent,
    global_prototypes,
    guides_of_before,
    mean_prototypes,
    nearest_prototype,
    sent_without_counts,
    with_absent,
)

INERTIA = 0.9
"""Momentum of the alignment."""


class ProtoNorm:
    """Global prototypes repel each other on the unit sphere, scaled up for clients (Lee, 2025)."""

    class Config(pf.VariantConfig):
        """Options, with the paper's symbols."""

        official = {"drop_last": True}
        deviations = {
            "potential": pf.Deviation(
                "prototype alignment",
                "coulomb",
                "log",
                "the force of the Thomson problem falls with the distance's square, the code's "
                "with the distance",
            ),
            "collect": pf.Deviation(
                "P_i^c",
                "eval",
                "before",
                "the code reads its last saved model, which is that of before the training",
            ),
            "absent": pf.Deviation(
                "the mean", "keep", "forget", "the code knows only the classes of the round"
            ),
        }
        lambda_: float = pf.Field(10.0, alias="lambda", ge=0, description="λ, weight of align")
        scale: float = pf.Field(80.0, gt=0, description="s, prototype upscaling; 1 is without it")
        alignment: bool = pf.Field(
            True, description="prototype alignment; false sends the means as they are"
        )
        potential: Literal["coulomb", "log"] = pf.Field(
            None, description="energy of two points at distance d: 1/d, or −log d"
        )
        collect: Literal["eval", "before"] = pf.Field(
            None, description="take prototypes in an evaluation pass after training, or before it"
        )
        steps: int = pf.Field(500, ge=0, description="the most steps of the alignment")
        rate: float = pf.Field(0.1, gt=0, description="learning rate of the alignment")
        absent: Absent = pf.Field(
            None, description="Q^c of a class that no client of the round has: the last, or none"
        )

    asynchronous = True
    terms = {
        "ce": "cross-entropy",
        "align": "λ·E ‖f(x) − s·P^y‖²/K, of the samples whose class has a prototype",
    }
    uploads = MEANS
    downloads = {"prototypes": "P^c, unit vectors, of the classes that anybody has sent"}
    ablations = {
        "without prototype alignment": "--set alignment=false",
        "without prototype upscaling": "--set scale=1",
    }

    download_payload = staticmethod(global_prototypes)  # P
    before_training = staticmethod(guides_of_before)

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Cross-entropy, and the distance to the scaled prototype of each sample's class."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if constants:
            config = client.config
            targets = config.scale * constants["P"]  # s·P
            terms["align"] = config.lambda_ * F.prototype_alignment(
                output.features, batch.y, targets, constants["known"], "mse"
            )
        return terms

    upload_payload = staticmethod(sent_without_counts)  # P_i^c, without counts

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Q, then P by prototype alignment."""
        config = server.config
        Q, known = mean_prototypes(server, uploads, "uniform")
        Q, known = with_absent(server, Q, known, config.absent)
        if config.alignment:
            Q = repelled_on_sphere(Q, known, config.potential, config.steps, config.rate, INERTIA)
        return pf.class_rows(known, prototypes=Q)

    inference = staticmethod(nearest_prototype)


@torch.no_grad()
def repelled_on_sphere(
    prototypes: Tensor,
    known: Tensor,
    potential: Literal["coulomb", "log"] = "coulomb",
    steps: int = 500,
    lr: float = 0.1,
    momentum: float = 0.9,
) -> Tensor:
    """Return the prototypes as unit vectors that repel each other; 0 for unknown classes.

    Each step moves every point by its velocity, momentum · velocity + lr · force, and projects it
    back on the sphere. The rate falls by 5 % every tenth step. It ends early when the mean force,
    rounded to four decimals, has stayed the same for ten steps; the first eleven do not count.

    Args:
        prototypes: C×K; a known row has to differ from 0.
        known: [C] bool; the others neither move nor repel.
        potential: The energy of two points at distance d: 1/d, whose force is 1/d² (the Thomson
            problem), or −log d, whose force is 1/d (the published code).
        steps: The most steps.
        lr: Their first rate.
        momentum: In 0…1.
    """
    points = normalize(prototypes[known], dim=1)
    velocity, last, same = torch.zeros_like(points), None, 0
    for step in range(steps if len(points) > 1 else 0):
        force = _repulsion(points, potential)
        velocity = momentum * velocity + lr * force
        points = normalize(points + velocity, dim=1)
        if step % 10 == 0:
            lr *= 0.95
        if step >= 10:
            mean = round(float(force.norm(dim=1).mean()), 4)
            same = same + 1 if mean == last else 0
            last = mean
            if same == 10:
                break
    moved = torch.zeros_like(prototypes)
    moved[known] = points
    return moved


def _repulsion(points: Tensor, potential: Literal["coulomb", "log"]) -> Tensor:
    """Return Σ_j (p_i − p_j)/‖p_i − p_j‖^a for every unit vector i, n×K: a = 3 (Coulomb) or 2."""
    squares = (2 - 2 * points @ points.T).clamp_min(1e-6)  # of the distances
    weights = squares ** (-1.5 if potential == "coulomb" else -1.0)
    weights.fill_diagonal_(0)
    return points * weights.sum(1, keepdim=True) - weights @ points
