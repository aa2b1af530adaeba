"""Membership inference: which samples a client trained on, from its upload.

An attack gives each sample (x, y) a score; members should have larger ones.

- ``prototypes``: −‖f(x) − P_y‖, the nearest row of the class if it has several. The extractor f is
  the attacked client's (insider), or another client's (colluder).
- ``head/*``: the confidence φ of the uploaded head on the client's own features (insider).
- ``model/*``: the confidence φ of the uploaded model (server).
- ``extractor/*``: −‖f(x) − m_y‖, m_y the mean feature of the attacker's samples of class y
  (server).
- ``public_logits``, ``public_probabilities``: the confidence φ of a student (`regression`) that the
  attacker trains on them (server), or of the client's own model (querier).

φ = s_y − log Σ_{c≠y} exp s_c is the logit of the true class's probability. It has nearly a normal
distribution (Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022).

Three decision rules, of which the strongest counts:

- ``threshold``: one threshold for all samples of all clients.
- ``per-class``: the score is standardised by the scores of the attacker's own samples of the class
  (Yeom et al., 2018, with a threshold for each class and client).
- ``lira``: the likelihood ratio of two normal distributions, of the sample's scores in shadow runs
  with it and in those without it (Carlini et al., 2022, Alg. 1, with one variance for all samples).

Members are the client's training samples, non-members its held-out ones: both are drawn from the
same distribution, so an attack that only recognises the client has an area of 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import protofl as pf
from protofl_privacy.evidence import Evidence, classes_in, has
from protofl_privacy.intervals import Number, area, rate_at
from protofl_privacy.regression import Regression

RATES = (0.001, 0.01)
"""False-positive rates at which true-positive rates are reported."""

SIZES = ((1, 1), (2, 2), (3, 5), (6, 10), (11, 50), (51, 10**9))
"""Classes of few samples are reported apart: smallest and largest number of a client's samples."""

FEW = 10
"""Held-out samples of classes of a size below which samples of other clients stand in for them."""

Score = Callable[[Evidence, int, Tensor], Tensor]
"""Maps evidence, the attacked client and rows [n] to scores [n]; NaN for samples without one."""


@dataclass(frozen=True)
class MembershipLeak:
    """The result of one attack with one rule.

    Attributes:
        key: The key of the wire.
        attacker: A name of `evidence.ATTACKERS`.
        rule: ``threshold``, ``per-class`` or ``lira``.
        auc: Area under the ROC curve.
        rates: {false-positive rate: true-positive rate}.
        members: Number of members.
        held_out: Number of non-members.
        others: Area of telling samples that other clients trained on from their held-out ones, by
            this client's upload. 0.5 if an upload depends on the client's own samples only.
        by_size: {samples of the class: area} of members and non-members of classes of this size. If
            there are fewer than `FEW` held-out ones, samples of other clients are the non-members.
    """

    key: str
    attacker: str
    rule: str
    auc: Number
    rates: dict[float, Number]
    members: int
    held_out: int
    others: Number
    by_size: dict[str, Number] = field(default_factory=dict)

    def to_values(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "key": self.key,
            "attacker": self.attacker,
            "rule": self.rule,
            "auc": self.auc.to_values(),
            "tpr": {f"{rate:g}": number.to_values() for rate, number in self.rates.items()},
            "members": self.members,
            "held_out": self.held_out,
            "others": self.others.to_values(),
            "by_size": {size: number.to_values() for size, number in self.by_size.items()},
        }


@dataclass
class Scored:
    """Scores of one attack on all attacked clients, client after client.

    Attributes:
        members: Scores of members.
        held_out: Scores of non-members.
        sizes: The client's training samples of each member's class.
        sizes_out: The same of each non-member's class.
        others: Scores of samples of other clients.
        sizes_others: The attacked client's training samples of each such sample's class.
        trained: True for samples that the other client trained on.
    """

    members: np.ndarray
    held_out: np.ndarray
    sizes: np.ndarray
    sizes_out: np.ndarray
    others: np.ndarray
    sizes_others: np.ndarray
    trained: np.ndarray


def membership_leaks(
    evidence: Evidence, shadows: Sequence[Evidence] = (), keys: Sequence[str] | None = None
) -> list[MembershipLeak]:
    """Run every membership attack for which the uploads have a key, with every rule.

    Args:
        evidence: The run.
        shadows: Shadow runs (`shadow.shadow_runs`); none: without LiRA.
        keys: Keys to attack; None for all.
    """
    result = []
    for (key, attacker), score in attacks_on(evidence).items():
        if keys is not None and key not in keys:
            continue
        for rule in ("threshold", "per-class"):
            scored = scores_of(evidence, score, standardised=rule == "per-class")
            result.append(_judged(key, attacker, rule, scored))
        if shadows:
            result.append(
                _judged(key, attacker, "lira", likelihood_ratios(evidence, shadows, score))
            )
    return result


def strongest(leaks: Sequence[MembershipLeak]) -> MembershipLeak | None:
    """Return the attack with the largest area, or None."""
    measured = [leak for leak in leaks if leak.auc.value is not None]
    return max(measured, key=lambda leak: leak.auc.value or 0.0, default=None)


