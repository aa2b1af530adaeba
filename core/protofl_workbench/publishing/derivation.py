"""The files of a published folder that follow from its runs: how they are written, and checked.

`protofl publish` writes these files from the runs in the folder and from a few claims of its user,
such as the title. `protofl verify` writes them again from the same, and compares.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from protofl.records.layout import CONFIG, METRICS, PARTITION, PREPARATION, SUMMARY
from protofl.records.result import is_exhausted
from protofl.system.files.atomic import json_text, parse_json, write_file, write_json
from protofl.system.formatting import count
from protofl.system.sources import digest_of_code
from protofl.system.version import __version__
from protofl_workbench.plots.figure_files import fonts_for
from protofl_workbench.publishing import layout
from protofl_workbench.publishing.layout import Changed
from protofl_workbench.publishing.read_me import read_me
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.page import html_of, page_about
from protofl_workbench.reporting.page_parts import Drawings

OPTIONAL = {
    "weights": "weights of server and clients that a run has kept (they reveal much of the data)",
    "predictions": "recorded predictions, with the true class of every test sample",
    "preparation": "preparation of raw samples: statistics and vocabulary of the data",
    "client-names": "names that the data give the clients",
}
"""Parts that are published only with `--include`."""

NEVER = (
    "data",
    "observations and recorded uploads, from which samples can be reconstructed",
    "results of attacks (protofl leak)",
    "keys of trackers",
    "checkpoints for resuming",
    "paths, user and host names",
)
"""Parts that are never published."""
CLAIMS = (
    *("title", "description", "authors", "license", "published", "publisher"),
    *("packages", "drawn_with", "included"),
)
"""Keys of ``publication.json`` that do not follow from the runs."""

OF_A_RUN = (CONFIG, METRICS, SUMMARY, PARTITION)
"""Files that every published run has."""


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Make a folder the current one, so that pages name paths inside it only."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def drawn_with(runs: Iterable[Run], title: str) -> dict[str, str]:
    """Return the versions and further fonts on which the bytes of the page depend."""
    from matplotlib import ft2font

    known = [title, *((run.config, run.partition) for run in runs)]
    fonts, _ = fonts_for(json.dumps(known, ensure_ascii=False))
    packages = ("matplotlib", "numpy", "pillow", "jinja2")
    return {
        "protofl": __version__,
        **{name: version(name) for name in packages},
        "freetype": str(ft2font.__freetype_version__),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "fonts": ", ".join(fonts),
        "machine": f"{platform.system()} {platform.machine()}",
    }


# --- writing --------------------------------------------------------------------------------------


def described(runs: Mapping[str, Run], claims: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``publication.json``.

    Args:
        runs: The runs of the folder by name.
        claims: Values of `CLAIMS`; an empty title or description is replaced by one of the runs.
    """
    about = [_about_run(name, run) for name, run in runs.items()]
    methods = list(dict.fromkeys(one["method"] for one in about))
    data = list(dict.fromkeys(one["dataset"] for one in about))
    plain = f"{', '.join(methods[:4])}{' and more' * (len(methods) > 4)} on {', '.join(data)}"
    plugins = {}
    for run in runs.values():
        classes = run.config.get("classes", {})
        for plugin in run.config["plugins"]:
            kind, name = str(plugin["kind"]), str(plugin["name"])
            place = classes.get(f"{kind}/{name}")
            plugins[kind, name] = {**plugin, **({"source": place} if place else {})}
    return {
        "format": layout.FORMAT,
        **{key: claims[key] for key in CLAIMS},
        "title": claims["title"] or f"Federated learning with {plain}",
        "description": claims["description"]
        or f"Records of {count(len(about), 'run')} of protofl: {plain}.",
        "versions": dict(next(iter(runs.values())).config["versions"]),
        "runs": about,
        "plugins": [*plugins.values()],
        "left_out": [
            *(
                f"{word}: {text}"
                for word, text in OPTIONAL.items()
                if word not in claims["included"]
            ),
            *NEVER,
        ],
    }


def _about_run(name: str, run: Run) -> dict[str, Any]:
    config, summary = run.config, run.summary or {}
    files = sorted({place.rpartition(":")[0] for place in config.get("classes", {}).values()})
    words = [f"protofl run --config {layout.RUNS}/{name}/{CONFIG}"]
    words += [f"--trust-code {file}" for file in files]
    mean = summary.get("mean", {})
    figures = ("best_test_accuracy", "final_test_accuracy", "validation_selected_test_accuracy")
    return {
        "name": name,
        "method": run.name,
        "models": str(config["models"]),
        "dataset": str(config["dataset"]),
        "data": config["data"]["digest"],
        **{key: config[key] for key in ("clients", "rounds", "trials", "seed", "device")},
        "seconds": round(sum(float(row.seconds["total"]) for row in run.rows), 3),
        "identity": run.identity,
        "command": " ".join(words),
        "files": dict(config.get("files", {})),
        "sources": files,
        **{key: mean.get(key, summary.get(key)) for key in figures if key in summary},
    }


