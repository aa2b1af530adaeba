"""The page of a benchmark, generated from its records.

``protofl reproduce benchmark/NAME --out FILE.md`` copies the records of finished methods into the
folder ``FILE`` beside the page, reads all records in it, and writes the page and its pictures. So
the page can be made again from the folder alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.system.files.atomic import write_file
from protofl.system.formatting import count
from protofl_workbench.comparing.figure_table import markdown as md
from protofl_workbench.reproductions.benchmark.benchmark_execution import BenchmarkProgress
from protofl_workbench.reproductions.benchmark.benchmark_records import (
    CENTRALISED,
    LOCAL,
    read_records,
    write_record,
)
from protofl_workbench.reproductions.benchmark.standings import (
    LEVEL,
    BenchmarkSetting,
    Standing,
    compared,
    rank_correlations,
    ranks_over,
    setting_of,
)
from protofl_workbench.reproductions.reproduction import Reproduction

HEADINGS = (
    "method",
    "accuracy %",
    "interval",
    "global %",
    "worst client %",
    "worse off (chance)",
    "MB up",
    "MB down",
    "round",
    "s/round",
    "lr",
    "weight",
    "mean rank",
    "rank",
    "groups",
)

SHORT = ("accuracy %", "interval", "worse off (chance)", "lr", "weight", "mean rank", "groups")
"""The headings beside the method that fit on a screen."""

Record = Mapping[str, Any]


def settings_of(progress: BenchmarkProgress) -> list[BenchmarkSetting]:
    """Return the standings of each selected setting with a record."""
    return _settings(progress.reproduction, progress.records.values())


def _settings(reproduction: Reproduction, records: Iterable[Record]) -> list[BenchmarkSetting]:
    by_setting: dict[str, list[Record]] = {name: [] for name in reproduction.columns}
    for record in records:
        by_setting.setdefault(str(record["setting"]), []).append(record)
    return [setting_of(name, found) for name, found in by_setting.items() if found]


def cells_of(s: Standing) -> tuple[str, ...]:
    """Return the cells of a method's row, as `HEADINGS` names them."""
    few = f" ({count(s.seeds, 'seed')})" if s.seeds < 3 else ""
    return (
        s.method,
        f"{100 * s.accuracy:.1f}{few}",
        "" if math.isnan(s.low) else f"{100 * s.low:.1f} … {100 * s.high:.1f}",
        _share(s.global_accuracy),
        _share(s.worst),
        "" if math.isnan(s.worse_off) else f"{s.worse_off:.1f} ({s.chance:.1f})",
        _megabytes(s.upload),
        _megabytes(s.download),
        f"{s.rounds:.0f}",
        f"{s.seconds:.2f}",
        f"{s.rate:g}",
        s.weight,
        "" if math.isnan(s.mean_rank) else f"{s.mean_rank:.2f}",
        str(s.rank or ""),
        s.groups,
    )


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.1f}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3g}" if size else "0"


# --- files ----------------------------------------------------------------------------------------


def write_page(progress: BenchmarkProgress, page: Path) -> list[Path]:
    """Copy the records of a benchmark to a page's folder, and write the page and its pictures.

    Args:
        progress: The benchmark with records. Records of other methods in the folder stay there.
        page: The page, ``FILE.md``.

    Returns:
        The written files: the page first, then the pictures.
    """
    from protofl_workbench.reproductions.benchmark.benchmark_pictures import draw_pictures

    folder = page.with_suffix("")
    for record in progress.records.values():
        write_record(folder, record)
    records = read_records(folder)
    pictures = draw_pictures(
        progress.reproduction, _settings(progress.reproduction, records), folder
    )
    write_file(page, page_of(progress.reproduction, records, folder.name))
    return [page, *pictures]


# --- the page -------------------------------------------------------------------------------------


