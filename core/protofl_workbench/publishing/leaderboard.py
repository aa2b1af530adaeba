"""Data of a leaderboard: methods by setting, from published folders and records of a benchmark.

Only equal settings are compared: two runs belong to one setting if they have the same data and the
same options, but for the method, its own options, and the seed. Records of a benchmark may differ
in their nets, too: the benchmark gives a method that needs other nets the nearest ones, and the
row names them. Ranks, tests and groups are those of the benchmark
(`protofl_workbench.reproductions.benchmark.standings`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.system.files.atomic import parse_json
from protofl.system.files.home import expand_user
from protofl.system.files.tables import flat
from protofl.system.options.table import OPTIONS
from protofl_workbench.comparing.run_labels import data_name, option_text, recorded_options
from protofl_workbench.publishing import layout
from protofl_workbench.publishing.derivation import check_record
from protofl_workbench.publishing.verification import repeated_here
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reproductions.benchmark.benchmark_records import figures_of
from protofl_workbench.reproductions.benchmark.standings import BenchmarkSetting, setting_of

COUNTED = ("method", "data", "extent")
"""Kinds of options that belong to a setting (`protofl.system.options.option.Affects`)."""

OF_THE_METHOD = ("method", "use", "add", "drop", "transforms")
"""Options that make a method, and no setting."""

OF_A_ROW = ("models", "momentum", "weight_decay", "clip", "drop_last", "eval_server")
"""Options that a benchmark names for a single method, or that change no figure of a record."""

REPEATS = ("seed", "trials")


@dataclass(frozen=True)
class Source:
    """Where a row of the board comes from.

    Attributes:
        name: The published folder or the record, relative to the folder that was given.
        title: Title of the publication; empty for a record.
        digest: Digest of the publication, or empty.
        versions: Versions of protofl, torch and Python.
        options: Options of the method that differ from its defaults or were searched.
        repeated: Runs that this machine has repeated with ``protofl verify``, and how; of a
            published folder only.
    """

    name: str
    title: str = ""
    digest: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    repeated: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BoardSetting:
    """A setting of the board.

    Attributes:
        setting: Standings, groups and tests.
        options: The options that all rows share.
        chosen: The round that counts: ``validation`` or ``last``.
        sources: {method: sources of its row}.
        plugins: {method: names of the methods that it is made of}, for papers and pages.
        repeated: {method: how many of its published runs this machine has repeated}: ``1 of 3``;
            empty for records of a benchmark.
    """

    setting: BenchmarkSetting
    options: Mapping[str, Any]
    chosen: str
    sources: Mapping[str, tuple[Source, ...]]
    plugins: Mapping[str, tuple[str, ...]]
    repeated: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the setting."""
        return self.setting.name


@dataclass(frozen=True)
class Leaderboard:
    """All settings, and notes about what is left out."""

    settings: tuple[BoardSetting, ...]
    notes: tuple[str, ...]

    @property
    def methods(self) -> list[str]:
        """All methods with a row, sorted by name."""
        return sorted({s.method for one in self.settings for s in one.setting.standings})


@dataclass
class _Row:
    """A row before it is ranked: a method with its runs in a setting."""

    method: str
    options: Mapping[str, Any]
    runs: list[dict[str, Any]]
    sources: list[Source]
    record: Mapping[str, Any]
    plugins: tuple[str, ...]
    repeated: list[bool] = field(default_factory=list)


def leaderboard(folders: Sequence[str | Path]) -> Leaderboard:
    """Read published folders and records of a benchmark.

    Args:
        folders: Published folders, records, or folders that have some somewhere below them.

    Raises:
        UsageError: A folder has neither, or a record is damaged.
        Changed: A published folder does not have the published bytes.
    """
    settings: dict[str, dict[str, list[_Row]]] = {}
    about: dict[str, tuple[str, Mapping[str, Any], str]] = {}
    notes: list[str] = []
    for folder in folders:
        path = expand_user(folder)
        publications, records = _publications(path), [*_records(path)]
        if not publications and not records:
            near = "there is no such folder" if not path.is_dir() else "looked for publication.json"
            raise UsageError(
                f"{folder} has no published folder and no record of a benchmark",
                near,
                "publish runs: protofl publish RUN... --out DIR",
            )
        for name, record in sorted(records, key=lambda each: "runs" not in each[1]):
            _add_record(name, record, settings, about)
        for publication in publications:
            layout.read_publication(publication)
            layout.check_digests(publication).require(publication)
        _add_runs(path, publications, settings, about, notes)
    result, taken = [], set[str]()
    for key, rows in settings.items():
        title, options, chosen = about[key]
        options = _with_common_nets(options, rows)
        name, number = title, 1
        while name in taken:
            number += 1
            name = f"{title} ({number})"
        taken.add(name)
        result.append(_setting(name, options, chosen, rows))
    return Leaderboard(tuple(result), tuple(notes))


