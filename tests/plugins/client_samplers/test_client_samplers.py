"""Tests of the built-in client samplers, against slow versions, and of the content of lists."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import choose
from protofl.testing import ClientSamplerContract

REGISTRY = Registry()


@functools.cache
def chosen(text, **options):
    return choose(REGISTRY, "client-sampler", text, options)


def asked(text, count, clients, sizes=None, losses=None, round=0, stream=0, **options):
    choice = chosen(text, **options)
    clients = np.asarray(clients)
    total = int(clients.max()) + 1
    found = choice.call(
        "select",
        round=round,
        count=count,
        clients=clients,
        sizes=np.ones(total, dtype=np.int64) if sizes is None else np.asarray(sizes),
        losses=np.full(total, np.nan) if losses is None else np.asarray(losses, dtype=float),
        generator=np.random.default_rng(stream),
    )
    return [*map(int, found)]


# --- random draws ---------------------------------------------------------------------------------


def test_uniform_is_the_draw_of_runs_before_there_were_client_samplers():
    for clients, count in ((20, 4), (3, 3), (50_000, 7)):
        drawn = np.random.default_rng(5).choice(clients, count, replace=False)
        assert asked("uniform", count, np.arange(clients), stream=5) == drawn.tolist()


def chances(sizes, count):
    """Return the probability of every client by definition: the sum over all orders of draws."""
    found = np.zeros(len(sizes))
    for order in itertools.permutations(range(len(sizes)), count):
        chance, left = 1.0, float(sum(sizes))
        for client in order:
            chance *= sizes[client] / left
            left -= sizes[client]
        found[[*order]] += chance
    return found


def test_size_draws_in_proportion_to_the_samples():
    sizes, there, draws = [9, 40, 160, 80, 1000], [0, 1, 2, 3], 2000
    counts = np.zeros(4)
    for stream in range(draws):
        counts[asked("size", 2, there, sizes, stream=stream)] += 1
    expected = chances(sizes[:4], 2)
    error = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(counts / draws - expected) < 4 * error + 1e-9).all()


# --- by loss --------------------------------------------------------------------------------------


def test_loss_asks_the_largest_of_all_where_all_are_candidates():
    losses = [0.5, 2.0, 0.1, 1.5, 1.0]
    assert sorted(asked("loss", 2, range(5), None, losses, candidates=10)) == [1, 3]
    assert sorted(asked("loss", 2, [0, 2, 4], None, losses, candidates=10)) == [0, 4]


def test_loss_asks_first_whom_nobody_has_heard_of():
    losses = [0.5, math.nan, 9.0, math.nan, 1.0]
    assert sorted(asked("loss", 3, range(5), None, losses, candidates=10)) == [1, 2, 3]


def test_loss_takes_the_largest_among_the_candidates_that_size_draws():
    sizes, losses = np.arange(1, 21) * 7, np.cos(np.arange(20)) + 2
    for stream in range(30):
        drawn = asked("size", 8, range(20), sizes, stream=stream)
        slow = sorted(sorted(drawn, key=lambda c: -losses[c])[:4])
        assert sorted(asked("loss", 4, range(20), sizes, losses, stream=stream)) == slow
        one = asked("loss", 4, range(20), sizes, losses, stream=stream, candidates=1)
        assert sorted(one) == sorted(asked("size", 4, range(20), sizes, stream=stream))


# --- lists ----------------------------------------------------------------------------------------


class TestLists(ClientSamplerContract):
    """Run `protofl check` on ``list``; tests/contract checks the other client samplers."""

    plugin = "list"

    def setup_method(self):
        super().setup_method()
        (self.folder / "clients.txt").write_text("0\n")
        type(self).argument = str(self.folder / "clients.txt")


def test_a_list_begins_again_and_leaves_out_who_is_away(tmp_path):
    path = tmp_path / "lists.txt"
    path.write_text("# who is asked\n0 3\n\n2, 1  # two\n4\n")
    rounds = [sorted(asked(f"list:{path}", 3, range(5), round=r)) for r in range(5)]
    assert rounds == [[0, 3], [1, 2], [4], [0, 3], [1, 2]]
    assert asked(f"list:{path}", 3, [0, 1, 2, 4], round=0) == [0]
    path.write_text("1\n2 3\n")
    assert asked(f"list:{path}", 3, range(5), round=0) == [1], "a file that has changed"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n5\n", r"line 2: '5' is not a client"),
        ("0\n\n1 x\n", r"line 3: 'x' is not a client"),
        ("-1\n", r"line 1: '-1' is not a client"),
        ("²\n", r"line 1: '²' is not a client"),
        ("0 1 0\n", r"line 1: client 0 stands there twice"),
        ("# nobody\n", r"lists no client"),
        (b"\xff\xfe", r"is not text: byte 0"),
    ],
)
def test_what_a_list_cannot_hold(tmp_path, text, words):
    path = tmp_path / "lists.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(pf.UsageError, match=words) as caught:
        asked(f"list:{path}", 3, range(5))
    assert str(path) in caught.value.what


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(pf.UsageError, match=r"none\.txt cannot be read: No such file"):
        asked(f"list:{tmp_path / 'none.txt'}", 3, range(5))
    with pytest.raises(pf.UsageError, match="needs an argument"):
        asked("list", 3, range(5))
