"""Fixtures of the method tests: toy federations and random float64 payloads."""

from __future__ import annotations

import pytest
import torch

import protofl as pf
from protofl.testing import toy as toyfed


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def toy(tmp_path):
    """Return ``toy(method, set={…}, **options)``: a toy federation before its first round."""

    def make(method, set=None, **options):
        if set:
            options["options"] = {method: set, **options.get("options", {})}
        return toyfed.Toy(toyfed.make_plan(method, tmp_path, **options))

    return make


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture(name="randn")
def _randn():
    return randn


@pytest.fixture
def rows():
    """Return ``rows(classes, K, seed)``: a payload of prototypes, and the same as {class: row}."""

    def make(classes, K=8, seed=0, counts=None):
        table = randn(len(classes), K, seed=seed)
        payload = pf.Payload(prototypes=table, classes=torch.tensor(classes))
        if counts is not None:
            payload["counts"] = torch.tensor(counts)
        return payload, dict(zip(classes, table.tolist(), strict=True))

    return make