def draw(runs: Mapping[str, Run], values: Mapping[str, Any], out: Path) -> None:
    """Write the page into ``out``; the published folder is the current one."""
    foot = f"Published on {values['published']} by {values['publisher']}."
    page = page_about([*runs.values()], drawings := Drawings(), foot)
    page.title = values["title"]
    write_file(out / layout.PAGE, html_of(page, drawings))


def write_texts(values: Mapping[str, Any], out: Path) -> None:
    """Write the other files that follow from runs and claims, but ``README.md``."""
    write_json(out / layout.PUBLICATION, values)
    lines = [
        f"# Python {values['versions']['python']}. Local parts of versions (+cpu, +cu126) are left "
        "out.",
        *(f"{k}=={v.partition('+')[0]}" for k, v in sorted(values["packages"].items())),
    ]
    write_file(out / layout.REQUIREMENTS, "\n".join(lines) + "\n")


# --- checking -------------------------------------------------------------------------------------


def check_record(name: str, run: Run) -> list[str]:
    """Check that rows and summary of a run are those that its configuration says.

    Returns:
        What is not checked: the reason of a method for ending a trial early.

    Raises:
        Changed: A line is missing, repeated, renumbered or additional, the summary does not follow
            from the rows, or a file is not written as protofl writes it.
        UsageError: A file is damaged.
    """
    place, config, rows = f"{layout.RUNS}/{name}", run.config, run.rows
    file, early = f"{place}/{METRICS}", list[str]()
    known = config.get("data") and config.get("plugins")
    if not known or not {"protofl", "torch", "python"} <= config.get("versions", {}).keys():
        raise Changed(f"{place}/{CONFIG} lacks the data, the plugins or the versions of the run")
    trials, rounds = int(config["trials"]), int(config["rounds"])
    trial, so_far = 0, list[Any]()
    for number, row in enumerate(rows, 1):
        at = f"round {len(so_far) + 1} of trial {trial}"
        expected = at if trial < trials else "no further line"
        if trial == trials or (row.trial, row.round) != (trial, len(so_far)):
            raise Changed(
                f"{file}, line {number} is round {row.round + 1} of trial {row.trial}; the "
                f"configuration ({trials} × {rounds}) says {expected}"
            )
        so_far.append(row)
        if row.ended and len(so_far) < rounds:
            early.append(f"why {name} ended trial {trial} after {count(len(so_far), 'round')}")
        if len(so_far) == rounds or is_exhausted(so_far, config.get("patience", 0)):
            trial, so_far = trial + 1, []
    if trial < trials:
        raise Changed(
            f"{file} has {count(len(rows), 'line')}; the configuration ({trials} × {rounds}) "
            f"says that round {len(so_far) + 1} of trial {trial} follows"
        )
    lines = (run.folder / METRICS).read_text(encoding="utf-8")
    written = {METRICS: "".join(json_text(Path(file), row.line) for row in rows) == lines}
    for other in (CONFIG, SUMMARY, PARTITION):
        if not (run.folder / other).is_file():
            raise Changed(f"{place}/{other} is missing")
        text = (run.folder / other).read_text(encoding="utf-8")
        written[other] = json_text(Path(other), parse_json(text), indent=1) == text
    for other, plain in written.items():
        if not plain:  # such as a key that is there twice
            raise Changed(f"{place}/{other} is not written as protofl writes it")
    try:
        derived = run.derived_summary()
    except (AssertionError, LookupError, TypeError, ValueError):
        raise Changed(f"{file} has no evaluated round, or {PARTITION} other clients") from None
    here = config["versions"].get("protofl") == __version__
    _compare(f"{place}/{SUMMARY}", run.summary, derived, "the rows give", every=here)
    return early


