"""A toy federation with a hostile client, and hostile payloads."""

from __future__ import annotations

import json
import struct

import torch
from runtime_toys import make_plan

from protofl import Payload, events
from protofl.backends import Host
from protofl.federation.jobs.jobs import Train
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.hooks.transport.encoding import KEY
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.system.files.tensors import metadata_value

HOSTILE, ROUND = 2, 1


def raw(header, data=b""):
    """Return safetensors bytes with the given header: a mapping, text, or bytes."""
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def changed(**tensors):
    """Return a change to an upload; values are tensors, functions of the old tensor, or None."""

    def change(upload):
        found = Payload(upload)
        for name, value in tensors.items():
            tensor = value(upload[name]) if callable(value) else value
            if tensor is None:
                del found[name]
            else:
                found[name] = tensor
        return found.to_bytes()

    return change


def put(place, value):
    """Return a function that changes one number of a tensor."""

    def change(tensor):
        tensor = tensor.clone()
        tensor[place] = value
        return tensor

    return change


def forged(forms=None, **tensors):
    """Like `changed`, for an encoded upload; ``forms`` replaces its forms with this text."""

    def change(blob):
        text = metadata_value(blob, KEY) if forms is None else forms
        upload = Payload.from_bytes(changed(**tensors)(Payload.from_bytes(blob)))
        return upload.to_bytes({KEY: text} if text else None)

    change.of_bytes = True
    return change


class HostileHost(Host):
    """A host with a client that sends hostile uploads in some rounds.

    Args:
        plan: The run.
        changes: {round: function from an honest upload to a hostile one}.
        who: The hostile client, or several.
    """

    def __init__(self, plan, changes, who=HOSTILE):
        super().__init__(plan)
        self._changes, self._who = changes, {who} if isinstance(who, int) else who

    def run(self, jobs):
        for job, reply in super().run(jobs):
            mine = isinstance(job, Train) and job.client in self._who and job.round in self._changes
            if mine and job.when == "before_upload":
                change = self._changes[job.round]
                of_bytes = hasattr(change, "of_bytes")
                reply.blob = change(reply.blob if of_bytes else Payload.from_bytes(reply.blob))
            yield job, reply


def federation(
    change,
    method="fedproto",
    *,
    dry=True,
    who=HOSTILE,
    when=ROUND,
    told=None,
    recorded=None,
    **options,
):
    """Return a federation with a hostile client, ready for its first round.

    ``change`` makes the hostile upload of round ``when``, or is a mapping {round: change}.
    """
    plan = make_plan(method, **options)
    learned = dry_run(plan) if dry else {}
    host = HostileHost(plan, change if isinstance(change, dict) else {when: change}, who)
    who_takes_part = Participation(plan, recorded)
    found = Federation(plan, host, told or (lambda event: None), participation=who_takes_part)
    found.learned = learned
    found.start_trial(0)
    return found


TABLE = {
    "class 9 of 4": (changed(classes=put(0, 9)), "classes", "classes"),
    "class -1": (changed(classes=put(0, -1)), "classes", "classes"),
    "float classes": (changed(classes=torch.Tensor.float), "classes", "classes"),
    "another width": (changed(prototypes=lambda p: p[:, :3]), "prototypes", "shape"),
    "0 rows of width 2^62": (
        lambda upload: raw(
            {
                "prototypes": entry("F32", [0, 1 << 62], 0, 0),
                "classes": entry("I64", [0], 0, 0),
                "counts": entry("I64", [0], 0, 0),
            }
        ),
        "prototypes",
        "format",
    ),
    "fewer classes than rows": (changed(classes=lambda c: c[:-1]), "", "rows"),
    "a class twice": (changed(classes=lambda c: c[0].repeat(len(c))), "classes", "classes"),
    "int64 prototypes": (changed(prototypes=torch.Tensor.long), "prototypes", "dtype"),
    "float64 prototypes": (changed(prototypes=torch.Tensor.double), "prototypes", "dtype"),
    "1e30": (changed(prototypes=put((0, 0), 1e30)), "prototypes", "bound"),
    "40 MB that nobody asked for": (changed(extra=torch.zeros(10_000_000)), "extra", "names"),
    "a missing key": (changed(prototypes=None), "prototypes", "missing"),
    "nothing": (lambda upload: b"", "", "missing"),
    "garbage": (lambda upload: b"\x07" * 1000, "", "format"),
    "a huge shape": (
        lambda upload: raw({"prototypes": entry("F32", [1 << 40, 1 << 20], 0, 16)}, b"0" * 16),
        "prototypes",
        "format",
    ),
    "a header of 2^60 bytes": (lambda upload: struct.pack("<Q", 1 << 60) + b"{}", "", "format"),
    "deep JSON": (lambda upload: raw("[" * 100_000), "", "format"),
}
"""{upload: (change to an honest upload, key, rule)}. Before payload validation existed, a third of
these were accepted, and another third ended in a bare IndexError or RuntimeError."""

