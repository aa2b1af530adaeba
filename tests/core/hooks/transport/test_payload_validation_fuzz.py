"""Tests of mutated uploads: each is accepted or refused by name, never anything else."""

from __future__ import annotations

import json
import random
import struct
from copy import deepcopy

import numpy as np
import pytest
import torch
from hostile_uploads import entry, raw
from width_toys import nets_of

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.transport.encoding import KEY
from protofl.hooks.transport.rules import RULES
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.system.files.tensors import metadata_value
from protofl.testing import toy
from protofl.testing.donors import methods_to_run

METHODS = {
    name: getattr(method, "check_options", {})
    for name in methods_to_run(Registry(), "protofl")
    if getattr(method := Registry().load("method", name), "uploads", None)
}
"""{method: options for short runs}, for this distribution's methods with uploads."""
del METHODS["centralised"]  # all data lie in one place: it trusts the labels that it is sent
METHODS |= {
    "fedgen": {"epochs": 2},
    "fedplvm": {"lambda": 1},
    "fedpkd": {"epochs": "one"},
    "fedtgp": {"S": 2},
}
ENCODED = {
    "fedproto top-k": {"transforms": ["top-k"], "options": {"top-k": {"count": 2}}},
    "fedproto quantise": {"transforms": ["quantise"]},
    "fedgen top-k quantise": {
        "transforms": ["top-k", "quantise"],
        "options": {"fedgen": {"epochs": 2}, "top-k": {"share": 0.3}},
    },
    "fml quantise": {"transforms": ["quantise"], "options": {"quantise": {"to": "fp16"}}},
}
"""Runs whose uploads are encoded by transforms."""
QUICK, LONG = 30, 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def needs_public(method):
    return getattr(Registry().load("method", method), "needs_public", False)


def trained(name, folder):
    """Return a federation after its dry run and one round, and the uploads of this round."""
    path = folder / "public.npz"
    if not path.exists():
        x = np.random.default_rng(0).standard_normal((12, toy.SIDE, toy.SIDE))
        np.savez(path, x_train=x.astype(np.float32), y_train=np.arange(12) % 4)
    method = name.partition(" ")[0]
    options = {"public": f"npz:{path}"} if needs_public(method) else {}
    options["models"] = toy.group(*nets_of(method, [toy.CNN, toy.NORM], [toy.NORM]))
    sets = {"options": {method: METHODS[method]}} if METHODS[method] else {}
    plan = toy.make_plan(method, folder, **options, **ENCODED.get(name, sets))
    made = toy.Toy(plan)
    made.federation.learned = dry_run(plan)
    made.federation.start_trial(0)
    made.rounds(1)
    return made, made.pool.uploads(0)


# --- mutations ------------------------------------------------------------------------------------


