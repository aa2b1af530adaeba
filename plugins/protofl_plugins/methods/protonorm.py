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

from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins.prototype_methods import (
    Absent,
    CollectsBefore,
    DecidesByPrototype,
    mean_prototypes,
    with_absent,
)
from protofl_plugins.variants import DropsLastBatch


class ProtoNorm(CollectsBefore, DecidesByPrototype, DropsLastBatch):
    """Global prototypes repel each other on the unit sphere, scaled up for clients (Lee, 2025)."""

    class Config(pf.VariantConfig):
        """Options, with the paper's symbols."""

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
        inertia: float = pf.Field(0.9, ge=0, lt=1, description="momentum of the alignment")
        absent: Absent = pf.Field(
            None, description="Q^c of a class that no client of the round has: the last, or none"
        )

    terms = {
        "ce": "cross-entropy",
        "align": "λ·E ‖f(x) − s·P^y‖²/K, of the samples whose class has a prototype",
    }
    downloads = {"prototypes": "P^c, unit vectors, of the classes that anybody has sent"}
    ablations = {
        "without prototype alignment": "--set alignment=false",
        "without prototype upscaling": "--set scale=1",
    }

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, given: pf.Given
    ) -> pf.Terms:
        """Cross-entropy, and the distance to the scaled prototype of each sample's class."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if given:
            config = client.config
            targets = config.scale * given["prototypes"]  # s·P
            terms["align"] = config.lambda_ * F.prototype_alignment(
                output.features, batch.y, targets, given["known"], "mse"
            )
        return terms

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Q, then P by prototype alignment."""
        config = server.config
        Q, known = mean_prototypes(server, uploads, "uniform")
        Q, known = with_absent(server, Q, known, config.absent)
        if config.alignment:
            Q = F.repelled_on_sphere(
                Q, known, config.potential, config.steps, config.rate, config.inertia
            )
        return pf.class_rows(known, prototypes=Q)
