"""Method cards as Markdown and as JSON values; the site's pages of methods are made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from protofl.hooks.plugin.providers import Baseline
from protofl.hooks.wire.keys import declared_keys, reveals_of
from protofl.system.options.plugin_options import Config, VariantConfig
from protofl_cli.options.options import AFTER_NAME, plugin_option_rows, value_text
from protofl_cli.screens.markdown_tables import code, table
from protofl_workbench.cards import step_cost
from protofl_workbench.cards.benchmark_figures import BENCHMARK, BenchmarkRow, benchmark_rows
from protofl_workbench.cards.measurements import Measurements
from protofl_workbench.cards.method_pages import MethodPage, page_of
from protofl_workbench.cards.payload_sizes import (
    DIRECTIONS,
    ROUNDS,
    SHOWN,
    SIZES,
    SYMBOLS,
    KeySize,
    fitted,
)
from protofl_workbench.cards.published_figures import PublishedRow, published_rows
from protofl_workbench.cards.step_cost import BASELINE
from protofl_workbench.reproductions.benchmark import standings_tables
from protofl_workbench.reproductions.benchmark.standings import (
    BETTER,
    EQUAL,
    WORSE,
    BenchmarkSetting,
)
from protofl_workbench.reproductions.reproduction import Reproduction

OPTIONS_MARK = re.compile(r"^<!-- generated: options [\w-]+ -->$", re.MULTILINE)
"""The place of the table of options in a page."""

PROGRAM = "this program"
"""Distribution of classes that are not installed."""

_LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\((?![a-z]+:)[^)\s]*\)")


@dataclass(frozen=True)
class MethodCard:
    """The content of a method's card.

    Attributes:
        name: Name of the method.
        plugin: Distribution, version and target of the class.
        method: The class.
        page: Its page.
        measured: Its payload sizes and costs.
        benchmark: Its figures in the benchmark.
        benchmark_command: The command that makes them.
        published: Published figures.
    """

    name: str
    plugin: Mapping[str, str]
    method: type
    page: MethodPage
    measured: Measurements
    benchmark: Sequence[BenchmarkRow]
    benchmark_command: str
    published: Sequence[PublishedRow]


def make_card(
    name: str,
    method: type,
    plugin: Mapping[str, str],
    measured: Measurements,
    settings: Sequence[BenchmarkSetting],
    reproductions: Sequence[Reproduction],
) -> MethodCard:
    """Make the card of a method.

    Args:
        name: Name of the method.
        method: The class.
        plugin: Distribution, version and target of the class.
        measured: Its measurements.
        settings: Standings of the benchmark.
        reproductions: The reproductions with published figures, and the benchmark.
    """
    benchmark = next((one for one in reproductions if one.name == BENCHMARK), None)
    rows = benchmark_rows(name, benchmark, settings) if benchmark else []
    how = "--only" if benchmark and name in benchmark.rows else "--add"
    return MethodCard(
        name,
        plugin,
        method,
        page_of(name, method),
        measured,
        rows,
        f"protofl reproduce {BENCHMARK} {how} {name}",
        published_rows(name, reproductions),
    )


# --- Markdown ---------------------------------------------------------------------------------


def markdown(card: MethodCard) -> str:
    """Return the card as one Markdown page; relative links, which lead to the site, become text."""
    installed = card.plugin["distribution"] != PROGRAM
    origin = "{distribution} {version}".format(**card.plugin) if installed else "not installed"
    facts = [origin, code(card.plugin["target"])]
    facts += [f"clients share: {card.page.shares}"] * bool(card.page.shares)
    parts = [f"# {card.name}", " · ".join(facts)]
    parts += [_LINK.sub(lambda match: match["text"], _page(card)), measured_sections(card)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _page(card: MethodCard) -> str:
    """Return the page of a method, or one of its docstring and declarations."""
    options = option_table(card.method)
    if card.page.written:
        return OPTIONS_MARK.sub(lambda match: options, card.page.text)
    parts = [card.page.text]
    if card.plugin["distribution"] != PROGRAM:
        parts.append(f"```\nprotofl run {card.name}\n```")
    parts += ["## Options", options or "It has no options of its own."]
    terms = getattr(card.method, "terms", Baseline.terms)
    rows = [(code(term), meaning) for term, meaning in terms.items()]
    parts += ["## Loss terms", table(("term", "meaning"), rows)]
    parts += [
        "## Weak points",
        "Not described: the method has no page. A page is a Markdown file with the method's name, "
        f"`{card.name}.md`, next to its module.",
    ]
    return "\n\n".join(parts)


def option_rows(plugin: type, prefix: str) -> list[tuple[str, str, str, str]]:
    """Return option, default, range and meaning of a plugin's options.

    Args:
        plugin: The plugin.
        prefix: Word before the option, as ``--set`` takes it.
    """
    return [
        (code(prefix + key), default, accepted, meaning)
        for key, default, accepted, meaning in plugin_option_rows(plugin)
        if default != AFTER_NAME  # users write it after the name of the plugin
    ]


def option_table(method: type) -> str:
    """Return the options of a method, and how published code differs; empty if it has none."""
    rows = option_rows(method, "")
    options = table(("option", "default", "range", "meaning"), rows) if rows else ""
    config: type[Config] = getattr(method, "Config", Config)
    deviations = config.deviations if issubclass(config, VariantConfig) else {}
    if not deviations:
        return options
    different = [
        (code(name), d.where, value_text(d.paper), value_text(d.official), d.note)
        for name, d in deviations.items()
    ]
    head = "option", "where", "paper", "official", "difference"
    published = "The published code differs, and `--set variant=official` follows it:"
    return f"{options}\n\n{published}\n\n{table(head, different)}"


def measured_sections(card: MethodCard) -> str:
    """Return the sections below the page: leaks, sizes, cost, benchmark, published figures."""
    parts = [
        f"## What it reveals\n\n{_reveals(card)}",
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


def _reveals(card: MethodCard) -> str:
    """Return what a curious server learns from the uploads."""
    if getattr(card.method, "uploads", None) is None:
        return "Not known: the method declares no `uploads`."
    rows = [(code(name), text) for name, text in revealed(card.method)]
    if not rows:
        return "Nothing: clients send nothing to the server."
    return (
        "What a curious server learns about a client from each key of its uploads, with the "
        "default options and without `--with`. It follows from the keys that the method declares; "
        "`protofl leak RUN` measures it for a run. Other clients see only downloads; of what one "
        "client alone has sent, such as the prototype of a class that only it has, they see "
        f"that client's own.\n\n{table(('key', 'reveals'), rows)}"
    )


def _payload_sizes(card: MethodCard) -> str:
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


def _cost(card: MethodCard) -> str:
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


OUTCOMES = {
    BETTER: "Significantly more accurate than `local`",
    EQUAL: "Not significantly different from `local`",
    WORSE: "Significantly less accurate than `local`",
}
"""Sentences by the outcome of the test against ``local``."""


def _benchmark(card: MethodCard) -> str:
    """Return when the method works and when not: its figures beside those of `local`."""
    if not card.benchmark:
        return f"No figure yet. `{card.benchmark_command}` makes one."
    parts = []
    for outcome, sentence in OUTCOMES.items():
        labels = [row.label for row in card.benchmark if row.against_local == outcome]
        parts += [f"- {sentence}: {'; '.join(labels)}."] if labels else []
    compared = [row for row in card.benchmark if row.against_local and row.baseline]
    parts += [f"- {row.label}: {row.baseline}." for row in compared]
    parts += [f"- {row.label}: {row.reason.rstrip('.')}." for row in card.benchmark if row.reason]
    rows = [
        (
            row.label,
            standings_tables.accuracy(row.accuracy, row.seeds),
            standings_tables.interval(row.low, row.high),
            standings_tables.percent(row.local),
            standings_tables.place(row.rank, row.ranked),
            standings_tables.megabytes(row.upload),
            standings_tables.megabytes(row.download),
        )
        for row in card.benchmark
        if row.seeds
    ]
    head = ("setting", "accuracy %", "interval", "`local` %", "rank", "MB up", "MB down")
    text = (
        "Under equal conditions for all methods: the same data, splits and nets, tuned with the "
        "same budget on validation samples. Accuracies are means over seeds in the round that "
        "validation chose; the test is Wilcoxon's over clients and seeds, corrected by Holm. "
        f"`{card.benchmark_command}` makes these figures."
    )
    tables = [standings_tables.markdown_table(head, rows)] if rows else []
    return "\n\n".join([text, *(["\n".join(parts)] if parts else []), *tables])


def _published(card: MethodCard) -> str:
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


# --- JSON -------------------------------------------------------------------------------------


def to_values(card: MethodCard) -> dict[str, Any]:
    """Return the card as JSON values; ``page`` is the Markdown of the hand-written page."""
    return {
        "method": card.name,
        **card.plugin,
        "shares": card.page.shares or None,
        "has_page": card.page.written,
        "page": _page(card),
        "options": [
            dict(zip(("option", "default", "range", "meaning"), row, strict=True))
            for row in option_rows(card.method, "")
        ],
        "reveals": [
            dict(zip(("key", "reveals"), row, strict=True)) for row in revealed(card.method)
        ],
        "measured": card.measured.to_values(),
        "benchmark": [asdict(row) for row in card.benchmark],
        "published": [asdict(row) for row in card.published],
    }