def _setting(
    name: str, options: Mapping[str, Any], chosen: str, rows: Mapping[str, list[_Row]]
) -> BoardSetting:
    labels = {label: row for each in rows.values() for label, row in _labelled(each)}
    records = [{**row.record, "method": label, "runs": row.runs} for label, row in labels.items()]
    return BoardSetting(
        setting_of(name, records),
        options,
        chosen,
        {label: tuple(row.sources) for label, row in labels.items()},
        {label: row.plugins for label, row in labels.items()},
        {
            label: f"{sum(row.repeated)} of {len(row.repeated)}" if row.repeated else ""
            for label, row in labels.items()
        },
    )


def _with_common_nets(
    options: Mapping[str, Any], rows: Mapping[str, Sequence[_Row]]
) -> Mapping[str, Any]:
    """Return a setting's options with the nets that most rows have; the others name theirs."""
    every = [row for each in rows.values() for row in each if "models" in row.options]
    if not every:
        return options
    common = Counter(row.options["models"] for row in every).most_common(1)[0][0]
    for row in every:
        own = {k: v for k, v in row.options.items() if (k, v) != ("models", common)}
        row.sources = [replace(source, options=own) for source in row.sources]
    return {**options, "models": common}


def _labelled(rows: Sequence[_Row]) -> Iterator[tuple[str, _Row]]:
    """Yield the rows of a method with names that tell them apart: by options, or by source."""
    if len(rows) == 1:
        yield rows[0].method, rows[0]
        return
    keys = sorted({key for row in rows for key in row.options})
    differing = [key for key in keys if len({repr(row.options.get(key)) for row in rows}) > 1]
    taken: set[str] = set()
    for row in rows:
        words = [f"{k.rpartition('.')[2]}={_word(row.options.get(k))}" for k in differing]
        label = ", ".join([row.method, *words])
        label = label if label not in taken else f"{label} ({row.sources[0].name})"
        taken.add(label)
        yield label, row


def _word(value: object) -> str:
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- records of a benchmark -----------------------------------------------------------------------


