"""Tests of a Ray that does not start, without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import protofl as pf
from protofl_ray import cluster


def failing(error):
    def init(**options):
        raise error

    private = SimpleNamespace(
        services=SimpleNamespace(get_node_ip_address=lambda *given: "127.0.0.1")
    )
    return SimpleNamespace(
        is_initialized=lambda: False, init=init, shutdown=lambda: None, _private=private
    )


@pytest.mark.parametrize(
    "error",
    [
        Exception("The current node timed out during startup. This could happen because …"),
        TimeoutError(),
        AssertionError("raylet"),
        RuntimeError("no room"),
    ],
)
def test_a_ray_that_does_not_start_is_no_bug_of_ours(monkeypatch, error):
    monkeypatch.setattr(cluster, "_import", lambda: failing(error))
    with pytest.raises(pf.UsageError, match="Ray could not be started here") as caught:
        cluster.connect(cluster.Config(), 2)
    assert caught.value.near == (str(error) or "TimeoutError")
    assert "try again, use fewer --workers" in caught.value.do
