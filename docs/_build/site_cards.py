"""The measured part of the methods' pages: sizes, cost, benchmark and published figures.

Payload sizes and costs take some seconds for each method, so they are measured once and stored;
``tests/update.py`` measures a new method.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import step_cost
from benchmark_figures import BENCHMARKS, benchmark_rows, settings_of
from markdown_tables import code, table
from measurements import Measurements, measure
from payload_sizes import DIRECTIONS, ROUNDS, SHOWN, SIZES, SYMBOLS, KeySize, fitted
from published_figures import PublishedRow, installed_reproductions, published_rows
from site_methods import PAGES
from step_cost import BASELINE

from protofl.hooks.discovery.registry import Registry
from protofl.hooks.wire.keys import declared_keys, reveals_of
from protofl_workbench.reproductions.benchmark import standings_tables
from protofl_workbench.reproductions.benchmark.standings import BenchmarkSetting, Standing
from protofl_workbench.reproductions.reproduction import Reproduction

STORED = Path(__file__).with_name("measured.json")
"""{method: its measurements}, a line for each method."""

FOLDER = "reference/methods"
UPDATE = "python tests/update.py"


def read_measured(path: Path = STORED) -> dict[str, Measurements]:
    """Return the stored measurements by method."""
    if not path.exists():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    return {name: Measurements.from_values(stored) for name, stored in values.items()}


def write_measured(measured: Mapping[str, Measurements], path: Path = STORED) -> None:
    """Store measurements, a line for each method."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(measured[name].to_values(), ensure_ascii=False)}"
        for name in sorted(measured)
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def update_measured(
    methods: Iterable[str], changed: Iterable[str], path: Path = STORED
) -> list[str]:
    """Measure changed and missing methods, and remove those that no longer exist.

    Returns:
        The methods that were measured.
    """
    known, changed = read_measured(path), {*changed}
    todo = [name for name in methods if name in changed or name not in known]
    kept = {name: known[name] for name in methods if name in known}
    measured = kept | {name: measure(name) for name in todo}
    if measured != known:
        write_measured(measured, path)
    return todo


@dataclass(frozen=True)
class Card:
    """What the sections below a method's page show.

    Attributes:
        name: Name of the method.
        method: The class.
        page: Its hand-written page.
        measured: Its payload sizes and costs.
        benchmark: Titles of settings of a benchmark, and its standings in them.
        reproduction: That benchmark.
        published: Published figures.
    """

    name: str
    method: type
    page: str
    measured: Measurements
    benchmark: Sequence[tuple[str, Standing]]
    reproduction: str
    published: Sequence[PublishedRow]

    @property
    def benchmark_command(self) -> str:
        """The command that makes the figures of the benchmark."""
        return f"protofl reproduce {self.reproduction} --only {self.name}"


def card_sections(name: str) -> str:
    """Return the sections below the page of a method."""
    stored = _stored().get(name)
    if stored is None:
        return f"Payload sizes and cost are not measured yet: `{UPDATE} {name}`."
    card = Card(
        name,
        Registry().load("method", name),
        (PAGES / f"{name}.md").read_text(encoding="utf-8"),
        stored,
        *_benchmark_of(name),
        published_rows(name, _reproductions()),
    )
    return measured_sections(card)


def measured_sections(card: Card) -> str:
    """Return the measured sections below the page: leaks, BatchNorm, sizes, cost, benchmark, published figures."""
    parts = [
        f"## What it reveals\n\n{_reveals(card)}",
        f"## BatchNorm\n\n{_batch_norm(card)}",
        f"## Payload sizes\n\n{_payload_sizes(card)}",
        f"## Cost\n\n{_cost(card)}",
        f"## Benchmark\n\n{_benchmark(card)}",
        f"## Published figures\n\n{_published(card)}",
    ]
    return "\n\n".join(parts)


def revealed(method: type) -> list[tuple[str, str]]:
    """Return each key of the uploads, and what a curious server learns from it."""
    keys = declared_keys(method, "uploads")
    return [(name, reveals_of(name, key)) for name, key in keys.items()]


