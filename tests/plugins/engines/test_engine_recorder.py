"""The capture of a step, held against what PyTorch's notes on CUDA graphs ask for.

There may be no CUDA device here: its streams and graphs are played by objects that write down
what is asked of them.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from protofl_plugins.engines import recorder
from protofl_plugins.engines.recorder import CUDAGraph, Plain


@pytest.fixture
def log(monkeypatch):
    """What was done, in order."""
    done = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            done.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self):
            done.append("replay")

        def pool(self):
            return "pool"

    @contextmanager
    def stream(chosen):
        done.append(f"on {chosen.name}")
        yield
        done.append(f"off {chosen.name}")

    @contextmanager
    def graph(made, pool=None):
        done.append(f"capture into {pool}")
        yield
        done.append("captured")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return done


def test_warm_up_on_a_side_stream_then_capture(log):
    made = CUDAGraph(lambda: log.append("step"), "a pool")
    assert log == [
        "side waits for current",
        "on side",
        *["step"] * recorder.WARM_UP,
        "off side",
        "current waits for side",
        "capture into a pool",
        "step",
        "captured",
    ]
    made.replay()
    assert log[-1] == "replay"
    assert made.pool == "pool"


def test_without_a_device_the_step_runs_again():
    done = []
    made = Plain(lambda: done.append(1), warm_up=2)
    assert len(done) == 2
    made.replay()
    assert len(done) == 3
