"""The papers' equations in plain Python: numbers, lists and loops, no tensor algebra."""

from __future__ import annotations

import math


def numbers(tensor):
    """Return a tensor as nested lists of Python floats."""
    return tensor.detach().double().tolist()


def l2(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def mse(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a)


DISTANCES = {"l2": l2, "mse": mse}


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def means_by_class(rows, labels):
    """Return {class: mean row} for the classes that occur."""
    return {c: mean([r for r, y in zip(rows, labels, strict=True) if y == c]) for c in {*labels}}


def cross_entropy(scores, label):
    """Return −log softmax(scores)[label] of one row."""
    top = max(scores)
    return math.log(sum(math.exp(s - top) for s in scores)) + top - scores[label]


def mean_cross_entropy(rows, labels):
    return sum(cross_entropy(r, y) for r, y in zip(rows, labels, strict=True)) / len(labels)


def affine(rows, weight, bias=None):
    """Return x·Wᵀ + b of every row."""
    bias = bias or [0.0] * len(weight)
    return [
        [
            sum(w * x for w, x in zip(ws, row, strict=True)) + b
            for ws, b in zip(weight, bias, strict=True)
        ]
        for row in rows
    ]


def guided(rows, labels, prototypes, distance, align):
    """Return E φ(P_i^c, P̄^c) over the batch's classes or over its samples.

    ``prototypes`` is {class: row}. A class without a prototype adds 0 and counts in the mean.
    """
    d = DISTANCES[distance]
    if align == "sample":
        pairs = list(zip(rows, labels, strict=True))
    else:
        pairs = [(m, c) for c, m in means_by_class(rows, labels).items()]
    return sum(d(row, prototypes[c]) for row, c in pairs if c in prototypes) / len(pairs)


def contrastive(row, label, prototypes, margin):
    """−log( e^−(d_c+δ) / (e^−(d_c+δ) + Σ_{c'≠c} e^−d_c') ) for one row, d Euclidean."""
    own = math.exp(-(l2(row, prototypes[label]) + margin))
    others = sum(math.exp(-l2(row, p)) for c, p in prototypes.items() if c != label)
    return -math.log(own / (own + others))


def aggregated(uploads, mode):
    """Return Σ_i |D_i,c|/N_c · P_i^c, the plain mean, or Eq. 3 as printed.

    ``uploads`` is [{class: (row, count)}, …] by client.
    """
    found = {}
    for c in sorted({c for upload in uploads for c in upload}):
        own = [upload[c] for upload in uploads if c in upload]
        total = sum(count for _, count in own)
        weights = [1 / len(own) if mode == "uniform" else count / total for _, count in own]
        if mode == "eq3":
            weights = [w / len(own) for w in weights]
        K = len(own[0][0])
        found[c] = [
            sum(w * row[k] for w, (row, _) in zip(weights, own, strict=True)) for k in range(K)
        ]
    return found


def pairs_of(prototypes):
    return [(a, b) for a in prototypes for b in prototypes if a != b]


def difference_quotients(function, rows, step=1e-6):
    """Return ∂function/∂rows by central differences."""
    found = [[0.0] * len(rows[0]) for _ in rows]
    for n, row in enumerate(rows):
        for k in range(len(row)):
            up, down = [r[:] for r in rows], [r[:] for r in rows]
            up[n][k] += step
            down[n][k] -= step
            found[n][k] = (function(up) - function(down)) / (2 * step)
    return found
