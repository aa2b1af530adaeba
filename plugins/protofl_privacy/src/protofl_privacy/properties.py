"""Property inference: a column of the data (sex, site, device) predicted from uploads.

One upload is one example: the attacker knows the property of all clients but one, trains a ridge
classifier on their uploads, and predicts that of the last (leave one client out). A client's
property is its most frequent value of the column; of a column of numbers, whether its mean is above
the median over clients. The area under the ROC curve is over clients, for a property of several
values the mean over the values (each against the rest).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

import protofl as pf
from protofl_privacy.evidence import Evidence, families
from protofl_privacy.intervals import Number, bootstrap, rank_area

LEAST = 8
"""Smallest number of clients from which something is predicted."""

WIDEST = 20_000
"""Largest number of numbers of an upload that are used; further ones are left out evenly."""


@dataclass(frozen=True)
class PropertyLeak:
    """How well a column is predicted from one key.

    Attributes:
        key: The key of the wire.
        column: The column of the data.
        auc: Area under the ROC curve.
        clients: Number of clients.
    """

    key: str
    column: str
    auc: Number
    clients: int

    def to_values(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {k: v.to_values() if isinstance(v, Number) else v for k, v in vars(self).items()}


def property_leaks(evidence: Evidence, columns: Sequence[str] = ()) -> list[PropertyLeak]:
    """Predict columns from each key of the uploads.

    Args:
        evidence: The run.
        columns: The columns; none for all columns of the data.

    Raises:
        UsageError: The data have no such column.
    """
    known = evidence.plan.data.columns
    for name in columns:
        if name not in known:
            raise pf.UsageError(
                f"--column {name}: the data have no such column",
                f"they have: {', '.join(known) or 'none'}",
            )
    keys = [k for k in families(evidence.uploads[evidence.clients[0]]) if "classes" not in k]
    result = []
    for column in columns or known:
        values = property_of(evidence, known[column])
        for key in keys:
            result.append(_judged(evidence, key, column, values))
    return result


def property_of(evidence: Evidence, column: np.ndarray) -> np.ndarray:
    """Return the property of each attacked client [M]."""
    parts = [column[evidence.members(client).numpy()] for client in evidence.clients]
    if column.dtype.kind == "f":
        means = np.array([part.mean() for part in parts])
        return (means > np.median(means)).astype(int)  # type: ignore[no-any-return]
    common = []
    for part in parts:
        found, counts = np.unique(part, return_counts=True)
        common.append(found[counts.argmax()])
    return np.array(common)


def _judged(evidence: Evidence, key: str, column: str, values: np.ndarray) -> PropertyLeak:
    clients, found = len(values), np.unique(values)

    def without(why: str) -> PropertyLeak:
        return PropertyLeak(key, column, Number(None, why=why), clients)

    if clients < LEAST:
        return without(f"needs uploads of {LEAST} clients, has {clients}")
    if len(found) == 1:
        return without(f"all clients have {found[0]}")
    if (common := [v for v in found if (values == v).sum() >= 2]) == [] or len(common) < 2:
        return without("fewer than two values belong to two clients each")
    x = vectors(evidence, key)
    if x is None:
        return without("the tensors of the clients have different shapes")
    scores = np.zeros((clients, len(found)))
    for one in range(clients):
        rest = np.arange(clients) != one
        scaler = StandardScaler().fit(x[rest])
        model = RidgeClassifier(alpha=float(x.shape[1])).fit(
            scaler.transform(x[rest]), values[rest]
        )
        drawn = model.decision_function(scaler.transform(x[one : one + 1]))[0]
        columns = np.searchsorted(found, model.classes_)
        scores[one, columns] = [-drawn, drawn] if len(columns) == 2 else drawn

    def over(chosen: np.ndarray) -> float:
        drawn = values[chosen]
        areas = [
            rank_area(drawn == value, scores[chosen, place])
            for place, value in enumerate(found)
            if value in common
        ]
        known = [each for each in areas if not np.isnan(each)]
        return float(np.mean(known)) if known else float("nan")

    return PropertyLeak(key, column, bootstrap(clients, over, evidence.seed), clients)


def vectors(evidence: Evidence, key: str) -> np.ndarray | None:
    """Return the tensors of a key as one vector per client [M, D]; None if shapes differ.

    Tensors with rows by class have a row for every class, 0 for a missing one, and the mask of
    known classes beside them.
    """
    rows = []
    for client in evidence.clients:
        upload = evidence.uploads[client]
        names = [k for k in upload.keys() if k == key or k.startswith(key.rstrip("*"))]
        names = names if key.endswith("/*") else [key]
        parts = []
        for name in names:
            if name not in upload.keys():
                return None
            if upload.has_class_rows(name) and upload.is_table(name):
                table, there = upload.table(name, evidence.num_classes)
                parts += [table.double().flatten(), there.double()]
            else:
                parts.append(upload[name].double().flatten())
        rows.append(np.concatenate([part.numpy() for part in parts]))
    if len({row.shape for row in rows}) > 1:
        return None
    stacked = np.stack(rows)
    if stacked.shape[1] > WIDEST:
        stacked = stacked[:, np.linspace(0, stacked.shape[1] - 1, WIDEST).astype(int)]
    return stacked
