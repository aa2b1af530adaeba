"""Samples that sums and second moments of features give away by arithmetic alone.

    Σ x        over one sample is its feature x
    Σ x∘x      over one sample is x up to the sign of each number
    Σ x·xᵀ     over n < K samples has rank n at most, and its eigenvectors span the features;
               over one sample it is x up to one sign

x is a feature of K numbers. Whoever has the extractor, such as the server of a public frozen net,
compares such numbers with the features of samples, or inverts the extractor. Each finding is
checked against the client's features: it does not count in an upload with noise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from protofl_privacy.evidence import Evidence

CLOSE = 1e-4
"""Largest relative difference of an exact value, as features are computed in float32."""


def moment_leaks(evidence: Evidence) -> dict[str, tuple[int, str]]:
    """Return {key: (exact features it gives away, what the table of keys says)}."""
    result = {}
    for key, (given_away, words) in ATTACKS.items():
        tables = [_tables(evidence, client, key) for client in evidence.clients]
        found = [given_away(M, X) for table in tables for M, X in table]
        if found:
            result[key] = sum(found), f"{words}: {sum(found)} of {len(found)}"
    return result


def _tables(evidence: Evidence, client: int, key: str) -> list[tuple[Tensor, Tensor]]:
    """Return the moments of a client's upload, each with the features [n, K] behind it."""
    upload, rows = evidence.uploads[client], evidence.members(client)
    if key not in upload:
        return []
    X, y = evidence.features(client, rows).double(), evidence.y[rows]
    if key == "gram":
        return [(upload[key].double(), X)]
    moments, classes = upload.rows(key)
    return [(M.double(), X[y == c]) for M, c in zip(moments, classes.tolist(), strict=True)]


def _equal(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).norm() <= CLOSE * wanted.norm())


def _is_the_feature(M: Tensor, X: Tensor) -> bool:
    """Return True if a sum [K] is the feature of the only sample, X [1, K]."""
    return len(X) == 1 and _equal(M, X[0])


def _is_the_square(M: Tensor, X: Tensor) -> bool:
    """Return True if Σ x∘x [K] is that of the only sample, X [1, K]."""
    return len(X) == 1 and _equal(M, X[0].square())


def _spans(M: Tensor, X: Tensor) -> bool:
    """Return True if the largest eigenvectors of Σ x·xᵀ [K, K] span n < K features [n, K]."""
    if len(X) >= len(M):
        return False
    U = torch.linalg.eigh(M).eigenvectors[:, -len(X) :]
    return _equal(X @ U @ U.T, X)


ATTACKS: dict[str, tuple[Callable[[Tensor, Tensor], bool], str]] = {
    "feature_sums": (_is_the_feature, "classes whose only feature it is, exactly"),
    "feature_squares": (_is_the_square, "classes whose only feature it is, up to signs"),
    "gram": (_spans, "clients whose features it spans, exactly"),
    "class_grams": (_spans, "classes whose features it spans, exactly"),
}
"""{key: (a test whether a moment gives samples away, what it counts)}."""
