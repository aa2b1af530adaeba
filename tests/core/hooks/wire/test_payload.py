"""Tests of payloads, class-indexed tables, and the server's global state."""

from __future__ import annotations

import math

import pytest
import torch

import protofl as pf
from protofl.errors import MissingKey
from protofl.hooks.wire.payload import GlobalState
from protofl.runs.dry_run.state_checks import MissingKeys, WatchedPayload


def t(*values):
    return torch.tensor(values)


def rows(*classes, width=2):
    """Return rows that show their class: class c is (c, c + 0.5, …)."""
    return torch.stack([torch.arange(width) * 0.5 + c for c in classes])


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a, b)


def test_round_trip_keeps_names_types_and_values():
    payload = pf.Payload(
        {
            "model/0.weight": torch.randn(3, 4),
            "model/buffer/count": torch.tensor(7),
            "half": torch.randn(2).to(torch.bfloat16),
            "double": torch.randn(2, dtype=torch.float64),
            "mask": t(True, False),
            "none": torch.empty(0, 5),
            "nan": t(math.nan, math.inf),
        }
    )
    back = pf.Payload.from_bytes(payload.to_bytes())
    assert list(back) == sorted(payload)
    for key in payload.keys() - {"nan"}:
        assert same(back[key], payload[key]), key
    assert torch.equal(back["nan"].isnan(), t(True, False))


def test_bytes_do_not_depend_on_layout_gradients_or_order():
    x = torch.randn(2, 3, 4, 5)
    plain = pf.Payload(a=x, b=t(1)).to_bytes()
    strided = x.to(memory_format=torch.channels_last).requires_grad_()
    assert pf.Payload(b=t(1), a=strided).to_bytes() == plain
    assert pf.Payload(
        a=x.clone().transpose(0, 1).contiguous().transpose(0, 1), b=t(1)
    ).to_bytes() == (plain)


def test_an_empty_payload_is_no_bytes():
    assert pf.Payload().to_bytes() == b""
    assert pf.Payload.from_bytes(b"") == {}
    assert pf.Payload().floats == 0


def test_one_tensor_under_two_names_travels():
    x = torch.randn(3)
    back = pf.Payload.from_bytes(pf.Payload(a=x, b=x, c=x[:2]).to_bytes())
    assert same(back["a"], x)
    assert same(back["b"], x)
    assert same(back["c"], x[:2])


def test_floats_count_floating_elements_except_buffers():
    payload = pf.Payload(
        {
            "prototypes": torch.zeros(3, 5),
            "classes": t(0, 1, 2),
            "counts": t(4, 4, 4),
            "samples": torch.tensor(12),
            "model/weight": torch.zeros(7),
            "model/half": torch.zeros(2, dtype=torch.float16),
            "model/buffer/bn.running_mean": torch.zeros(11),
            "model/buffer/bn.num_batches_tracked": torch.tensor(3),
        }
    )
    assert payload.floats == 15 + 7 + 2


def test_nonfinite_names_a_tensor():
    assert pf.Payload(a=torch.zeros(2), b=t(1, 2)).nonfinite() is None
    assert pf.Payload().nonfinite() is None
    for bad in (math.nan, math.inf, -math.inf):
        assert pf.Payload(a=torch.zeros(2), b=t(0.0, bad)).nonfinite() == "b"
    assert pf.Payload({"model/buffer/m": t(math.nan)}).nonfinite() == "model/buffer/m"


def test_a_table_has_a_row_for_every_class():
    payload = pf.Payload(
        prototypes=rows(3, 1), classes=t(3, 1), other=rows(0), **{"other.classes": t(0)}
    )
    table, known = payload.table("prototypes", 5)
    assert known.tolist() == [False, True, False, True, False]
    assert table[known].tolist() == rows(1, 3).tolist()
    assert not table[~known].any()
    table, known = payload.table("other", 5)
    assert known.tolist() == [True, False, False, False, False]
    assert payload.classes_of("other").tolist() == [0]
    assert payload.classes_of("prototypes").tolist() == [3, 1]
    empty = pf.Payload(prototypes=rows(1)[:0], classes=t(1)[:0])
    assert not empty.table("prototypes", 3)[1].any()
    ints = pf.Payload(counts=t(4, 6), classes=t(0, 2)).table("counts", 3)[0]
    assert same(ints, t(4, 0, 6))