def _reveals(card: Card) -> str:
    """Return what a curious server learns from the uploads."""
    if getattr(card.method, "uploads", None) is None:
        return "Not known: the method declares no `uploads`."
    rows = [(code(name), text) for name, text in revealed(card.method)]
    if not rows:
        return "Nothing: clients send nothing to the server."
    return (
        "What a curious server may learn about a client from each key of its uploads, with the "
        "default options and without `--with`. It follows from the keys that the method declares, "
        "and is not measured for this method; `protofl leak RUN` measures a run. Other clients see only downloads; of what one "
        "client alone has sent, such as the prototype of a class that only it has, they see "
        f"that client's own.\n\n{table(('key', 'reveals'), rows)}"
    )


def _batch_norm(card: Card) -> str:
    """Return what is averaged of BatchNorm layers, and what stays on a client."""
    measured = card.measured
    line = measured.batch_norm or f"Not measured: {measured.not_measured['batch_norm']}"
    return f"{line} This is what a toy run with the default options shows."


def _payload_sizes(card: Card) -> str:
    """Return the declared keys with their bytes by formula and as measured."""
    measured = card.measured
    if not measured.keys and not measured.payloads:
        return "No key of a payload is declared."
    if not measured.keys and any(payload.bytes for payload in measured.payloads):
        return "The method sends tensors and declares none: add `uploads` and `downloads`."
    if not measured.keys:
        return "Nothing travels: 0 bytes in each direction."
    sizes = SIZES[:SHOWN] if measured.payloads else ()
    head = ["key", "shape", "bytes", *(f"C={c}, K={k}" for c, k in sizes), "content"]
    rows = []
    for direction in DIRECTIONS:
        keys = [key for key in measured.keys if key.direction == direction]
        for key in keys:
            counted = ["not sent" if count is None else f"{count:,}" for count in key.measured]
            formula = key.formula or "–"
            if "parameters" in formula and (fit := fitted(key.measured)):
                formula += f": {fit}"
            row = [f"{direction}: {code(key.name)}", key.shape, formula, *counted[: len(sizes)]]
            rows.append([*row, key.meaning])
        payloads = [payload for payload in measured.payloads if payload.direction == direction]
        if payloads and keys:
            whole = [payload.bytes for payload in payloads]
            recorded = [payload.recorded_bytes for payload in payloads]
            for label, counts, formula in (
                ("in all", whole, fitted(whole)),
                ("in the record", recorded, ""),
            ):
                row = [f"{direction}: {label}", "", formula, *(f"{n:,}" for n in counts)]
                rows.append([*row[: 3 + len(sizes)], ""])
    text = f"Bytes of one payload between the server and one client. {_symbols(measured.keys)}"
    if measured.payloads:
        text += (
            f" The numbers are those of the last of {ROUNDS} rounds of toy runs with the default "
            "options, in which every client has all classes. Sums with C and K are those of these "
            "small nets. The record of a run adds the header of the file format, which names the "
            "tensors."
        )
    else:
        text += f" Not measured: {measured.not_measured['payloads']}"
    return f"{text}\n\n{table(head, rows)}"


def _symbols(keys: Sequence[KeySize]) -> str:
    """Return a sentence with the meanings of the sizes in the table."""
    used = {"C", "K", *(word for key in keys for word in re.findall(r"\w+", key.shape))}
    known = [f"{symbol}: {meaning}" for symbol, meaning in SYMBOLS.items() if symbol in used]
    return f"{'; '.join(known)}."