MORE = {
    "NaN": (changed(prototypes=put((0, 0), torch.nan)), "prototypes", "finite"),
    "no samples of a class": (changed(counts=put(0, 0)), "counts", "counts"),
    "2^62 samples of a class": (changed(counts=put(0, 1 << 62)), "counts", "counts"),
    "a name twice": (
        lambda upload: raw('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'),
        "",
        "format",
    ),
    "a name that cannot be printed": (
        lambda upload: raw({"\ud800\n\x1b[31m": entry("U8", [1], 0, 1)}, b"0"),
        r"\ud800\n\x1b[31m",
        "names",
    ),
    "bytes behind the last tensor": (lambda upload: upload.to_bytes() + b"0" * 9, "", "format"),
    "a shape of fractions": (
        lambda upload: raw({"classes": entry("I64", [1.0], 0, 8)}, b"0" * 8),
        "classes",
        "format",
    ),
    "more classes than there are": (
        changed(classes=torch.arange(5), counts=torch.ones(5).long(), prototypes=torch.ones(5, 6)),
        "classes",
        "classes",
    ),
    "an upload above the limit": (changed(extra=torch.zeros(600_000)), "", "size"),
    "metadata that are no words": (lambda upload: raw({"__metadata__": {"a": 1}}), "", "format"),
    "UTF-16": (lambda upload: raw("{}".encode("utf-16")), "", "format"),
}

TOP_K = {"transforms": {"top-k": None}, "options": {"top-k": {"count": 2}}}
INT8 = {"transforms": {"quantise": None}}
BOTH = {"transforms": {"top-k": None, "quantise": None}, "options": {"top-k": {"count": 2}}}


def form(*shape, classes=4):
    """Return forms of a toy upload with prototypes of this shape."""
    rows = {"prototypes": ["F32", *shape], "counts": ["I64", classes], "classes": ["I64", classes]}
    return json.dumps([rows])


def second(found):
    """Return a change to the forms of two transforms that updates the second form."""

    def change(blob):
        first, rows = json.loads(metadata_value(blob, KEY))
        return forged(json.dumps([first, rows | found]))(blob)

    change.of_bytes = True
    return change


ENCODED = {
    "a place outside of the row": (
        TOP_K,
        forged(**{"prototypes.indices": put((0, 1), 200)}),
        "",
        "encoding",
    ),
    "a place twice": (TOP_K, forged(**{"prototypes.indices": lambda i: i * 0}), "", "encoding"),
    "places of another type": (
        TOP_K,
        forged(**{"prototypes.indices": torch.Tensor.long}),
        "",
        "encoding",
    ),
    "float places": (TOP_K, forged(**{"prototypes.indices": torch.Tensor.float}), "", "encoding"),
    "places for other rows": (
        TOP_K,
        forged(**{"prototypes.indices": lambda i: i[:-1]}),
        "",
        "encoding",
    ),
    "no places": (TOP_K, forged(**{"prototypes.indices": None}), "", "encoding"),
    "no numbers": (TOP_K, forged(prototypes=None), "", "encoding"),
    "more than k numbers": (
        TOP_K,
        forged(
            **{
                "prototypes": lambda p: p.repeat(1, 2),
                "prototypes.indices": lambda i: torch.arange(4).to(i.dtype).repeat(len(i), 1),
            }
        ),
        "",
        "encoding",
    ),
    "a NaN that is encoded": (
        TOP_K,
        forged(prototypes=put((0, 0), torch.nan)),
        "prototypes",
        "finite",
    ),
    "1e30 that is encoded": (TOP_K, forged(prototypes=put((0, 0), 1e30)), "prototypes", "bound"),
    "a class 9 of 4 beside it": (TOP_K, forged(classes=put(0, 9)), "classes", "classes"),
    "places of what has none": (
        TOP_K,
        forged(**{"counts.indices": torch.zeros(4, 1, dtype=torch.uint8)}),
        "",
        "encoding",
    ),
    "what nobody asked for, encoded": (TOP_K, forged(extra=torch.zeros(9)), "extra", "names"),
    "a part of what nobody asked for": (
        TOP_K,
        forged(**{"extra.indices": torch.zeros(9)}),
        "extra.indices",
        "names",
    ),
    "no forms": (TOP_K, forged(""), "", "encoding"),
    "not encoded": (
        TOP_K,
        lambda upload: Payload(prototypes=torch.ones(4, 6)).to_bytes(),
        "",
        "encoding",
    ),
    "forms that are no JSON": (TOP_K, forged("{"), "", "encoding"),
    "forms as deep as can be": (TOP_K, forged("[" * 100_000), "", "encoding"),
    "too many forms": (TOP_K, forged("[null,null]"), "", "encoding"),
    "a form that is none": (TOP_K, forged("[7]"), "", "encoding"),
    "a shape that is none": (TOP_K, forged(form(-1, 6)), "", "encoding"),
    "a shape of fractions, encoded": (TOP_K, forged(form(4, 6.0)), "", "encoding"),
    "a type that is none": (TOP_K, forged(form(4, 6).replace("F32", "F33")), "", "encoding"),
    "a form of 4 GB": (TOP_K, forged(form(4, 1 << 28)), "", "size"),
    "a form of 2^62": (TOP_K, forged(form(4, 1 << 62)), "", "encoding"),
    "a form of another width": (TOP_K, forged(form(4, 7)), "prototypes", "shape"),
    "a form of another type": (
        TOP_K,
        forged(form(4, 6).replace("F32", "F64")),
        "prototypes",
        "dtype",
    ),
    "a form of float8": (
        TOP_K,
        forged(form(4, 6).replace("F32", "F8_E4M3")),
        "prototypes",
        "dtype",
    ),
    "a form of more classes than there are": (
        TOP_K,
        forged(form(5, 6, classes=5)),
        "classes",
        "classes",
    ),
    "a form without what is wanted": (
        TOP_K,
        forged(
            json.dumps([{"counts": ["I64", 4], "classes": ["I64", 4]}]),
            **{"prototypes": None, "prototypes.indices": None},
        ),
        "prototypes",
        "missing",
    ),
    "a scale that is NaN": (
        INT8,
        forged(**{"prototypes.scale": put(0, torch.nan)}),
        "prototypes.scale",
        "finite",
    ),
    "a scale that is infinite": (
        INT8,
        forged(**{"prototypes.scale": put(0, torch.inf)}),
        "prototypes.scale",
        "finite",
    ),
    "a scale below zero": (INT8, forged(**{"prototypes.scale": put(0, -1.0)}), "", "encoding"),
    "a scale by which it becomes infinite": (
        INT8,
        forged(**{"prototypes.scale": put(0, 3e38)}),
        "prototypes",
        "finite",
    ),
    "a scale above the bound": (
        INT8,
        forged(**{"prototypes.scale": put(0, 1e30)}),
        "prototypes",
        "bound",
    ),
    "one scale for all": (INT8, forged(**{"prototypes.scale": lambda s: s[:1]}), "", "encoding"),
    "numbers of 32 bits": (INT8, forged(prototypes=torch.Tensor.float), "", "encoding"),
    "numbers of another shape": (INT8, forged(prototypes=lambda q: q.flatten()), "", "encoding"),
    "a second form of 4 GB": (BOTH, second({"prototypes": ["F32", 4, 1 << 28]}), "", "size"),
    "a second form with another k": (BOTH, second({"prototypes": ["F32", 4, 3]}), "", "encoding"),
    "a second form of what nobody asked for": (BOTH, second({"x": ["F32", 1]}), "x", "names"),
}
"""{upload: (options, change to an encoded upload, key, rule)}."""

