"""Sizes of payloads: the bytes that declared shapes give, and the bytes that a run counts.

A declared shape is an expression of sizes: ``[n, K]`` has n·K elements. Floats have 4 bytes and
integers 8 (``[n] int``). The bytes of a run's record are those of safetensors files, whose header
names the tensors; the header does not depend on the model, and is listed separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from protofl.hooks.wire.keys import declared_keys, matches, meaning_of, shape_of
from protofl.testing import toy
from toy_runs import ToyRuns, plan_of

SIZES = ((4, 8), (8, 8), (4, 16), (8, 16), (6, 12), (5, 10))
"""(number of classes C, feature width K) of the measured runs."""

SHOWN = 4
"""Number of `SIZES` in tables; the others are for `fitted`."""

ROUNDS = 3
"""Rounds of a measured run; the last one counts."""

SYMBOLS = {
    "C": "all classes",
    "K": "width of the features",
    "n": "classes with a row",
    "N": "public samples of the round",
    "r": "rank of the factors",
}
"""Sizes in shapes of keys, and their meanings."""

ITEM = {"int": 8, "bool": 1, "float64": 8}
"""Bytes of an element by the type in a shape; 4 for floats."""

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of an element by the type in a header."""

_DIMENSIONS = re.compile(r"\[(?P<sizes>[^\]]*)\](?: (?P<type>int|bool|float64))?")


def bytes_formula(shape: str) -> str:
    """Return the bytes of a tensor of a declared shape: ``4·n·K`` of ``[n, K]``.

    Alternatives are separated by "or". "4 · parameters" stands for tensors with the shapes of the
    parameters of a module. The result is empty if the declaration gives no shape.
    """
    if shape in ("as the parameter", "as the buffer"):
        return f"4 · {shape.removeprefix('as the ')}s"
    found = [
        "·".join([str(ITEM.get(match["type"], 4)), *_sizes(match)])
        for match in _DIMENSIONS.finditer(shape)
    ]
    return " or ".join(found)


def _sizes(match: re.Match[str]) -> list[str]:
    return [size.strip() for size in match["sizes"].split(",") if size.strip()]


@dataclass(frozen=True)
class KeySize:
    """A declared key of a payload and its measured bytes.

    Attributes:
        direction: ``up`` or ``down``.
        name: The key, as declared.
        shape: The declared shape; empty if nothing declares one.
        meaning: Its content.
        formula: The bytes as a formula of the shape's sizes.
        measured: Bytes in one payload at each of `SIZES`; None where the key was not sent. Empty if
            nothing was measured.
    """

    direction: str
    name: str
    shape: str
    meaning: str
    formula: str
    measured: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class PayloadSize:
    """Sizes of one payload at one of `SIZES`.

    Attributes:
        direction: ``up`` or ``down``.
        classes: Number of classes C.
        width: Feature width K.
        bytes: Bytes of all tensors.
        recorded_bytes: Bytes in the record of a run: with the header of the file format.
        recorded_floats: Floats in the record of a run.
    """

    direction: str
    classes: int
    width: int
    bytes: int
    recorded_bytes: int
    recorded_floats: int


DIRECTIONS = {"up": "uploads", "down": "downloads"}
"""{direction: attribute of a method that declares its keys}."""


def declared_sizes(method: type) -> tuple[KeySize, ...]:
    """Return the declared keys of a method with their formulas, uploads first; nothing measured."""
    return tuple(
        KeySize(
            direction,
            name,
            shape := shape_of(name, key),
            meaning_of(key),
            bytes_formula(shape),
        )
        for direction, attribute in DIRECTIONS.items()
        for name, key in declared_keys(method, attribute).items()
    )


def measure_payloads(runs: ToyRuns) -> tuple[tuple[KeySize, ...], tuple[PayloadSize, ...]]:
    """Run a method at all `SIZES`; return the declared keys and the payloads, as measured.

    All clients have all classes. The payloads are those of client 0 in the last round.

    Raises:
        ProtoflError: The method refuses the toy problem, or a run fails.
    """
    keys, payloads = declared_sizes(runs.cls), []
    counts: dict[tuple[KeySize, int], int] = {}
    for number, (classes, width) in enumerate(SIZES):
        federation = toy_federation(runs, classes, width)
        for direction, attribute in DIRECTIONS.items():
            blob = getattr(federation.pool, attribute)(ROUNDS - 1)[0]
            declared, whole = [key for key in keys if key.direction == direction], 0
            for name, entry in toy.header(blob).items():
                count = tensor_bytes(entry)
                whole += count
                key = declaration(name, declared)
                if key is not None:
                    counts[key, number] = counts.get((key, number), 0) + count
            floats = toy.count_floats(blob)
            payloads.append(PayloadSize(direction, classes, width, whole, len(blob), floats))
    measured = [
        replace(key, measured=tuple(counts.get((key, n)) for n in range(len(SIZES))))
        for key in keys
    ]
    return tuple(measured), tuple(payloads)


def toy_federation(runs: ToyRuns, classes: int, width: int) -> toy.Toy:
    """Return a finished toy run with C classes and the feature width K."""
    members = ([toy.CNN, toy.NORM], [toy.CNN], [toy.NORM])
    groups = [toy.group(*nets, K=width) for nets in members]
    plan = plan_of(runs, classes, (3, 3), toy.SIDE, groups, rounds=ROUNDS)
    federation = toy.Toy(plan)
    federation.rounds(ROUNDS)
    return federation


def fitted(measured: Sequence[int | None]) -> str:
    """Return bytes as a sum of multiples of C·K, C·C, K, C and 1: ``4·C·K + 4·C``.

    All `SIZES` but the last one determine the sum. The result is empty if the sum is wrong for the
    last one, as for ranks that depend on the training.

    Args:
        measured: Bytes at each of `SIZES`.
    """
    if len(measured) < len(SIZES) or None in measured:
        return ""
    products = np.array([(c * k, c * c, k, c, 1) for c, k in SIZES], dtype=float)
    counts = np.array(measured, dtype=float)
    factors = np.rint(np.linalg.solve(products[:-1], counts[:-1]))
    if not np.array_equal(products @ factors, counts):
        return ""
    names = ("·C·K", "·C·C", "·K", "·C", "")
    terms = zip(factors.astype(int).tolist(), names, strict=True)
    text = " + ".join(f"{factor}{name}" for factor, name in terms if factor)
    return text.replace("+ -", "− ") or "0"


def declaration(name: str, declared: Iterable[KeySize]) -> KeySize | None:
    """Return the declared key that covers a tensor's name; of several the longest."""
    found = [key for key in declared if matches(name, key.name)]
    return max(found, key=lambda key: len(key.name), default=None)


def tensor_bytes(entry: Mapping[str, Any]) -> int:
    """Return the bytes of a tensor, from its entry in the header of a safetensors file."""
    shape: list[int] = entry["shape"]
    return BYTES[entry["dtype"]] * prod(shape)