def _compare(file: str, there: Any, derived: Any, says: str, *, every: bool) -> None:  # noqa: ANN401
    """Compare the values of a JSON file with those that are derived again.

    Args:
        file: The file.
        there: Its content.
        derived: The expected content.
        says: What gives the expected content.
        every: False if another version wrote the file, so that only common keys are compared.

    Raises:
        Changed: A value differs.
    """
    one, two = dict(_leaves(there)), dict(_leaves(derived))
    for key in dict.fromkeys([*one, *two]):
        shown = [json.dumps(each[key]) if key in each else "nothing" for each in (one, two)]
        if shown[0] != shown[1] and (every or (key in one and key in two)):
            raise Changed(f"{file}: {key} is {shown[0]}, and {says} {shown[1]}")


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any JSON
    """Yield every value inside a JSON value with its key, which has dots."""
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    if isinstance(inner, dict) and inner:
        for name, one in inner.items():
            yield from _leaves(one, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def check_derived(folder: Path, values: Mapping[str, Any]) -> list[str]:
    """Derive all that follows from the runs of a published folder again, and compare.

    Args:
        folder: The folder, whose digests are right.
        values: The content of its ``publication.json``.

    Returns:
        What is not checked.

    Raises:
        Changed: A file differs; the error names the file and the first difference.
        UsageError: A file is damaged.
    """
    names = [str(run["name"]) for run in values["runs"]]
    texts = values["publisher"] == f"protofl {__version__}"
    unchecked = ["title and description", "recorded versions, machines and times", layout.PAPERS]
    unchecked += values["included"]
    with tempfile.TemporaryDirectory(prefix="protofl-verify-") as scratch, inside(folder):
        out, there = Path(scratch), layout.files_in(Path())
        runs = {name: Run.of(Path(layout.RUNS) / name) for name in names}
        sources = {
            place.rpartition(":")[0] for run in runs.values() for place in _places(run).values()
        }
        mine = {layout.PAPERS, *sources, *(f for f in there if _is_of_a_run(f, values))}
        for name in there:
            if name.startswith(f"{layout.RUNS}/") and name not in mine:
                raise Changed(f"{name} is not a file of a run in {layout.PUBLICATION}")
        for name, run in runs.items():
            unchecked += check_record(name, run)
            _check_code(name, run, there)
        here = drawn_with(runs.values(), values["title"])
        drawn = texts and values["drawn_with"] == here
        derived = described(runs, values)
        for key in sorted(values.keys() | derived.keys() if texts else {"runs"}):
            one, two = ({key: o[key]} if key in o else {} for o in (values, derived))
            _compare(layout.PUBLICATION, one, two, "the runs give", every=texts)
        write_texts(derived, out)
        write_file(out / layout.README, read_me(derived))
        if not texts:
            mine |= {*layout.files_in(out)}
            unchecked += [f"texts, written by {values['publisher']} (here protofl {__version__})"]
        elif drawn:
            draw(runs, derived, out)
        if not drawn:
            mine.add(layout.PAGE)
            other = [
                f"{key} {value} (here {here.get(key)})"
                for key, value in sorted(values["drawn_with"].items())
                if here.get(key) != value
            ]
            unchecked.append(f"page, drawn with {', '.join(other) or 'other versions'}")
        made = {*layout.files_in(out)} - mine
        for name in sorted({*there} - made - mine):
            raise Changed(f"{name} is not a file that protofl publish writes for these runs")
        for name in sorted(made):
            if name not in there or Path(name).read_bytes() != (out / name).read_bytes():
                raise Changed(f"{name} is not what the runs give{_where(Path(name), out / name)}")
    return unchecked


def _places(run: Run) -> Mapping[str, str]:
    """Return {KIND/NAME: FILE:CLASS} of the sources of a run in the folder."""
    places: dict[str, str] = run.config.get("classes", {})
    return places


def _is_of_a_run(file: str, values: Mapping[str, Any]) -> bool:
    """Return True if a file is one of the record of a published run."""
    folder, _, rest = file.partition("/")
    name, _, part = rest.partition("/")
    known = {*OF_A_RUN, *([PREPARATION] if "preparation" in values["included"] else [])}
    parts = {"weights", "predictions"} & {*values["included"]}
    is_run = folder == layout.RUNS and any(run["name"] == name for run in values["runs"])
    return is_run and (part in known or part.partition("/")[0] in parts)


def _check_code(name: str, run: Run, files: Sequence[str]) -> None:
    """Check that sources in the folder have the recorded digests of their code."""
    codes = {f"{p['kind']}/{p['name']}": p.get("code") for p in run.config["plugins"]}
    for label, place in _places(run).items():
        file = place.rpartition(":")[0]
        if file not in files or digest_of_code(Path(file)) != codes.get(label):
            raise Changed(f"{file} does not have the code of {label} in {layout.RUNS}/{name}")


def _where(there: Path, derived: Path) -> str:
    """Return the first line of a text that differs."""
    if not there.is_file():
        return ": it is missing"
    pairs = zip_longest(there.read_bytes().split(b"\n"), derived.read_bytes().split(b"\n"))
    return next((f": line {n} differs" for n, (one, two) in enumerate(pairs, 1) if one != two), "")
