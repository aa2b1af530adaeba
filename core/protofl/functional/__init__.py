"""The field's mathematics as pure functions on tensors.

N is a number of rows (samples), C of classes, K of features, M of clients. ``labels`` are integers
in 0…C−1; ``known`` says which rows of ``prototypes`` are there, and the others may hold anything.

=======================  =====================================================================
`class_means`            mean feature of every class: FedTGP Eq. 2, FedSA Eq. 2, FedPKD Eq. 5
`aggregate_prototypes`   over clients: FedTGP Eq. 3, FedSA Eq. 3, FedPKD Eq. 8; Q^c of FedTGP
`ema`                    moving average of anchors: FedSA Eq. 10
`prototype_distance`     of features to prototypes: φ of FedTGP, d of FedSA
`prototype_alignment`    to the own class: FedTGP Eq. 4 and 11, FedSA Eq. 5, FedPKD Eq. 12 and 16
`pair_margin`            maximum over pairs of classes: FedTGP Eq. 9 before the threshold
`nearest_margin`         maximum of the distance to the nearest class: FedTGP Fig. 1
`class_margins`          of each class the distance to the nearest other: FedTGP Fig. 1;
                         `largest_margins` the largest of the clients'
`mean_margin`            average margin: FedSA Eq. 6
`intra_class_distances`  of rows to the mean of their class; `inter_class_distances` between them
`distances_by_client`    of each client's prototypes to the global ones
`client_similarity`      Pearson, Spearman or linear CKA between clients' prototypes
`margin_contrastive_…`   ``rows`` and their mean, ``loss``: FedTGP Eq. 10, FedSA Eq. 7
`margin_penalty`         what both add to the distances
`anchor_alignment`       FedSA Eq. 5; `anchor_contrast` Eq. 7, `anchor_terms` both at once
`anchor_calibration`     FedSA Eq. 8
`orthogonality_loss`     FedORGP Eq. 3 to 5; `cosine_alignment` L_R of its Eq. 8
`repelled_on_sphere`     prototypes as charges on the unit sphere: ProtoNorm
`finch`                  clusters by first neighbours: FedPLVM
`structural_loss`        S of FedSAF: how classes lie to each other in two spaces
`train_prototypes`       SGD on FedTGP Eq. 10; `train_prototypes_by_autograd` the plain one
`simplex_etf`            the fixed classifier V: FedKTL section 3.3.2
`arcface_loss`           FedKTL Eq. 1; `fixed_point_loss` of AlignFed
`centroid_distance`      to the own class's centroid: FedKTL Eq. 2
`mmd_rbf`                maximum mean discrepancy: FedKTL Eq. 3
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
`ensemble_loss`          of heads on generated features: FedGen
`diversity_loss`         of generated features: FedGen
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

All but `simplex_etf`, `filter_by_prototype`, `truncated_svd`, `with_entries`, `dequantise_int8`,
`geometric_median`, `client_similarity`, `repelled_on_sphere`, `finch` and what trains may be part
of a client's loss: they don't look at a tensor's value from Python, so a step can be compiled,
captured or mapped over clients.
Only what trains writes to its arguments. Arguments are checked by shape and dtype, with a
``ValueError``; labels outside 0…C−1 are not looked for. Results have the arguments' promoted dtype;
half precision is computed and returned in float32, except by `ema`, which keeps the dtype, and
`truncated_svd`, which torch refuses it.

Imports: nothing.
Start with ``prototypes.py``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protofl.functional.anchors import (
        anchor_alignment,
        anchor_calibration,
        anchor_contrast,
        anchor_terms,
    )
    from protofl.functional.angles import cosine_alignment, orthogonality_loss, repelled_on_sphere
    from protofl.functional.clusters import finch
    from protofl.functional.compression import (
        dequantise_int8,
        index_type,
        largest_entries,
        quantise_int8,
        round_to_half,
        truncated_svd,
        with_entries,
    )
    from protofl.functional.distances import prototype_alignment, prototype_distance
    from protofl.functional.distillation import (
        ensemble_logits,
        entropy_reduction,
        filter_by_prototype,
        kl_divergence,
        variance_weights,
    )
    from protofl.functional.etf import arcface_loss, fixed_point_loss, simplex_etf
    from protofl.functional.generators import diversity_loss, ensemble_loss
    from protofl.functional.kernels import centroid_distance, mmd_rbf
    from protofl.functional.margins import (
        class_margins,
        largest_margins,
        margin_contrastive_loss,
        margin_contrastive_rows,
        margin_penalty,
        mean_margin,
        mean_nearest_margin,
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
    from protofl.functional.spreads import (
        client_similarity,
        distances_by_client,
        inter_class_distances,
        intra_class_distances,
    )
    from protofl.functional.structure import structural_loss
    from protofl.functional.trainable import train_prototypes, train_prototypes_by_autograd

_NAMES = {
    "angles": "cosine_alignment orthogonality_loss repelled_on_sphere",
    "anchors": "anchor_alignment anchor_calibration anchor_contrast anchor_terms",
    "clusters": "finch",
    "compression": "dequantise_int8 index_type largest_entries quantise_int8 round_to_half"
    " truncated_svd with_entries",
    "distances": "prototype_alignment prototype_distance",
    "distillation": "ensemble_logits entropy_reduction filter_by_prototype kl_divergence"
    " variance_weights",
    "etf": "arcface_loss fixed_point_loss simplex_etf",
    "generators": "diversity_loss ensemble_loss",
    "kernels": "centroid_distance mmd_rbf",
    "margins": "class_margins largest_margins margin_contrastive_loss margin_contrastive_rows"
    " margin_penalty mean_margin mean_nearest_margin nearest_margin pair_margin",
    "prototypes": "aggregate_prototypes class_means ema",
    "robust": "alie_rows alie_z coordinate_median cosine_filter geometric_median minority"
    " multi_krum trimmed_mean",
    "scores": "accuracy_by_class accuracy_over_clients area_under_curve balanced_accuracy"
    " calibration_counts calibration_error confusion_counts macro_f1 ranked_pairs recall_by_class",
    "spreads": "client_similarity distances_by_client inter_class_distances intra_class_distances",
    "structure": "structural_loss",
    "trainable": "train_prototypes train_prototypes_by_autograd",
}
"""{file: its public names}; a file is loaded when a name of it is first used."""
_HOME = {name: file for file, names in _NAMES.items() for name in names.split()}

__all__ = [
    "accuracy_by_class",
    "accuracy_over_clients",
    "aggregate_prototypes",
    "alie_rows",
    "alie_z",
    "anchor_alignment",
    "anchor_calibration",
    "anchor_contrast",
    "anchor_terms",
    "arcface_loss",
    "area_under_curve",
    "balanced_accuracy",
    "calibration_counts",
    "calibration_error",
    "centroid_distance",
    "class_margins",
    "class_means",
    "client_similarity",
    "confusion_counts",
    "coordinate_median",
    "cosine_alignment",
    "cosine_filter",
    "dequantise_int8",
    "distances_by_client",
    "diversity_loss",
    "ema",
    "ensemble_logits",
    "ensemble_loss",
    "entropy_reduction",
    "filter_by_prototype",
    "finch",
    "fixed_point_loss",
    "geometric_median",
    "index_type",
    "inter_class_distances",
    "intra_class_distances",
    "kl_divergence",
    "largest_entries",
    "largest_margins",
    "macro_f1",
    "margin_contrastive_loss",
    "margin_contrastive_rows",
    "margin_penalty",
    "mean_margin",
    "mean_nearest_margin",
    "minority",
    "mmd_rbf",
    "multi_krum",
    "nearest_margin",
    "orthogonality_loss",
    "pair_margin",
    "prototype_alignment",
    "prototype_distance",
    "quantise_int8",
    "ranked_pairs",
    "recall_by_class",
    "repelled_on_sphere",
    "round_to_half",
    "simplex_etf",
    "structural_loss",
    "train_prototypes",
    "train_prototypes_by_autograd",
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