def page_of(reproduction: Reproduction, records: Sequence[Record], folder: str) -> str:
    """Return the page in Markdown.

    Args:
        reproduction: The benchmark, for labels and choices.
        records: All records.
        folder: Name of the folder with the pictures, relative to the page.
    """
    settings = _settings(reproduction, records)
    finished = [setting for setting in settings if setting.standings]
    there = {(str(record["method"]), str(record["setting"])) for record in records}
    begun = [s.name for s in finished if any((r, s.name) not in there for r in reproduction.rows)]
    said = statements(finished) or ["Nothing yet: no method has finished runs."]
    if begun:
        said.append(f"What is said of {', '.join(begun)} may change: methods are missing there.")
    parts = [
        "# Benchmark",
        f"<!-- Generated by: protofl reproduce {reproduction.name} --no-run --out PAGE.md --force. "
        "Do not edit. -->",
        "This page compares all methods under equal conditions: the same data, splits, nets, "
        "validation samples and budget of tuning. The text is generated from the records in "
        f"`{folder}/`, so that it changes with them.",
        "## What the results say",
        _list(said),
        "## What nobody should conclude",
        _list(_LIMITS),
    ]
    parts += _ranks_part(reproduction, finished, folder)
    parts += ["## Settings", _READING]
    for setting in settings:
        parts += _setting_part(reproduction, setting)
    if any(setting.cliques or len(setting.ranked) > 1 for setting in finished):
        parts += [
            "## Critical differences",
            "Each panel shows the mean rank of each method over clients and seeds; lower is "
            "better. A bar joins methods that do not differ significantly.",
            f"![Mean ranks of the methods in each setting, with groups]({folder}/groups.png)",
        ]
    parts += ["## How it was made", _list(_conditions(reproduction, records))]
    parts += _missing_part(reproduction, records)
    parts += ["## Add a method", _ADDING.format(name=reproduction.name)]
    return "\n\n".join(parts) + "\n"


_READING = (
    "Figures are means over seeds, in the round with the best validation accuracy. "
    "`accuracy`: over the test samples of all clients, with Student's 95 % interval over seeds. "
    "`global`: each client's model on all classes alike. `worse off`: clients less accurate than "
    "alone (`local`, same seed), and how many a coin toss for each client would give. `MB up`, "
    "`MB down`: traffic of all clients up to that round. `s/round`: median wall-clock time, "
    "measured beside another run. `lr` and `weight`: chosen on validation samples of another "
    "seed. `mean rank`: over clients × seeds. Methods with a common letter in `groups` do not "
    f"differ significantly (Wilcoxon's signed-rank test, Holm's correction, level {LEVEL:g}); a "
    "method without a letter differs from every neighbour. `centralised` is a bound, not a "
    "federated method, and is not ranked."
)

_LIMITS = (
    "That a method is good or bad in general. Data and nets are small, and five or ten clients "
    "take part in every round. Levels and order may differ with more data, larger nets or partial "
    "participation.",
    "That two methods with a common letter are equal. The test did not tell them apart with this "
    "number of clients and seeds.",
    "That a significant difference is large, or holds for other clients. Clients of a run share a "
    "server, so that their differences are not independent, and p is too small rather than too "
    "large.",
    "That a method fails if its other options would help. The search covers the learning rate and "
    "one weight; server steps, temperatures and auxiliary nets keep their defaults.",
    "That every method has its best learning rate. The search sees a few rounds of one seed, and "
    "the rate that it chooses can fail on other seeds. Wide intervals and diverged runs show it.",
    "That traffic or time of a method is fixed. Both count up to the round that validation chose, "
    "and time depends on the machine.",
    "That `centralised` is always above. Its nets see all clients' classes, but a client with few "
    "classes has an easier task alone.",
)