def test_class_rows_and_table_are_inverse():
    dense, known = torch.randn(5, 3), t(True, False, True, True, False)
    payload = pf.class_rows(known, prototypes=dense, counts=torch.arange(5))
    assert payload["classes"].tolist() == [0, 2, 3]
    assert payload["counts"].tolist() == [0, 2, 3]
    table, mask = payload.table("prototypes", 5)
    assert torch.equal(mask, known)
    assert torch.equal(table, dense * known.unsqueeze(1))


def test_stack_rows_against_a_loop():
    uploads = {
        4: pf.Payload(prototypes=rows(2, 0), classes=t(2, 0)),
        9: pf.Payload(prototypes=rows(1), classes=t(1)),
        11: pf.Payload(prototypes=rows(0)[:0], classes=t(1)[:0]),
    }
    stacked, present = pf.stack_rows(uploads, "prototypes", 3)
    assert stacked.shape == (3, 3, 2)
    for m, upload in enumerate(uploads.values()):
        for c in range(3):
            where = (upload["classes"] == c).nonzero().flatten().tolist()
            assert bool(present[m, c]) == bool(where)
            expected = upload["prototypes"][where[0]] if where else torch.zeros(2)
            assert torch.equal(stacked[m, c], expected)
    with pytest.raises(MissingKey):
        pf.stack_rows(uploads | {12: pf.Payload(classes=t(1))}, "prototypes", 3)


def test_a_missing_key_says_what_is_there():
    payload = pf.Payload(prototypes=rows(1), classes=t(1))
    with pytest.raises(MissingKey) as caught:
        payload["counts"]
    error = caught.value
    assert error.key == "counts"
    assert "'counts'" in error.what
    assert "classes, prototypes" in error.near
    assert isinstance(error, KeyError)
    assert isinstance(error, pf.ProtoflError)
    with pytest.raises(MissingKey) as caught:
        pf.Payload(prototypes=rows(1)).table("prototypes", 3)
    assert caught.value.key == "classes"
    with pytest.raises(MissingKey, match="nothing"):
        pf.Payload()["x"]


def test_what_is_looked_for_in_vain_is_noted_where_it_is_watched():
    looks = MissingKeys()
    payload = WatchedPayload(pf.Payload(prototypes=rows(1), classes=t(1), head=rows(0)), looks)
    looks.reader = "fedproto.receive"
    before = payload.to_bytes()
    assert "prototypes" in payload
    assert payload.under("head") == {}
    assert "x" not in payload
    assert "y" not in payload.keys()  # reading the keys is not a look-up
    assert payload.get("z") is None
    looks.reader = "fedproto.inference"
    assert "x" not in payload
    with pytest.raises(MissingKey):
        payload["w"]
    assert looks.training == {
        "x": "fedproto.receive",
        "head/*": "fedproto.receive",
        "w": "fedproto.inference",
    }
    assert payload.to_bytes() == before


def test_reading_a_payload_writes_nothing():
    payload = pf.Payload(prototypes=rows(1), classes=t(1))
    before = dict(vars(payload))
    assert "x" not in payload
    with pytest.raises(MissingKey):
        payload["x"]
    assert vars(payload) == before


def test_select_takes_the_classes_along():
    payload = pf.Payload(
        prototypes=rows(1, 2),
        counts=t(5, 5),
        logits=rows(0),
        classes=t(1, 2),
        **{"logits.classes": t(0)},
    )
    assert set(payload.select("prototypes", "absent")) == {"prototypes", "classes"}
    assert set(payload.select("logits")) == {"logits", "logits.classes"}
    assert set(payload.select("logits", "counts")) == {
        "logits",
        "logits.classes",
        "counts",
        "classes",
    }
    assert payload.select("absent") == {}
    assert isinstance(payload.select("counts"), pf.Payload)


def test_select_takes_tensors_that_have_no_classes():
    payload = pf.Payload(public_logits=torch.zeros(3, 2), samples=torch.tensor(3))
    assert set(payload.select("public_logits", "samples")) == {"public_logits", "samples"}


