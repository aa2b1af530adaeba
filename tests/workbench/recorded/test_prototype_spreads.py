"""Tests of the distances of clients' prototypes to the server's, against loops."""

import math

import pytest
import torch

from protofl_workbench.recorded import prototype_spreads as F

M, C, K = 4, 5, 6
CLIENT_CLASSES = [[0, 1, 2, 3, 4], [0, 2, 3, 4], [1, 2, 3], [4]]


@pytest.fixture(scope="module")
def sent():
    """Return prototypes of four clients, [M, C, K], with NaN for classes that they lack."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(M, C, K, generator=generator, dtype=torch.float64)
    known = torch.tensor([[c in own for c in range(C)] for own in CLIENT_CLASSES])
    return rows.masked_fill(~known.unsqueeze(2), torch.nan), known


def test_distances_by_client(sent):
    rows, known = sent
    centres = torch.arange(C * K, dtype=torch.float64).reshape(C, K) / 10
    there = torch.tensor([True, True, True, True, False])
    found = F.distances_by_client(rows, known, centres, there).tolist()
    for client, own in enumerate(CLIENT_CLASSES):
        each = [math.dist(rows[client, c].tolist(), centres[c].tolist()) for c in own if c != 4]
        if each:
            assert found[client] == pytest.approx(sum(each) / len(each))
        else:
            assert math.isnan(found[client])