def _cost(card: Card) -> str:
    """Return the cost of a step beside that of `local`."""
    cost, versions = card.measured.cost, card.measured.versions
    if cost is None:
        return f"Not measured: {card.measured.not_measured['cost']}"
    low, ratio, high = cost.quartiles
    counts = [
        ("multiply-adds of a step", "client_multiply_adds", step_cost.STEPS),
        ("calls of ATen of a step", "client_calls", step_cost.STEPS),
        ("multiply-adds of the server in a round", "server_multiply_adds", 1),
        ("calls of ATen of the server in a round", "server_calls", 1),
    ]
    rows = [("processor time of a step", "", "", f"{ratio:.2f} ({low:.2f} … {high:.2f})")]
    for label, name, parts in counts:
        ours, local = (getattr(spent, name) / parts for spent in (cost.method, cost.baseline))
        times = f"{ours / local:.2f}" if parts > 1 else ""
        rows.append((label, f"{ours:,.0f}", f"{local:,.0f}", times))
    text = (
        "A step is one mini-batch of local training, with its share of everything else that a "
        "client computes in a round: prototypes, distillation, packing of payloads. Measured with "
        f"the default options on toy images: `{cost.models}`, {step_cost.SIDE}×"
        f"{step_cost.SIDE} pixels, {step_cost.CLASSES} classes, batches of {step_cost.BATCH}. "
        f"Rounds of `{card.name}` and `{BASELINE}` took turns in one process with one thread; the "
        f"ratio of times is the median of {step_cost.PAIRS} pairs of rounds, with the quartiles. "
        f"It depends on the model and on the machine ({versions['processor']}). Calls of ATen "
        f"depend on torch ({versions['torch']}) and on the processor, which may have fused "
        "kernels; multiply-adds do not."
    )
    return f"{text}\n\n{table(('', card.name, BASELINE, 'ratio'), rows)}"


HEADINGS = ("gap", "accuracy %", "worst client %", "MB up", "MB down", "lr", "weight")
"""Columns of the figures of the benchmark."""


def _benchmark(card: Card) -> str:
    """Return the gaps of the method to `local`."""
    if not card.benchmark:
        return f"No figure yet. `{card.benchmark_command}` makes one."
    text = (
        "Points of accuracy beside `local`, with 95 % intervals over seeds (▲ better, ▼ worse, = "
        "within half a point, ? not decided); megabytes of a client. "
        f"[Benchmark](../{BENCHMARKS[card.reproduction].name}.md) describes the settings, and "
        f"`{card.benchmark_command}` makes these figures."
    )
    rows = [
        (title, standing.method, *standings_tables.cells(standing, HEADINGS))
        for title, standing in card.benchmark
    ]
    return f"{text}\n\n{standings_tables.markdown_table(('setting', 'row', *HEADINGS), rows)}"


def _published(card: Card) -> str:
    """Return the published figures, a row for each row of a published table."""
    if not card.published:
        return "The installed reproductions have no row of this method."
    rows = [
        (
            f"{row.paper}, {row.place}: {row.title}{' (derived)' * row.derived}",
            "" if row.row == card.name else row.row,
            "; ".join(f"{label} {text}".strip() for label, text in row.figures.items()),
            code(f"protofl reproduce {row.reproduction}"),
        )
        for row in card.published
    ]
    head = ("where", "row", "figures", "command")
    return f"As printed in papers; the commands compute them again.\n\n{table(head, rows)}"


_stored = lru_cache(read_measured)
_reproductions = lru_cache(installed_reproductions)


def _benchmark_of(method: str) -> tuple[Sequence[tuple[str, Standing]], str]:
    """Return a method's titles and standings in the first benchmark that has it, and its name."""
    for name, (benchmark, settings) in _settings().items():
        if rows := benchmark_rows(method, benchmark, settings):
            return rows, name
    return (), name


@lru_cache(maxsize=1)
def _settings() -> dict[str, tuple[Reproduction, list[BenchmarkSetting]]]:
    """Return the benchmarks, and the standings of their committed records."""
    installed = {one.name: one for one in _reproductions()}
    return {
        name: (installed[name], settings_of(installed[name], folder))
        for name, folder in BENCHMARKS.items()
    }


def method_of(place: str) -> str:
    """Return the method of a page of the site; empty if it is another page."""
    folder, _, file = place.rpartition("/")
    return Path(file).stem if folder == FOLDER and file != "index.md" else ""