def _judged(key: str, attacker: str, rule: str, scored: Scored) -> MembershipLeak:
    by_size = {}
    for low, high in SIZES:
        chosen, out, rest = (
            (sizes >= low) & (sizes <= high)
            for sizes in (scored.sizes, scored.sizes_out, scored.sizes_others)
        )
        # A class of one or two samples mostly has no held-out one: samples of the same classes of
        # other clients stand in for them.
        few = out.sum() < FEW
        negatives = scored.others[rest] if few and rest.any() else scored.held_out[out]
        if chosen.any():
            label = f"{low}" if low == high else f"{low}+" if high >= 10**9 else f"{low}–{high}"
            by_size[label] = area(scored.members[chosen], negatives)
    return MembershipLeak(
        key,
        attacker,
        rule,
        area(scored.members, scored.held_out),
        {rate: rate_at(scored.members, scored.held_out, rate) for rate in RATES},
        len(scored.members),
        len(scored.held_out),
        area(scored.others[scored.trained], scored.others[~scored.trained]),
        by_size,
    )


# --- rules ----------------------------------------------------------------------------------------


def scores_of(evidence: Evidence, score: Score, *, standardised: bool) -> Scored:
    """Return the scores of an attack on all attacked clients.

    Args:
        evidence: The run.
        score: The attack.
        standardised: True to subtract the mean score of the attacker's samples of the same class
            and to divide by their deviation.
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in Scored.__dataclass_fields__}
    for client in evidence.clients:
        inside, outside = evidence.members(client), evidence.held_out(client)
        others, trained = evidence.others(client)
        each = [score(evidence, client, rows) for rows in (inside, outside, others)]
        if standardised:
            y = evidence.y[others]
            each = [
                _standardised(s, evidence.y[rows], each[2], y)
                for s, rows in zip(each, (inside, outside, others), strict=True)
            ]
        counts = torch.bincount(evidence.y[inside], minlength=evidence.num_classes)
        mine, out, rest = each
        _append(parts, "members", mine)
        _append(parts, "held_out", out)
        _append(parts, "sizes", counts[evidence.y[inside]][~mine.isnan()])
        _append(parts, "sizes_out", counts[evidence.y[outside]][~out.isnan()])
        _append(parts, "others", rest)
        _append(parts, "sizes_others", counts[evidence.y[others]][~rest.isnan()])
        _append(parts, "trained", trained[~rest.isnan()])
    return Scored(**{name: np.concatenate(pieces) for name, pieces in parts.items()})


def _append(parts: dict[str, list[np.ndarray]], name: str, values: Tensor) -> None:
    if values.is_floating_point():
        values = values[~values.isnan()]
    parts[name].append(values.numpy())


def _standardised(scores: Tensor, y: Tensor, reference: Tensor, reference_y: Tensor) -> Tensor:
    """Standardise scores [n] by the reference scores of each class; NaN for classes with few."""
    result = torch.full_like(scores, torch.nan)
    for label in classes_in(y):
        known = reference[(reference_y == label) & ~reference.isnan()]
        if len(known) >= 2:
            chosen = y == label
            result[chosen] = (scores[chosen] - known.mean()) / known.std().clamp(min=1e-6)
    return result


def likelihood_ratios(evidence: Evidence, shadows: Sequence[Evidence], score: Score) -> Scored:
    """Return LiRA's log-likelihood ratios for members and non-members (Carlini et al., Alg. 1).

    Args:
        evidence: The run.
        shadows: Shadow runs. Each trains every client on a part of its samples.
        score: The attack.
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in Scored.__dataclass_fields__}
    none = np.zeros(0)
    for client in evidence.clients:
        inside, outside = evidence.members(client), evidence.held_out(client)
        rows = torch.cat([inside, outside])
        observed = score(evidence, client, rows).double().numpy()
        drawn = [(s, client) for s in shadows if client in s.uploads]
        table = np.stack([score(s, c, rows).double().numpy() for s, c in drawn])
        trained = np.stack([np.isin(rows.numpy(), s.members(c).numpy()) for s, c in drawn])
        ratios = _ratios(observed, table, trained)
        counts = torch.bincount(evidence.y[inside], minlength=evidence.num_classes)
        sizes = counts[evidence.y[rows]].numpy()
        known, place = ~np.isnan(ratios), len(inside)
        parts["members"].append(ratios[:place][known[:place]])
        parts["held_out"].append(ratios[place:][known[place:]])
        parts["sizes"].append(sizes[:place][known[:place]])
        parts["sizes_out"].append(sizes[place:][known[place:]])
        for name in ("others", "sizes_others", "trained"):
            parts[name].append(none.astype(bool) if name == "trained" else none)
    return Scored(**{name: np.concatenate(pieces) for name, pieces in parts.items()})


