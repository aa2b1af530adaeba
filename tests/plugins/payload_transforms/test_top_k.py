"""Tests of top-k: kept numbers, memory, and whose memory it is."""

from __future__ import annotations

import pytest
import torch
from coded_payloads import Scripted, rows_of, send

import protofl as pf
from protofl.testing import toy as toyfed

TOP = "top-k"


@pytest.fixture
def made(tmp_path):
    """Return ``made(**options)``: a toy federation with top-k."""

    def make(transforms=(TOP,), method="scripted", **options):
        options = {TOP: options} if options else {}
        extra = {("method", "scripted"): Scripted}
        plan = toyfed.make_plan(
            method, tmp_path, transforms=list(transforms), options=options, extra=extra
        )
        return toyfed.Toy(plan)

    return make


def slow(row, k):
    """Return a row with all but its k largest numbers set to 0."""
    kept = sorted(range(len(row)), key=lambda j: -abs(row[j]))[:k]
    return [value if j in kept else 0 for j, value in enumerate(row)]


# --- kept numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "k"), [({}, 4), ({"share": 0.3}, 12), ({"count": 7}, 7), ({"share": 0.001}, 1)]
)
def test_the_largest_of_each_row(made, options, k):
    sent = rows_of(0, 2, 3)
    wire, seen = send(made(**options), sent)
    assert wire["prototypes"].shape == wire["prototypes.indices"].shape == (3, k)
    assert wire["prototypes.indices"].dtype == torch.uint8
    assert seen["prototypes"].tolist() == [slow(row, k) for row in sent["prototypes"].tolist()]
    for name in ("classes", "counts"):
        assert torch.equal(wire[name], sent[name]) and torch.equal(seen[name], sent[name])


def test_the_largest_of_the_whole_tensor(made):
    sent = rows_of(0, 2, 3)
    _, seen = send(made(per="tensor", count=10), sent)
    flat = [value for row in sent["prototypes"].tolist() for value in row]
    assert seen["prototypes"].flatten().tolist() == slow(flat, 10)


def test_weights_are_taken_whole(made):
    weights = torch.randn(8, 6, 5, 5, generator=torch.Generator().manual_seed(1))
    wire, seen = send(made(), {"model/w": weights})
    assert wire["model/w"].shape == (1, 120) and wire["model/w.indices"].dtype == torch.int16
    assert seen["model/w"].flatten().tolist() == slow(weights.flatten().tolist(), 120)


@pytest.mark.parametrize(
    ("tensors", "whole"),
    [
        ({"prototypes": torch.ones(2, 1)}, True),  # a number with its place is larger than a number
        ({"x": torch.tensor(3.0)}, True),
        ({"model/buffer/running_var": torch.rand(100)}, True),
        ({"samples": torch.arange(100)}, True),
        ({"mask": torch.ones(100, dtype=torch.bool)}, True),
        ({"x": torch.rand(0, 50)}, True),
        ({"model/b": torch.rand(100)}, False),
    ],
)
def test_what_is_sent_whole(made, tensors, whole):
    wire, seen = send(made(), tensors)
    ((name, tensor),) = tensors.items()
    assert (set(wire) == {name}) == whole
    assert torch.equal(seen[name], tensor) == whole


def test_a_share_of_1_sends_all_and_no_places(made):
    sent = rows_of(0, 1)
    wire, seen = send(made(share=1), sent)
    assert set(wire) == set(sent) and torch.equal(seen["prototypes"], sent["prototypes"])


def test_only_some_keys(made):
    tensors = {
        "prototypes": torch.rand(2, 40),
        "model/w": torch.rand(9, 9),
        "head/w": torch.rand(9, 9),
    }
    for keys, encoded in (
        ("prototypes", {"prototypes"}),
        ("head/*, prototypes", {"head/w", "prototypes"}),
    ):
        wire, _ = send(made(keys=keys), tensors)
        assert {
            name.removesuffix(".indices") for name in wire if name.endswith("indices")
        } == encoded


@pytest.mark.parametrize(
    ("direction", "sides"),
    [("up", {"upload"}), ("down", {"download"}), ("both", {"upload", "download"})],
)
def test_direction(made, direction, sides):
    found = made(direction=direction)
    for side in ("upload", "download"):
        wire, _ = send(found, rows_of(0, 1), direction=side)
        assert ("prototypes.indices" in wire) == (side in sides)


def test_a_key_of_the_methods_own_that_clashes(made):
    with pytest.raises(pf.UsageError, match=r"the payload has 'x\.indices' already"):
        send(made(), {"x": torch.rand(2, 40), "x.indices": torch.ones(2)})


# --- memory ---------------------------------------------------------------------------------------


