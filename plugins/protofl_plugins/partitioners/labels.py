"""Exact label sets of clients from a file: ``--partition labels:FILE``.

The file is JSON, and its keys are the clients in their order. A value is

    ["cat", "dog"]                           classes: what others leave of a class is shared evenly
    {"classes": ["cat", 3], "samples": 200}  the same, with 200 samples spread evenly over them
    {"cat": 50, "dog": 20}                   samples of each class

A class is its name, or its number where no class is named by a number. Which samples of a class a
client gets is drawn by the seed. With clients of disjoint sets no two clients share a class.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import protofl as pf
from protofl_plugins.datasets.client_columns import listed, numbered
from protofl_plugins.shared.text_files import read_lines

_FORMS = '["cat", "dog"], {"classes": ["cat"], "samples": 200} or {"cat": 50, "dog": 20}'


@dataclass(frozen=True)
class _Client:
    """The wish of a client.

    Attributes:
        name: Its name in the file.
        counts: {class number: samples}; None for a part of what others leave.
    """

    name: str
    counts: dict[int, int | None]


class Labels:
    """Exact label sets and sizes of clients from a JSON file (labels:FILE)."""

    argument = "path"
    leaves_out = "samples of classes that no client lists, or that clients ask for in part"

    class Config(pf.Config):
        """Options of labels."""

        path: Path = pf.Field(description='the JSON file: {"client": ["class", …]} and others')

    @pf.hookimpl
    def count_clients(self, config: Config) -> int:
        """One client per key of the file."""
        return len(_content(config.path))

    @pf.hookimpl
    def partition(
        self,
        labels: np.ndarray,
        num_classes: int,
        class_names: list[str],
        num_clients: int,
        generator: np.random.Generator,
        config: Config,
        notes: list[str],
    ) -> list[np.ndarray]:
        """Deal each class to the clients that list it."""
        source = str(config.path)
        content = _content(config.path)
        if len(content) != num_clients:
            raise pf.UsageError(
                f"{source} lists {len(content)} clients, not {num_clients}",
                do=f"use --clients {len(content)}, or leave it out",
            )
        clients = [_client(name, value, class_names, source) for name, value in content.items()]
        shuffled = generator.permutation(len(labels)).astype(np.int64)
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        sizes = np.bincount(labels, minlength=num_classes)
        rows = np.split(by_class, np.cumsum(sizes)[:-1])
        parts: list[list[np.ndarray]] = [[] for _ in clients]
        for c in range(num_classes):
            numbers = _numbers(clients, c, int(sizes[c]), class_names[c], source)
            cuts = np.cumsum(numbers)[:-1]
            for pieces, piece in zip(parts, np.split(rows[c][: sum(numbers)], cuts), strict=True):
                pieces.append(piece)
        dealt = [np.concatenate(pieces) for pieces in parts]
        notes.append(f"labels: {numbered([client.name for client in clients])}")
        if unused := len(labels) - sum(map(len, dealt)):
            notes.append(f"labels: no client gets {unused:,} of {len(labels):,} samples")
        return dealt


def _numbers(clients: list[_Client], c: int, size: int, name: str, source: str) -> list[int]:
    """Return how many samples of a class each client gets.

    Raises:
        UsageError: The class has too few.
    """
    exact = [client.counts.get(c, 0) or 0 for client in clients]
    free = [i for i, client in enumerate(clients) if client.counts.get(c, 0) is None]
    rest = size - sum(exact)
    if rest < len(free):
        who = [client.name for client in clients if client.counts.get(c, 0) != 0]
        shares = f", and at least 1 for each of {len(free)} more" if free else ""
        raise pf.UsageError(
            f"{source}: class {name!r} has {size:,} samples, too few for {sum(exact):,}{shares}",
            f"clients that list it: {listed(who)}",
            "ask for fewer samples, or let fewer clients have the class",
        )
    for place, i in enumerate(free):
        exact[i] = rest // len(free) + (place < rest % len(free))
    return exact


def _content(path: Path) -> dict[str, Any]:
    """Return the file's content.

    Raises:
        UsageError: It is not a JSON object with a client or more, or a client occurs twice.
    """
    lines = read_lines(pf.expand_user(path), "file of labels")
    text = "\n".join(line for _, line in lines)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise pf.UsageError(f"{path}: {twice!r} occurs twice", do="name each key once")
        return dict(pairs)

    try:
        content = json.loads(text, object_pairs_hook=once)
    except (json.JSONDecodeError, RecursionError) as error:
        line = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise pf.UsageError(
            f"{path} is not JSON: {getattr(error, 'msg', 'too deep')}{line}",
            do=f'write {{"client": VALUE, …}}, a VALUE being {_FORMS}',
        ) from None
    if not isinstance(content, dict) or not content:
        raise pf.UsageError(
            f"{path} names no clients", do=f'write {{"client": VALUE, …}}, a VALUE being {_FORMS}'
        )
    return content


def _client(name: str, value: object, classes: list[str], source: str) -> _Client:
    """Return a client's wish.

    Raises:
        UsageError: It has another form, or names no class of the data.
    """
    where = f"{source}: client {name!r}"
    if isinstance(value, list):
        value = {"classes": value}
    if not isinstance(value, dict):
        raise pf.UsageError(f"{where} has {value!r}", f"expected {_FORMS}")
    if isinstance(value.get("classes"), list):
        if unknown := [key for key in value if key not in ("classes", "samples")]:
            raise pf.UsageError(
                f"{where}: unknown key {unknown[0]!r}", "keys: classes, samples", _FORMS
            )
        numbers = [_number(item, classes, where) for item in value["classes"]]
        samples = value.get("samples")
        counts: dict[int, int | None] = dict.fromkeys(numbers)
        if samples is not None and numbers:
            total = _whole(samples, where)
            each, more = divmod(total, len(numbers))
            counts = {c: each + (place < more) for place, c in enumerate(numbers)}
    else:
        numbers = [_number(key, classes, where) for key in value]
        counts = {
            c: _whole(n, f"{where}, class {classes[c]!r}")
            for c, n in zip(numbers, value.values(), strict=True)
        }
    if len({*numbers}) < len(numbers) or not numbers:
        raise pf.UsageError(
            f"{where} {'lists a class twice' if numbers else 'lists no class'}",
            f"expected {_FORMS}",
        )
    if None not in counts.values() and sum(n or 0 for n in counts.values()) < 2:
        raise pf.UsageError(
            f"{where} asks for fewer than 2 samples",
            "a client needs at least 1 training and 1 test sample",
        )
    return _Client(name, counts)


def _whole(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise pf.UsageError(f"{where}: {value!r} samples", "expected a whole number from 0 on")
    return value


def _number(item: object, classes: list[str], where: str) -> int:
    """Return the number of a class.

    Raises:
        UsageError: There is no such class.
    """
    text = str(item)
    if text in classes:
        return classes.index(text)
    by_number = not any(name.lstrip("-").isdecimal() for name in classes)
    if by_number and text.isdecimal() and int(text) < len(classes):
        return int(text)
    near = difflib.get_close_matches(text, classes, n=1)
    asked = f"; did you mean {near[0]!r}?" if near else ""
    raise pf.UsageError(
        f"{where}: the data have no class {text!r}", f"classes: {listed(classes)}{asked}"
    )
