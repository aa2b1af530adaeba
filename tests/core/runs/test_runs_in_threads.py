"""Tests of runs in threads: each run has its own results, or is refused."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.system.randomness import WAITING

Y = np.arange(120) % 3
DATA = (np.random.default_rng(0).normal(size=(120, 5)) + Y[:, None]).astype("float32"), Y
GIVEN = {
    "models": "mlp", "dataset": DATA, "clients": 2, "rounds": 2, "feature_dim": 8,
    "backend": "local", "dry_run": False, "progress": False,
}  # fmt: skip


def losses(folder, **options):
    result = pf.run("fedproto", out=folder, **GIVEN | options)
    return [row["train_loss"] for row in result.record]


@contextmanager
def beside(do):
    """Have another thread call a function again and again."""
    end = threading.Event()

    def work():
        while not end.is_set():
            do()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_run_waits_for_the_run_in_another_thread(tmp_path):
    alone = [losses(tmp_path / f"alone{seed}", seed=seed) for seed in (0, 1)]
    inside, waits = threading.Event(), threading.Event()

    def first(event):
        if isinstance(event, pf.events.RoundStarted) and not inside.is_set():
            inside.set()
            assert waits.wait(30), "the other run did not wait"

    def second(event):
        if isinstance(event, pf.events.Note) and event.text == WAITING:
            waits.set()

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(losses, tmp_path / "a", seed=0, progress=first)
        assert inside.wait(30)
        other = pool.submit(losses, tmp_path / "b", seed=1, progress=second)
        assert [one.result(), other.result()] == alone


@pytest.mark.parametrize("reuse", [False, True])
def test_runs_of_coroutines(tmp_path, reuse):
    place = "reuse" if reuse else "out"
    alone = [pf.run("fedproto", **{place: tmp_path / f"x{n}"}, **GIVEN, seed=n) for n in (0, 1)]

    async def both():
        given = [GIVEN | {place: tmp_path / f"y{n}", "seed": n} for n in (0, 1)]
        return await asyncio.gather(*[asyncio.to_thread(pf.run, "fedproto", **g) for g in given])

    for found, expected in zip(asyncio.run(both()), alone, strict=True):
        assert [r["train_loss"] for r in found.record] == [r["train_loss"] for r in expected.record]


class Plain:
    """A method that draws nothing."""

    terms = {"ce": "cross-entropy"}
    uploads = {"n": "a number"}

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        return {"ce": client.task.loss(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client):
        client.class_prototypes()
        return pf.Payload(n=torch.ones(1))


@pytest.mark.parametrize("dry_run", [True, False])
def test_draws_of_another_thread_are_found(tmp_path, dry_run):
    with beside(lambda: torch.rand(1)), pytest.raises(pf.ProtoflError) as caught:
        pf.run(Plain, out=tmp_path / "a", **GIVEN | {"dry_run": dry_run, "rounds": 5})
    assert caught.value.what == "another thread of this program draws from torch's global generator"
    assert "pf.sweep" in caught.value.do


@pytest.mark.parametrize("draw", [random.random, np.random.rand, np.random.default_rng])
def test_no_hook_is_blamed_for_draws_of_another_thread(tmp_path, draw):
    with beside(draw):
        pf.run(Plain, out=tmp_path / "a", **GIVEN | {"dry_run": True})


def test_a_callback_may_draw(tmp_path):
    alone = losses(tmp_path / "a")
    assert losses(tmp_path / "b", progress=lambda event: torch.rand(1)) == alone