def test_memory_by_the_equations(made):
    """g = Top_k(m + v), m ← m + v − g, row by row in plain numbers."""
    found, k = made(error_feedback=True, count=3), 3
    memory = [[0.0] * 40 for _ in range(2)]
    for round in range(5):
        sent = rows_of(0, 3, seed=round)
        _, seen = send(found, sent, round=round)
        for n, row in enumerate(sent["prototypes"].tolist()):
            whole = [m + v for m, v in zip(memory[n], row, strict=True)]
            expected = slow(whole, k)
            assert seen["prototypes"][n].tolist() == pytest.approx(expected, abs=1e-6)
            memory[n] = [a - b for a, b in zip(whole, expected, strict=True)]
    kept = found.client(0).state[TOP]["prototypes"]
    assert kept["keys"].tolist() == [0, 3]
    assert kept["left"].flatten().tolist() == pytest.approx([*memory[0], *memory[1]], abs=1e-5)


def test_what_is_sent_and_what_is_left_add_up(made):
    """Nothing of the sum over rounds is lost: Σ g + m = Σ v."""
    found, total, seen_total = made(error_feedback=True), torch.zeros(3, 40), torch.zeros(3, 40)
    for round in range(6):
        update = torch.randn(3, 40, generator=torch.Generator().manual_seed(round))
        total += update
        seen_total += send(found, {"u/w": update}, round=round)[1]["u/w"]
    left = found.client(0).state[TOP]["u/w"]["left"]
    torch.testing.assert_close(seen_total + left, total)


def test_memory_stays_with_its_class(made):
    """Each row's memory follows its class, even if classes are missing or change order."""
    script = [(0, 1, 2), (2, 0), (1,), (3, 2, 1, 0)]
    together = made(error_feedback=True)
    alone = {c: made(error_feedback=True) for c in range(4)}
    for round, classes in enumerate(script):
        sent = rows_of(*classes, seed=round)
        _, seen = send(together, sent, round=round)
        for n, c in enumerate(classes):
            one = {"prototypes": sent["prototypes"][n : n + 1], "classes": torch.tensor([c])}
            _, expected = send(alone[c], one, round=round)
            assert torch.equal(seen["prototypes"][n], expected["prototypes"][0])


def test_memory_of_rows_with_classes_of_their_own(made):
    found = made(error_feedback=True)
    for round, classes in enumerate([(5, 6), (6, 5)]):
        rows = torch.eye(2, 40) if round == 0 else torch.zeros(2, 40)
        rows[:, 10:] = 0.5 if round == 0 else 0
        sent = {"spread": rows, "spread.classes": torch.tensor(classes), "classes": torch.arange(2)}
        send(found, sent, round=round)
    assert found.client(0).state[TOP]["spread"]["keys"].tolist() == [6, 5]


def test_memory_of_public_samples_goes_by_their_numbers(made):
    found = made(error_feedback=True, count=1)
    first = torch.tensor([[3.0, 2, 0, 0, 0, 0], [9, 8, 0, 0, 0, 0]])
    index = torch.tensor([4, 7])
    send(found, {"public_logits": first, "public_index": index})
    later = {"public_logits": torch.zeros(1, 6), "public_index": torch.tensor([7])}
    _, seen = send(found, later, round=1)
    assert seen["public_logits"].tolist() == [[0, 8, 0, 0, 0, 0]]


def test_memory_of_another_shape_is_forgotten(made):
    found = made(error_feedback=True)
    send(found, rows_of(0, 1, d=40))
    _, seen = send(found, rows_of(0, 1, d=60), round=1)
    _, fresh = send(made(error_feedback=True), rows_of(0, 1, d=60), round=1)
    assert torch.equal(seen["prototypes"], fresh["prototypes"])


def test_clients_remember_apart_and_the_server_nothing(made):
    found = made(error_feedback=True, direction="both")
    send(found, rows_of(0, 1), client=0)
    _, seen = send(found, rows_of(0, 1, seed=1), client=1, round=1)
    _, fresh = send(made(error_feedback=True), rows_of(0, 1, seed=1), client=1, round=1)
    assert torch.equal(seen["prototypes"], fresh["prototypes"])
    for round in range(2):
        _, seen = send(found, rows_of(0, 1), round=round, direction="download")
        assert torch.equal(seen["prototypes"], send(made(), rows_of(0, 1))[1]["prototypes"])
    assert TOP not in found.server.state or not found.server.state[TOP]


def test_without_it_nothing_is_remembered(made):
    found = made()
    send(found, rows_of(0, 1))
    assert not found.client(0).state.get(TOP)


@pytest.mark.parametrize(
    "wrong", [{"share": 0}, {"share": 1.5}, {"count": -1}, {"direction": "left"}]
)
def test_impossible_options_are_refused(made, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(pf.UsageError, match=f"{name}={value!r} is not possible"):
        made(**wrong)