def flip(blob, draw):
    data = bytearray(blob)
    for _ in range(draw.choice((1, 1, 4, 64))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def cut(blob, draw):
    return blob[: draw.randrange(len(blob))]


def longer(blob, draw):
    return blob + draw.randbytes(draw.choice((1, 8, 1000)))


def garbage(blob, draw):
    return draw.randbytes(draw.randrange(2000))


def header(blob, draw):
    """Change one value of the header."""
    (length,) = struct.unpack_from("<Q", blob)
    values = json.loads(blob[8 : 8 + length])
    about = values.pop("__metadata__", None)
    name = draw.choice(sorted(values))
    what = draw.choice(("dtype", "shape", "data_offsets", "name", "gone", "more", "whole"))
    odd = [
        None,
        [],
        {},
        "",
        -1,
        0,
        1.5,
        True,
        1 << 62,
        1 << 80,
        [1 << 62],
        [0, 1 << 62],
        [-1],
        "F8",
    ]
    if what == "name":
        values[draw.choice(("classes", "model/x", "x" * 5000, "\ud800", "", "/", "a/b"))] = (
            values.pop(name)
        )
    elif what == "gone":
        del values[name]
    elif what == "more":
        values[draw.choice(("y", "head/y"))] = entry("F32", [0], 0, 0)
    elif what == "whole":
        values[name] = draw.choice(odd)
    else:
        values[name][what] = draw.choice([*odd, "I64", "BOOL", [0, 0], values[name]["shape"][::-1]])
    return raw(values | ({"__metadata__": about} if about else {}), blob[8 + length :])


def forms(blob, draw):
    """Change one value of the forms; the tensors stay valid."""
    text = metadata_value(blob, KEY)
    if not text:
        return tensors(blob, draw)
    rows = json.loads(text)
    row = draw.choice([row for row in rows if row] or [{}])
    name = draw.choice([*row, "extra", "extra.indices"])
    kinds = ("F32", "I64", "I8", "F8_E4M3", "BOOL", "X", 3)
    size = draw.choice((0, 1, 2, 7, 100, 1 << 31, 1 << 62, -1, 1.5, None, "1"))
    changes = [
        lambda: row.pop(name, None),
        lambda: row.update({name: [draw.choice(kinds), *row.get(name, [0, 1])[1:]]}),
        lambda: row.update({name: [*row.get(name, ["F32"]), size]}),
        lambda: row.update({name: [*row.get(name, ["F32", 1])[:-1], size]}),
        lambda: row.update({name: draw.choice((None, [], {}, "F32", 7))}),
        lambda: rows.append(draw.choice((None, row))),
        lambda: rows.pop(),
    ]
    draw.choice(changes)()
    return pf.Payload.from_bytes(blob).to_bytes({KEY: json.dumps(rows)})


def tensors(blob, draw):
    """Change one tensor; the bytes stay valid."""
    payload, text = pf.Payload.from_bytes(blob), metadata_value(blob, KEY)
    name = draw.choice(sorted(payload))
    value = payload[name]
    kinds = (torch.float64, torch.int64, torch.bool, torch.float16, torch.uint8, torch.int32)
    changes = [
        lambda v: v.to(draw.choice(kinds)),
        lambda v: v[:-1] if v.dim() else v.reshape(1),
        lambda v: torch.cat([v, v]) if v.dim() else v.repeat(3),
        lambda v: v.unsqueeze(0),
        lambda v: v.transpose(0, -1) if v.dim() else -v,
        lambda v: torch.full_like(v, draw.choice((0, -1, 1, 7, 100))),
        lambda v: v * draw.choice((-1, 1000)),
        lambda v: v.new_zeros(draw.choice([(), (0,), (0, 3), (3, 0, 2), (1, 1, 1, 1)])),
        lambda v: torch.full_like(v.float(), draw.choice((torch.nan, torch.inf, 1e30))),
        lambda v: payload[draw.choice(sorted(payload))],
        lambda v: v.flip(0) if v.dim() else v + 1,
    ]
    payload[name] = draw.choice(changes)(value).contiguous()
    if draw.random() < 0.2:
        del payload[draw.choice(sorted(payload))]
    if draw.random() < 0.1:
        payload[draw.choice(("extra", "prototypes.classes", "public_index"))] = torch.zeros(
            3
        ).long()
    return payload.to_bytes({KEY: text} if text else None)


MUTATIONS = (flip, cut, longer, garbage, header, header, tensors, tensors, tensors, forms)


# --- tests ----------------------------------------------------------------------------------------


def fuzz(method, folder, count):
    made, honest = trained(method, folder)
    server = made.federation._server_side
    state, draw = server.state, random.Random(f"fuzz {method}")
    admitted = 0
    for _ in range(count):
        victim, blobs = draw.choice(sorted(honest)), dict(honest)
        blobs[victim] = draw.choice(MUTATIONS)(honest[victim], draw)
        uploads, faults = server.validation.admit(blobs, made.plan.device)
        assert uploads.keys() | faults.keys() == honest.keys()
        assert faults.keys() <= {victim}, f"{faults} of clients that sent what they should"
        for fault in faults.values():
            assert fault.rule in RULES and fault.problem.isprintable() and len(fault.problem) < 400
        if faults:
            continue
        admitted += 1
        server.state = deepcopy(state, {id(state.info): state.info})
        try:
            server.learn(uploads)
        except pf.RunFailure as error:  # finite but large numbers can overflow
            assert "with NaN or infinity" in error.what, error.what
        finally:
            server.state = state
    return admitted


@pytest.mark.parametrize(
    "method", ["fedproto", "fedgen", "fedkd", "fedproto top-k", "fml quantise"]
)
def test_mutated_uploads(method, folder):
    assert fuzz(method, folder, QUICK) < QUICK


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, *ENCODED])
def test_many_mutated_uploads(method, folder):
    assert 0 < fuzz(method, folder, LONG) < LONG