DOWNLOAD = Payload(prototypes=torch.ones(4, 6), classes=torch.arange(4))
"""An honest download of FedProto."""

DOWNLOADS = {
    "class 9 of 4": (changed(classes=put(0, 9)), "'classes' with class 9 of 4"),
    "class -1": (changed(classes=put(0, -1)), "'classes' with class -1 of 4"),
    "float classes": (changed(classes=torch.Tensor.float), "'classes' as F32"),
    "fewer classes than rows": (changed(classes=lambda c: c[:-1]), "with 4 rows"),
    "a class twice": (changed(classes=lambda c: c[0].repeat(4)), "'classes' with class 0 twice"),
    "NaN": (changed(prototypes=put((0, 0), torch.nan)), "'prototypes' with NaN or infinity"),
    "another key": (changed(extra=torch.zeros(3)), "'extra' which no downloads"),
    "garbage": (lambda download: b"\x07" * 100, "not a payload"),
    "deep JSON": (TABLE["deep JSON"][0], "not a payload"),
    "0 rows of width 2^62": (TABLE["0 rows of width 2^62"][0], "claims the shape"),
}
"""{download: (change to `DOWNLOAD`, text in the error)}."""

OPTIONS = {"upload_bound": 1e6, "upload_limit": 50}


def options_of(what):
    """Return the options of a run with this upload."""
    if what in ENCODED:
        return OPTIONS | ENCODED[what][0]
    return OPTIONS | ({"upload_limit": 1} if "limit" in what else {})


ALL = TABLE | MORE | {what: rest for what, (_, *rest) in ENCODED.items()}
"""{upload: (change to an honest upload, key, rule)}."""


def notes_of(table, begin=federation):
    """Return {upload: notes of its round} of runs that skip the hostile client.

    Uploads that need the same options share a run, one upload per round.

    Args:
        table: Keys of `ALL`.
        begin: Makes a federation from {round: change} and options.
    """
    groups = {}
    for what in table:
        groups.setdefault(repr(options_of(what)), []).append(what)
    found = {}
    for group in groups.values():
        told, changes = [], {n: ALL[what][0] for n, what in enumerate(group, ROUND)}
        options = options_of(group[0]) | {"on_bad_upload": "skip", "rounds": len(group) + 2}
        run = begin(changes, told=told.append, **options)
        for number in range(len(group) + 2):
            told.clear()
            line, _ = run.round(number)
            skipped = [HOSTILE] if number in changes else None
            assert line.get("skipped_uploads") == skipped, (number, group, told)
            if skipped:
                notes = [event.text for event in told if isinstance(event, events.Note)]
                found[group[number - ROUND]] = notes
    return found