_ADDING = """\
One command tunes and runs an installed method in every setting that it fits, beside `local`:

```bash
pip install -e path/to/your-package
protofl reproduce {name} --add MY_METHOD --scale smoke    # minutes: checks that everything runs
protofl reproduce {name} --add MY_METHOD --dataset mnist=npz:FILE --dataset fashion-mnist=npz:FILE
```

The method can be one of another package. Its main weight is the first number among its options that
is positive by default, may be 0 and has no upper bound, because weights of loss terms are declared
so. `--add` can be repeated, and `--columns` selects settings. `--out FILE.md` writes a page like
this one. With the records of this page in the folder `FILE/`, it shows the method among all
others."""


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in an element that the site sorts by; it does nothing elsewhere."""
    lines = [f"| {' | '.join(headings)} |", "|---" + "|--:" * (len(headings) - 1) + "|"]
    lines += [f"| {' | '.join(map(md, row))} |" for row in rows]
    return "\n".join(["<div data-sort markdown>", "", *lines, "", "</div>"])


def _setting_part(reproduction: Reproduction, setting: BenchmarkSetting) -> list[str]:
    line = reproduction.columns.get(setting.name)
    parts = [f"### {setting.name}"]
    if line is not None:
        parts.append(f"{line.label[:1].upper()}{line.label[1:]}.")
    if setting.standings:
        parts.append(_table(HEADINGS, [cells_of(s) for s in setting.standings]))
    if setting.blocks:
        parts.append(
            f"Ranks and tests are over {setting.blocks} pairs of client and seed. "
            f"{_power(setting)}".rstrip()
        )
    parts += [f"{note}." for note in setting.notes]
    if setting.failed:
        parts += [
            "Did not finish:",
            _list(f"`{m}`: {md(why.splitlines()[0])}" for m, why in setting.failed.items()),
        ]
    if setting.refused:
        lines = [f"`{m}`: {md(why)}" for m, why in setting.refused.items()]
        parts += ["Do not fit this setting, by their own declaration:", _list(lines)]
    return parts


def _power(setting: BenchmarkSetting) -> str:
    """Return what the tests of a setting can find at most; empty without tests."""
    if not setting.p:
        return ""
    # A difference with one sign in all blocks; Holm multiplies the smallest p by all pairs.
    least = min(1.0, 2 ** (1 - setting.blocks) * len(setting.p))
    text = (
        f"All {len(setting.p)} pairs of methods are tested together. A difference with the same "
        f"sign in all {setting.blocks} has p = {least:.2g} after the correction, "
    )
    if least >= LEVEL:
        return text + "so that no difference can be significant."
    return text + "and less clear ones are rarely significant." if least > LEVEL / 10 else ""


def _ranks_part(
    reproduction: Reproduction, settings: Sequence[BenchmarkSetting], folder: str
) -> list[str]:
    settings = compared(settings)
    over = ranks_over(settings)
    if len(settings) < 2 or len(over) < 2:
        return []
    rows = [
        (f"{one.method}", f"{one.mean:.1f}", f"{one.std:.1f}", *(f"{r:g}" for r in one.ranks))
        for one in over
    ]
    return [
        "## Ranks over settings",
        f"Ranks among the {len(over)} methods that are ranked in all {len(settings)} settings; "
        "1 is best.",
        _table(("method", "mean", "std", *(s.name for s in settings)), rows),
        f"![Ranks of each method over settings]({folder}/ranks.png)",
    ]


def statements(settings: Sequence[BenchmarkSetting]) -> list[str]:
    """Return what can be counted in the standings, in sentences."""
    said, settings = [], compared(settings)
    with_local = [s for s in settings if (found := s.named(LOCAL)) and found.rank]
    if with_local:
        total = count(len(with_local), "setting")
        better = {s.name: _against_local(s, better=True) for s in with_local}
        worse = {s.name: _against_local(s, better=False) for s in with_local}
        winners = [name for name, methods in better.items() if methods]
        said.append(
            f"Federation helps significantly in {len(winners)} of {total}: "
            + "; ".join(f"{s.name}: {len(better[s.name])} of {_federated(s)} methods beat `local`, "
                        f"{len(worse[s.name])} rank significantly below it" for s in with_local)
            + "."
        )  # fmt: skip
        said += [f"{s.name}: {s.baseline}." for s in with_local if s.baseline]
        always = set.intersection(*(set(methods) for methods in better.values()))
        never = set.union(*(set(methods) for methods in worse.values()))
        everywhere = [one.method for one in ranks_over(with_local) if one.method in always]
        if len(with_local) > 1:
            said.append(
                "Significantly better than `local` in all of these settings: "
                f"{_names(everywhere) or 'no method'}. Significantly worse in at least one: "
                f"{_names(sorted(never)) or 'no method'}."
            )
    for setting in settings:
        if setting.ranked:
            best = setting.ranked[0]
            tied = [
                s.method for s in setting.ranked[1:] if not setting.differ(best.method, s.method)
            ]
            said.append(
                f"{setting.name}: `{best.method}` has the best mean rank"
                + (f"; {_names(tied)} do not differ from it significantly." if len(tied) > 1
                   else f"; {_names(tied)} does not differ from it significantly." if tied
                   else ", and differs from all others significantly.")
            )  # fmt: skip
    correlations = [v for v in rank_correlations(settings).values() if not math.isnan(v)]
    if correlations:
        ends = dict.fromkeys(f"{v:.2f}" for v in (min(correlations), max(correlations)))
        said.append(
            "Spearman's correlation of the ranks in two settings is "
            f"{' to '.join(ends)} (1: the same order)."
        )
    bounds = [(s, s.named(CENTRALISED)) for s in settings]
    gaps = [
        f"{s.name}: {100 * (bound.accuracy - max(m.accuracy for m in s.ranked)):+.1f}"
        + f" ({bound.diverged} of {count(bound.seeds, 'run')} of it diverged)"
        * bool(bound.diverged)
        for s, bound in bounds
        if bound is not None and s.ranked
    ]
    if gaps:
        said.append(
            "`centralised` minus the most accurate method, in points of accuracy: "
            f"{'; '.join(gaps)}."
        )
    return said


def _against_local(setting: BenchmarkSetting, *, better: bool) -> list[str]:
    """Return the methods that differ significantly from ``local`` and rank before or after it."""
    local = setting.named(LOCAL)
    assert local is not None
    return [
        s.method
        for s in setting.ranked
        if s.method != LOCAL
        and setting.differ(s.method, LOCAL)
        and (s.mean_rank < local.mean_rank) == better
    ]


def _federated(setting: BenchmarkSetting) -> int:
    return sum(s.method != LOCAL for s in setting.ranked)


def _names(methods: Sequence[str]) -> str:
    named = [f"`{method}`" for method in methods]
    return (
        named[0]
        if len(named) == 1
        else ", ".join(named[:-1]) + f" and {named[-1]}"
        if named
        else ""
    )


def _conditions(reproduction: Reproduction, records: Sequence[Record]) -> list[str]:
    tuning = reproduction.tuning
    assert tuning is not None
    lines = [*reproduction.chosen]
    lines = [f"{line[:1].upper()}{line[1:]}." for line in lines]
    others = "".join(
        f" ({', '.join(f'{rate:g}' for rate in rates)} in {column})"
        for column, rates in tuning.columns.items()
    )
    lines.append(
        f"The search: {tuning.candidates} runs of {tuning.rounds} rounds for each method and "
        f"setting with seed {tuning.seed}. First the learning rates "
        f"{', '.join(f'{rate:g}' for rate in tuning.rates)}{others}; then, with the best of them, "
        f"the main weight times {', '.join(f'{f:g}' for f in tuning.factors)}, or of a method "
        "without one the learning rate times "
        f"{', '.join(f'{f:g}' for f in tuning.rate_factors)}. Each record "
        "has all candidates with their validation accuracy."
    )
    ran = [record for record in records if record.get("runs")]
    finals = sum(len(record["runs"]) for record in ran)
    searches = sum(len(record.get("search", ())) for record in ran)
    lines.append(
        "What ran: "
        f"{count(len(ran), 'pair of method and setting', 'pairs of method and setting')}, "
        f"{count(searches, 'tuning run')} and {count(finals, 'final run')}."
    )
    lines.append(f"Commits: {_distinct(r.get('commit') or 'not known' for r in ran)}.")
    lines.append(f"Machines: {_distinct(map(_machine, ran))}.")
    packages = (
        f"{r['plugin']['distribution']} {r['plugin']['version']}" for r in ran if r.get("plugin")
    )
    lines.append(f"Packages of the methods: {_distinct(packages)}.")
    data = {str(r["setting"]): str(r["options"]["dataset"]) for r in ran}
    lines.append(
        "Data: " + "; ".join(f"{s}: `{d}`" for s, d in data.items()) + "."
        if data
        else "Data: none yet."
    )
    scales = {str(record.get("scale", "paper")) for record in ran} - {"paper"}
    if scales:
        lines.insert(0, f"**Scale {', '.join(sorted(scales))}: the figures mean nothing.**")
    return lines


def _machine(record: Record) -> str:
    """Return the kind of processor, and the versions, that made a record."""
    processor = record.get("machine", {}).get("processor", "not known")
    versions = record.get("versions", {})
    return f"{processor}, torch {versions.get('torch', '?')}, Python {versions.get('python', '?')}"


def _distinct(values: Iterable[str]) -> str:
    """Return distinct values with their counts, if there are several."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    if len(counts) < 2:
        return next(iter(counts), "none yet")
    return "; ".join(f"{value} ({number})" for value, number in counts.items())


def _missing_part(reproduction: Reproduction, records: Sequence[Record]) -> list[str]:
    there = {(str(record["method"]), str(record["setting"])) for record in records}
    lines = []
    for column in reproduction.columns:
        missing = [row for row in reproduction.rows if (row, column) not in there]
        if len(missing) == len(reproduction.rows):
            lines.append(f"{column}: all {len(missing)} methods")
        elif missing:
            lines.append(f"{column}: {', '.join(f'`{row}`' for row in missing)}")
    if not lines:
        return ["## What is missing", "Nothing: every method has a record in every setting."]
    command = f"protofl reproduce {reproduction.name}"
    return ["## What is missing", f"`{command}` runs these methods.", _list(lines)]
