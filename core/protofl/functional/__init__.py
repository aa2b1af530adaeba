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
`class_margins`          of each class the distance to the nearest other: FedTGP Fig. 1
`mean_margin`            average margin: FedSA Eq. 6
`margin_contrastive_…`   ``loss``: FedTGP Eq. 10, FedSA Eq. 7
`simplex_etf`            fixed points of the classes: V of FedKTL section 3.3.2, AlignFed
`variance_weights`       β of an ensemble: FedPKD Eq. 7
`ensemble_logits`        the ensemble S: FedPKD Eq. 6 and 3
`filter_by_prototype`    samples near their pseudo-class: FedPKD Alg. 1, Eq. 10
`kl_divergence`          of student and teacher: FedPKD Eq. 11 and 15, FedDF, FML, FedKD
`entropy_reduction`      sharpened mean of probabilities: DS-FL
`truncated_svd`          compressed updates: FedKD
`largest_entries`        Top_k of Stich et al.; `with_entries` makes rows of them again
`quantise_int8`          8 bits a number and a scale a row; `dequantise_int8` the way back
`round_to_half`          16 bits a number; both also with stochastic rounding
`index_type`             the smallest integer type for places
`coordinate_median`      of a class over clients; `trimmed_mean`, `geometric_median`
`multi_krum`             the clients' rows that a filter keeps; `cosine_filter`
`minority`               how many of a class's clients a rule expects to be malicious
`alie_rows`              what colluding clients send: ALIE; `alie_z` by how much
`accuracy_by_class`      of scores whose labels are known: FedPKD Fig. 2
`accuracy_over_clients`  over all test samples, the clients' mean, and their deviation
`macro_f1`               `balanced_accuracy`, `recall_by_class`: of `confusion_counts`
`calibration_error`      expected, of `calibration_counts`: Guo et al. 2017
`area_under_curve`       one class against the others, of `ranked_pairs`
=======================  =====================================================================

All but `simplex_etf`, `filter_by_prototype`, `truncated_svd`, `with_entries`, `dequantise_int8` and
`geometric_median` may be part of a client's loss: they don't look at a tensor's value from Python,
so a step can be compiled, captured or mapped over clients.
Arguments are checked by shape and dtype, with a ``ValueError``; labels outside 0…C−1 are not looked
for. Results have the arguments' promoted dtype; half precision is computed and returned in float32,
except by `ema`, which keeps the dtype, and `truncated_svd`, which torch refuses it.

Imports: nothing.
Start with ``prototypes.py``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protofl.functional.compression import (
        dequantise_int8,
        index_type,
        largest_entries,
        quantise_int8,
        round_to_half,
        truncated_svd,
        with_entries,
    )
    from protofl.functional.distances import (
        cosine_alignment,
        prototype_alignment,
        prototype_distance,
        squared_distances,
    )
    from protofl.functional.distillation import (
        ensemble_logits,
        entropy_reduction,
        filter_by_prototype,
        kl_divergence,
        variance_weights,
    )
    from protofl.functional.etf import simplex_etf
    from protofl.functional.margins import (
        class_margins,
        margin_contrastive_loss,
        mean_margin,
        nearest_margin,
        pair_margin,
    )
    from protofl.functional.prototypes import aggregate_prototypes, class_means, ema
    from protofl.functional.robust import (
        alie_rows,
        alie_z,
        coordinate_median,
        cosine_filter,
        geometric_median,
        minority,
        multi_krum,
        trimmed_mean,
    )
    from protofl.functional.scores import (
        accuracy_by_class,
        accuracy_over_clients,
        area_under_curve,
        balanced_accuracy,
        calibration_counts,
        calibration_error,
        confusion_counts,
        macro_f1,
        ranked_pairs,
        recall_by_class,
    )

_NAMES = {
    "compression": "dequantise_int8 index_type largest_entries quantise_int8 round_to_half"
    " truncated_svd with_entries",
    "distances": "cosine_alignment prototype_alignment prototype_distance squared_distances",
    "distillation": "ensemble_logits entropy_reduction filter_by_prototype kl_divergence"
    " variance_weights",
    "etf": "simplex_etf",
    "margins": "class_margins margin_contrastive_loss mean_margin nearest_margin pair_margin",
    "prototypes": "aggregate_prototypes class_means ema",
    "robust": "alie_rows alie_z coordinate_median cosine_filter geometric_median minority"
    " multi_krum trimmed_mean",
    "scores": "accuracy_by_class accuracy_over_clients area_under_curve balanced_accuracy"
    " calibration_counts calibration_error confusion_counts macro_f1 ranked_pairs recall_by_class",
}
"""{file: its public names}; a file is loaded when a name of it is first used."""
_HOME = {name: file for file, names in _NAMES.items() for name in names.split()}

__all__ = [
    "accuracy_by_class",
    "accuracy_over_clients",
    "aggregate_prototypes",
    "alie_rows",
    "alie_z",
    "area_under_curve",
    "balanced_accuracy",
    "calibration_counts",
    "calibration_error",
    "class_margins",
    "class_means",
    "confusion_counts",
    "coordinate_median",
    "cosine_alignment",
    "cosine_filter",
    "dequantise_int8",
    "ema",
    "ensemble_logits",
    "entropy_reduction",
    "filter_by_prototype",
    "geometric_median",
    "index_type",
    "kl_divergence",
    "largest_entries",
    "macro_f1",
    "margin_contrastive_loss",
    "mean_margin",
    "minority",
    "multi_krum",
    "nearest_margin",
    "pair_margin",
    "prototype_alignment",
    "prototype_distance",
    "quantise_int8",
    "ranked_pairs",
    "recall_by_class",
    "round_to_half",
    "simplex_etf",
    "squared_distances",
    "trimmed_mean",
    "truncated_svd",
    "variance_weights",
    "with_entries",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - functions of many types
    if name not in _HOME:
        raise AttributeError(f"module 'protofl.functional' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"protofl.functional.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
