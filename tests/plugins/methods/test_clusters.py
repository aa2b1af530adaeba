"""Tests of FINCH against adjacency by definition and breadth-first search in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from protofl_plugins.shared import clusters as shared


def cosine(a, b):
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0


def partition(rows):
    """Return each row's cluster: connected components of A in Eq. 1 with all three conditions."""
    n = len(rows)
    others = [[j for j in range(n) if j != i] for i in range(n)]
    nearest = [max(others[i], key=lambda j: (cosine(rows[i], rows[j]), -j)) for i in range(n)]

    def adjacent(i, j):
        return j == nearest[i] or i == nearest[j] or nearest[i] == nearest[j]

    cluster = [None] * n
    for start in range(n):
        queue = [start] if cluster[start] is None else []
        for i in queue:
            cluster[i] = start
            new = [j for j in range(n) if cluster[j] is None and j not in queue]
            queue += [j for j in new if adjacent(i, j)]
    names = list(dict.fromkeys(cluster))
    return [names.index(c) for c in cluster]


def slow_finch(rows, last=True):
    found, means = list(range(len(rows))), rows
    while len(means) > 1:
        step = partition(means)
        if max(step) == 0 and len(means) < len(rows):
            break
        found = [step[c] for c in found]
        members = [[r for r, c in zip(rows, found, strict=True) if c == k] for k in {*found}]
        means = [[sum(x) / len(own) for x in zip(*own, strict=True)] for own in members]
        if not last:
            break
    return means, found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("n", "K", "groups"), [(60, 5, 4), (40, 2, 1), (7, 3, 2), (25, 16, 3)])
def test_the_last_and_the_first_partition(n, K, groups, last, seed):
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(groups, K, generator=generator, dtype=torch.float64)
    rows = centres[torch.arange(n) % groups]
    rows = rows + torch.randn(n, K, generator=generator, dtype=torch.float64)
    means, clusters = shared.finch(rows, last=last)
    slow_means, slow = slow_finch(rows.tolist(), last)
    assert clusters.tolist() == slow
    assert torch.allclose(means, torch.tensor(slow_means, dtype=torch.float64), rtol=1e-9)


def test_blocks_of_rows_change_nothing(monkeypatch):
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    whole = shared.finch(rows)
    monkeypatch.setattr(shared, "BLOCK", 7)
    for a, b in zip(shared.finch(rows), whole, strict=True):
        assert torch.allclose(a, b)


@pytest.mark.parametrize(
    ("rows", "clusters"),
    [
        ([], []),
        ([[1.0, 2.0]], [0]),
        ([[1.0, 0.0], [0.0, 1.0]], [0, 0]),
        ([[1.0, 1.0]] * 5, [0] * 5),
        ([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]], [0, 1, 0, 1]),
        ([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], [0, 0, 0]),
    ],
)
def test_few_equal_and_zero_rows(rows, clusters):
    table = torch.tensor(rows).reshape(len(rows), 2)
    means, found = shared.finch(table)
    assert found.tolist() == clusters
    assert len(means) == len({*clusters}) and means.dtype == torch.float32
    for c in {*clusters}:
        assert torch.allclose(means[c], table[found == c].mean(0))