def _records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records below a folder with their names, without those in published folders."""
    paths = [folder] if folder.suffix == ".json" else sorted(folder.rglob("*.json"))
    inside = {publication.resolve() for publication in _publications(folder)}
    for path in paths:
        if inside & {*path.resolve().parents} or not path.is_file():
            continue
        try:
            values = parse_json(path.read_bytes())
        except ValueError as error:
            raise UsageError(
                f"{path} is damaged: {error}", do="restore the file, or take it out of the folder"
            ) from None
        if isinstance(values, dict) and {"setting", "method", "definition"} <= values.keys():
            place = path.relative_to(folder) if path != folder else Path(path.name)
            yield place.as_posix(), values


def _add_record(
    name: str,
    record: Mapping[str, Any],
    settings: dict[str, dict[str, list[_Row]]],
    about: dict[str, tuple[str, Mapping[str, Any], str]],
) -> None:
    options = {k: v for k, v in flat(record.get("options", {})).items() if k != "method"}
    own = {k: v for k, v in options.items() if k in OF_A_ROW or re.fullmatch(r"set\.[^.]+", k)}
    options = {k: v for k, v in options.items() if k not in own}
    title, data = str(record["setting"]), record.get("data")
    start = json.dumps(["record", title, record.get("scale")])[:-1]
    base = json.dumps(["record", title, record.get("scale"), options], sort_keys=True, default=str)
    key = f"{base} {data}"
    if data is None:  # a refused method has read no data, and may have options of its own
        alike = [known for known in settings if known.startswith(start)]
        key = next((known for known in alike if known.startswith(f"{base} ")), [*alike, key][0])
    about.setdefault(key, (title, options | ({"data.digest": data} if data else {}), "validation"))
    method, weight = str(record["method"]), record.get("weight")
    own = {key.removeprefix("set."): value for key, value in own.items()}
    own |= {"lr": record["lr"]} if "lr" in record else {}
    own |= {weight["name"]: weight["value"]} if weight else {}
    row = _Row(
        method,
        own,
        [dict(run) for run in record.get("runs", ())],
        [Source(name, versions=record.get("versions", {}), options=own)],
        record,
        (method,),
    )
    rows = settings.setdefault(key, {}).setdefault(method, [])
    if not any(other.record == record for other in rows):  # the same file in two folders
        rows.append(row)


# --- published folders ----------------------------------------------------------------------------


def _publications(folder: Path) -> list[Path]:
    """Return the published folders in a folder and below it."""
    if layout.is_publication(folder):
        return [folder]
    found = sorted(path.parent for path in folder.rglob(layout.PUBLICATION))
    return [path for path in found if layout.is_publication(path)]


def _add_runs(
    folder: Path,
    publications: Iterable[Path],
    settings: dict[str, dict[str, list[_Row]]],
    about: dict[str, tuple[str, Mapping[str, Any], str]],
    notes: list[str],
) -> None:
    """Add the runs of published folders to the settings."""
    found = []
    for publication in publications:
        values = layout.read_publication(publication)
        digest = layout.sha256(publication / layout.DIGESTS)
        repeated = repeated_here(digest)
        place = publication.relative_to(folder).as_posix()
        name = publication.resolve().name if place == "." else place
        for one in values["runs"]:
            run = Run.of(publication / layout.RUNS / one["name"])
            check_record(one["name"], run)
            found.append((run, name, values, digest, repeated))
    for run, name, values, digest, repeated in found:
        if not all("client_accuracies" in row for row in run.rows if row.test_accuracy is not None):
            notes.append(f"{name}, {run.folder.name}: has no accuracies of clients to compare")
            continue
        options = setting_options(run)
        chosen = "validation" if run.config.get("validation") else "last"
        key = json.dumps(["run", options], sort_keys=True, default=str)
        about.setdefault(key, (_title(run), options, chosen))
        own = method_options(run)
        own_runs = {k: outcome for k, outcome in repeated.items() if k == run.folder.name}
        versions = run.config["versions"]
        source = Source(name, str(values["title"]), digest, versions, own, own_runs)
        code = next((p.get("code") for p in run.config["plugins"] if p["kind"] == "method"), "")
        rows = settings.setdefault(key, {}).setdefault(run.name, [])
        row = next((r for r in rows if r.options == {**own, "code": code}), None)
        if row is None:
            lr = {"lr": run.config["lr"]}
            methods = tuple(str(p["name"]) for p in run.config["plugins"] if p["kind"] == "method")
            row = _Row(run.name, {**own, "code": code}, [], [], lr, methods)
            rows.append(row)
        there = {one["seed"] for one in row.runs}
        row.repeated.append(run.folder.name in repeated)
        for trial in run.trials:
            figures = figures_of(run, trial, chosen)
            if figures["seed"] in there:
                notes.append(
                    f"{name}, {run.folder.name}: seed {figures['seed']} of {run.name} is there "
                    "already"
                )
            else:
                row.runs.append(figures)
                row.sources += [source] if source not in row.sources else []


def setting_options(run: Run) -> dict[str, Any]:
    """Return the options that make the setting of a run: all but the method's, and the seed."""
    plugins = {
        p["name"] for p in run.config["plugins"] if p["kind"] in ("method", "payload-transform")
    }
    options = {}
    for key, value in recorded_options(run).items():
        option, _, rest = key.partition(".")
        if option in (*OF_THE_METHOD, *REPEATS, "dataset", "classes"):
            continue
        if option == "options" and rest.partition(".")[0] in plugins:
            continue
        if OPTIONS[option].affects in COUNTED or option == "patience":
            options[key] = value
    config = flat(run.config)
    data = {key: config[key] for key in ("data.digest", "data.public") if key in config}
    return {"dataset": data_name(run.config), "rounds": run.config["rounds"]} | options | data


def method_options(run: Run) -> dict[str, Any]:
    """Return what makes the method of a run: its options, combined hooks and terms, transforms."""
    plugins = {
        p["name"] for p in run.config["plugins"] if p["kind"] in ("method", "payload-transform")
    }
    options = {}
    for key, value in recorded_options(run).items():
        option, _, rest = key.partition(".")
        of_plugin = option == "options" and rest.partition(".")[0] in plugins
        if of_plugin or option in ("use", "add", "drop", "transforms"):
            options[key.removeprefix("options.")] = value
    return options


def _title(run: Run) -> str:
    """Return the name of a run's setting: data, split, clients, models and rounds."""
    beta = run.config.get("options", {}).get("partition", {}).get("beta")
    split = option_text(run, "partition") + (f" {beta:g}" if isinstance(beta, float) else "")
    clients, rounds = run.config["clients"], run.config["rounds"]
    models = re.sub(r":.*", "", str(run.config["models"]))
    return f"{data_name(run.config)}, {split}, {clients} clients, {models}, {rounds} rounds"