def test_under_takes_the_prefix_off():
    payload = pf.Payload({"head/weight": t(1.0), "head/buffer/m": t(2.0), "header/x": t(3.0)})
    assert set(payload.under("head")) == {"weight", "buffer/m"}


# --- global state
# -----------------------------------------------------------------------------------


def held(global_state, name):
    """Return {class: row} of a tensor in the global state."""
    classes = global_state.classes_of(name).tolist()
    return dict(zip(classes, global_state[name].tolist(), strict=True))


def true_rows(*classes):
    return dict(zip(classes, rows(*classes).tolist(), strict=True))


def update(name, *classes):
    return pf.Payload({name: rows(*classes)}, classes=torch.tensor(classes))


def test_merging_keeps_every_rows_class():
    global_state = GlobalState()
    global_state.merge(update("a", 0, 1))
    global_state.merge(update("b", 1, 2))
    assert held(global_state, "a") == true_rows(0, 1)
    assert held(global_state, "b") == true_rows(1, 2)
    global_state.merge(update("c", 0, 2))
    assert [held(global_state, n) for n in "abc"] == [
        true_rows(0, 1),
        true_rows(1, 2),
        true_rows(0, 2),
    ]
    global_state.merge(update("a", 3))
    assert [held(global_state, n) for n in "abc"] == [
        true_rows(3),
        true_rows(1, 2),
        true_rows(0, 2),
    ]
    assert "a.classes" not in global_state


def test_merging_in_every_sequence():
    steps = [
        ("a", (0, 1)),
        ("b", (1, 2)),
        ("a", (2, 0)),
        ("c", (0, 1, 2)),
        ("b", (0, 1)),
        ("a", ()),
    ]
    for start in range(len(steps)):
        global_state, expected = GlobalState(), {}
        for name, classes in steps[start:] + steps[:start]:
            if classes:
                global_state.merge(update(name, *classes))
                expected[name] = true_rows(*classes)
            else:
                global_state.merge({})
            assert {n: held(global_state, n) for n in expected} == expected


def test_merging_the_same_classes_in_another_order():
    global_state = GlobalState(update("a", 0, 1))
    global_state.merge(update("b", 1, 0))
    assert held(global_state, "a") == true_rows(0, 1)
    assert held(global_state, "b") == true_rows(1, 0)


def test_merging_equal_classes_adds_nothing():
    global_state = GlobalState(update("a", 0, 1))
    global_state.merge(update("b", 0, 1))
    assert set(global_state) == {"a", "b", "classes"}


def test_own_classes_travel_with_their_tensor():
    global_state = GlobalState(update("a", 0, 1))
    global_state.merge(pf.Payload({"b": rows(2), "b.classes": t(2)}))
    assert held(global_state, "b") == true_rows(2)
    assert held(global_state, "a") == true_rows(0, 1)
    global_state.merge(pf.Payload({"b": rows(0, 3), "b.classes": t(0, 3)}))
    assert held(global_state, "b") == true_rows(0, 3)
    global_state.merge(pf.Payload({"b": rows(1, 4), "classes": t(1, 4)}))
    assert held(global_state, "b") == true_rows(1, 4)
    assert held(global_state, "a") == true_rows(0, 1)


def test_what_is_not_indexed_by_class_gets_no_classes():
    global_state = GlobalState(
        pf.Payload(
            {"head/weight": rows(0, 1), "public_logits": rows(0, 1), "samples": torch.tensor(2)}
        )
    )
    global_state.merge(update("a", 0, 1))
    global_state.merge(update("b", 2, 3))
    own = {key for key in global_state if key.endswith(".classes")}
    assert own == {"a.classes"}


def test_merged_global_state_can_be_sent():
    global_state = GlobalState(pf.Payload(a=rows(0, 1), b=rows(0, 1) + 1, classes=t(0, 1)))
    global_state.merge(update("c", 1, 2))
    back = pf.Payload.from_bytes(global_state.to_bytes())
    assert back["a.classes"].tolist() == back["b.classes"].tolist() == [0, 1]
    assert back["classes"].tolist() == [1, 2]