def _ratios(observed: np.ndarray, table: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Return log N(s; in) − log N(s; out) per sample; NaN without a shadow on each side.

    Args:
        observed: Scores [n] by the attacked upload.
        table: Scores [S, n] by the uploads of S shadow runs.
        trained: True [S, n] where the shadow run trained on the sample.
    """
    known = ~np.isnan(table)
    ratios = np.zeros_like(observed)
    for sign, chosen in ((1, trained & known), (-1, ~trained & known)):
        count = chosen.sum(0)
        mean = np.where(chosen, table, 0).sum(0) / np.where(count, count, np.nan)
        apart = np.where(chosen, table - mean, 0)
        freedom = np.maximum(count - 1, 0).sum()
        variance = max(np.nansum(apart**2) / max(freedom, 1), 1e-12)
        ratios += sign * (-0.5 * (observed - mean) ** 2 / variance - 0.5 * np.log(variance))
    return ratios


# --- attacks --------------------------------------------------------------------------------------


def attacks_on(evidence: Evidence) -> dict[tuple[str, str], Score]:
    """Return {(key, attacker): attack} for the keys of the uploads."""
    upload = evidence.uploads[evidence.clients[0]]
    result: dict[tuple[str, str], Score] = {}
    if "prototypes" in upload.keys():
        result["prototypes", "insider"] = lambda e, c, rows: _nearness(e, c, c, rows)
        if evidence.colluder(evidence.clients[0]) is not None:
            result["prototypes", "colluder"] = _by_colluder
    if has(upload, "head/"):
        result["head/*", "insider"] = _by_uploaded
    if has(upload, "model/"):
        result["model/*", "server"] = _by_uploaded
    if has(upload, "extractor/"):
        result["extractor/*", "server"] = _by_extractor
    for key in ("public_logits", "public_probabilities"):
        if key in upload.keys():
            result[key, "server"] = Students(key)
            result[key, "querier"] = _by_queries
    return result


def confidence(scores: Tensor, y: Tensor) -> Tensor:
    """Return φ = s_y − log Σ_{c≠y} exp s_c of class scores [n, C] and labels [n]."""
    rest = scores.scatter(1, y.unsqueeze(1), -torch.inf).logsumexp(1)
    return scores.gather(1, y.unsqueeze(1)).squeeze(1) - rest


def _nearness(evidence: Evidence, client: int, owner: int, rows: Tensor) -> Tensor:
    """Return −‖f(x) − P_y‖ with the extractor of a client ``owner``."""
    prototypes, classes = evidence.uploads[client].rows("prototypes")
    z, y = evidence.features(owner, rows), evidence.y[rows]
    if z.shape[1] != prototypes.shape[1] or not len(prototypes):
        return torch.full((len(rows),), torch.nan)
    apart = torch.cdist(z.double(), prototypes.double())
    other = y.unsqueeze(1) != classes.unsqueeze(0)
    return (
        -apart.masked_fill(other, torch.nan)
        .nan_to_num(torch.inf)
        .min(1)
        .values.float()
        .where(~other.all(1), torch.tensor(torch.nan))
    )


def _by_colluder(evidence: Evidence, client: int, rows: Tensor) -> Tensor:
    owner = evidence.colluder(client)
    if owner is None:
        return torch.full((len(rows),), torch.nan)
    return _nearness(evidence, client, owner, rows)


def _by_uploaded(evidence: Evidence, client: int, rows: Tensor) -> Tensor:
    scores = evidence.scores(evidence.uploaded_model(client), client, rows)
    return confidence(scores, evidence.y[rows])


def _by_queries(evidence: Evidence, client: int, rows: Tensor) -> Tensor:
    scores = evidence.scores(evidence.model(client), client, rows)
    return confidence(scores, evidence.y[rows])


def _by_extractor(evidence: Evidence, client: int, rows: Tensor) -> Tensor:
    """Return −‖f(x) − m_y‖, m_y the mean feature of the attacker's samples of class y."""
    others, _ = evidence.others(client)
    means, counts = pf.functional.class_means(
        evidence.features(client, others), evidence.y[others], evidence.num_classes
    )
    y = evidence.y[rows]
    apart = (evidence.features(client, rows) - means[y]).norm(dim=1)
    result: Tensor = (-apart).where(counts[y] > 0, torch.tensor(torch.nan))
    return result


class Students:
    """Attack by students: regressions that imitate a client's scores of the public samples.

    Args:
        key: ``public_logits`` or ``public_probabilities``.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._students: dict[tuple[int, int], Regression] = {}

    def __call__(self, evidence: Evidence, client: int, rows: Tensor) -> Tensor:
        """Return the confidence of the client's student on rows."""
        place = id(evidence), client
        if place not in self._students:
            self._students[place] = self._student(evidence, client)
        drawn = self._students[place](evidence.flat(rows).numpy())
        return confidence(torch.from_numpy(drawn).float(), evidence.y[rows])

    def _student(self, evidence: Evidence, client: int) -> Regression:
        """Return the regression from public samples to the scores that the client sent of them."""
        upload = evidence.uploads[client]
        index, sent = upload.get("public_index"), upload[self._key].float()
        if self._key == "public_probabilities":
            sent = sent.clamp(min=1e-6).log()
        x = evidence.public(index)
        return Regression(x.numpy(), sent.numpy(), evidence.seed + client)
