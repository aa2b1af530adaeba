"""The field's mathematics as pure functions on tensors.

N is a number of rows (samples), C of classes, K of features, M of clients. ``labels`` are integers
in 0…C−1; ``known`` says which rows of ``prototypes`` are there, and the others may hold anything.

=======================  =====================================================================
`class_means`            mean feature of every class: FedTGP Eq. 2, FedSA Eq. 2, FedPKD Eq. 5
`aggregate_prototypes`   over clients: FedTGP Eq. 3, FedSA Eq. 3, FedPKD Eq. 8; Q^c of FedTGP
`ema`                    moving average of anchors: FedSA Eq. 10
`prototype_distance`     of features to prototypes: φ of FedTGP, d of FedSA
`squared_distances`      of all pairs of rows, in float64, for kernels
`prototype_alignment`    to the own class: FedTGP Eq. 4 and 11, FedSA Eq. 5, FedPKD Eq. 12 and 16
`cosine_alignment`       the same by angles: L_R of FedORGP Eq. 8
`pair_margin`            maximum over pairs of classes: FedTGP Eq. 9 before the threshold
`nearest_margin`         maximum of the distance to the nearest class: FedTGP Fig. 1
`mean_margin`            average margin: FedSA Eq. 6
`margin_contrastive_…`   ``loss``: FedTGP Eq. 10, FedSA Eq. 7
`simplex_etf`            fixed points of the classes: V of FedKTL section 3.3.2, AlignFed
`variance_weights`       β of an ensemble: FedPKD Eq. 7
`ensemble_logits`        the ensemble S: FedPKD Eq. 6 and 3
`kl_divergence`          of student and teacher: FedPKD Eq. 11 and 15, FedDF, FML, FedKD
`truncated_svd`          compressed updates: FedKD
`has_float64`            of a device; all have it but Apple's GPUs
`in_float64`             a tensor in float64, on the CPU if its device has none
=======================  =====================================================================

All but `simplex_etf` and `truncated_svd` may be part of a client's loss: they don't look at a
tensor's value from Python, so a step can be compiled, captured or mapped over clients.
Arguments are checked by shape and dtype, with a ``ValueError``; labels outside 0…C−1 are not looked
for. Results have the arguments' promoted dtype; half precision is computed and returned in float32,
except by `ema`, which keeps the dtype, and `truncated_svd`, which torch refuses it.

Imports: system.
Start with ``prototypes.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofl.system.public_names import on_first_use

if TYPE_CHECKING:
    from protofl.functional.compression import truncated_svd as truncated_svd
    from protofl.functional.distances import cosine_alignment as cosine_alignment
    from protofl.functional.distances import prototype_alignment as prototype_alignment
    from protofl.functional.distances import prototype_distance as prototype_distance
    from protofl.functional.distances import squared_distances as squared_distances
    from protofl.functional.distillation import ensemble_logits as ensemble_logits
    from protofl.functional.distillation import kl_divergence as kl_divergence
    from protofl.functional.distillation import variance_weights as variance_weights
    from protofl.functional.etf import simplex_etf as simplex_etf
    from protofl.functional.margins import margin_contrastive_loss as margin_contrastive_loss
    from protofl.functional.margins import mean_margin as mean_margin
    from protofl.functional.margins import nearest_margin as nearest_margin
    from protofl.functional.margins import pair_margin as pair_margin
    from protofl.functional.precision import has_float64 as has_float64
    from protofl.functional.precision import in_float64 as in_float64
    from protofl.functional.prototypes import aggregate_prototypes as aggregate_prototypes
    from protofl.functional.prototypes import class_means as class_means
    from protofl.functional.prototypes import ema as ema

_NAMES = {
    "compression": "truncated_svd",
    "distances": "cosine_alignment prototype_alignment prototype_distance squared_distances",
    "distillation": "ensemble_logits kl_divergence variance_weights",
    "etf": "simplex_etf",
    "margins": "margin_contrastive_loss mean_margin nearest_margin pair_margin",
    "precision": "has_float64 in_float64",
    "prototypes": "aggregate_prototypes class_means ema",
}
"""{file: its public names}."""

__getattr__, __dir__ = on_first_use(
    __name__, {f"{__name__}.{file}": names for file, names in _NAMES.items()}
)

__all__ = __dir__()
