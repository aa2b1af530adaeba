"""`publish`: finished runs as one folder that a paper can point to.

The folder has the records and configurations of the runs, the source of plugins that are not
installed, a page, the papers to cite, and digests of all files.
It has no weights, no data and no facts about the machine but those on which results depend.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protofl.errors import UsageError, unknown
from protofl.hooks.discovery.registry import Registry
from protofl.records.layout import CONFIG, METRICS, OWN, PARTITION, PREPARATION, SUMMARY
from protofl.records.result import Result
from protofl.system.files.atomic import write_file, write_json
from protofl.system.files.checksums import check_plain
from protofl.system.files.home import expand_user
from protofl.system.sources import digest_of_code
from protofl.system.version import __version__, versions
from protofl_workbench.comparing.run_groups import RunLike, runs_in
from protofl_workbench.publishing import layout
from protofl_workbench.publishing.derivation import (
    OPTIONAL,
    check_record,
    described,
    draw,
    drawn_with,
    inside,
    write_texts,
)
from protofl_workbench.publishing.papers import Paper, bibliography, own_paper, papers_of
from protofl_workbench.publishing.read_me import read_me
from protofl_workbench.publishing.scrubbing import Scrubber
from protofl_workbench.recorded.recorded_run import Run

COPIED = (METRICS, SUMMARY, PARTITION)


@dataclass(frozen=True)
class Publication:
    """A published folder.

    Attributes:
        folder: The folder.
        digest: SHA-256 of its ``SHA256SUMS``.
        runs: Names of the runs.
        files: Number of files with a digest.
        size: Their bytes.
        values: The content of ``publication.json``.
    """

    folder: Path
    digest: str
    runs: tuple[str, ...]
    files: int
    size: int
    values: Mapping[str, Any]


def publish(
    runs: RunLike | Iterable[RunLike],
    out: str | Path,
    *,
    title: str = "",
    description: str = "",
    authors: Sequence[str] = (),
    license: str = "",
    include: Sequence[str] = (),
    force: bool = False,
    note: Callable[[str], None] = lambda line: None,
) -> Publication:
    """Write finished runs into one folder that a paper can point to.

    The folder works everywhere: it names no place of this machine. While it is written, the
    process has another current folder.

    Args:
        runs: Runs, their folders, folders of runs, or a sweep's folder.
        out: The new folder.
        title: Title; by default it is made from the runs.
        description: A few sentences; by default the methods and data sets.
        authors: Their names.
        license: Its name, such as ``CC-BY-4.0``; empty for none.
        include: Of `OPTIONAL`.
        force: Replace ``out`` if it is a published folder.
        note: Takes a line about each thing that the user should know.

    Returns:
        The published folder.

    Raises:
        UsageError: A run is unfinished or damaged, runs have different versions, a plugin's file
            has changed since its run, or ``out`` exists. Nothing is published then.

    Examples:
        >>> pf.publish("runs/first", "published", license="CC-BY-4.0").runs
        ('first',)
    """
    for word in include:
        if word not in OPTIONAL:
            raise unknown("part of --include", word, OPTIONAL)
    each = [runs] if isinstance(runs, (Run, Result, str, Path)) else [*runs]
    target = _target(out, force)
    opened = {run.folder.resolve(): run for one in each for run in runs_in(one)}
    # A folder of runs may have the published folder of last time in it.
    found = [run for place, run in opened.items() if not place.is_relative_to(target.resolve())]
    if not found:
        raise UsageError(f"all runs are in --out {out} itself", do="choose another folder")
    check_publishable(found)
    names = _names(found)
    scrubber = Scrubber([run.folder for run in found])
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        sources = _Sources(part)
        for name, run in names.items():
            _write_run(part, name, run, include, scrubber, sources)
        claims: dict[str, Any] = {
            "title": title,
            "description": description,
            "authors": [*authors],
            "license": license,
            "published": f"{datetime.now(UTC):%Y-%m-%d}",
            "publisher": f"protofl {__version__}",
            "packages": _packages(names, note),
            "included": sorted(include),
        }
        with inside(part):
            copies = {name: Run.of(Path(layout.RUNS) / name) for name in names}
            for name, run in copies.items():
                check_record(name, run)
            claims["drawn_with"] = drawn_with(copies.values(), title)
            values = described(copies, claims)
            draw(copies, values, part)
        write_file(part / layout.PAPERS, bibliography(_papers(names, note)))
        write_texts(values, part)
        write_file(part / layout.README, read_me(values))
        scrubber.check(part, sources.origins)
        digest = layout.write_digests(part)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    files = layout.files_in(target)
    size = sum((target / name).stat().st_size for name in files)
    if not authors:
        note("no author is named: add --author NAME")
    if not license:
        note("no license is given, so the folder may not be reused: add --license CC-BY-4.0")
    return Publication(target, digest, tuple(names), len(files), size, values)


# --- checks before anything is written ------------------------------------------------------------


def check_publishable(runs: Sequence[Run]) -> None:
    """Check that runs can be published together.

    Raises:
        UsageError: A run is unfinished or damaged, or the runs have different versions of
            protofl, torch or a plugin's code.
    """
    for run in runs:
        check_plain(run.folder, OWN)  # a link may lead to a private file
        if run.problem:
            raise UsageError(run.problem, do=f"leave out {run.folder}, or do the run again")
        if not run.finished:
            raise UsageError(
                f"{run.folder} is not finished: {run.why_it_ended or run.state}",
                do=f"protofl run --resume --out {run.folder}; or leave the run out",
            )
        if run.partition is None:
            raise UsageError(
                f"{run.folder} has no {PARTITION}", do="do the run again, or leave it out"
            )
    facts: dict[str, dict[str, Path]] = {}
    for run in runs:
        for what, value in _common_facts(run.config):
            facts.setdefault(what, {}).setdefault(value, run.folder)
    for what, values in facts.items():
        if len(values) > 1:
            (one, first), (two, second), *_ = values.items()
            raise UsageError(
                f"the runs have different versions of {what}: {one} ({first}) and {two} ({second})",
                do="do the older runs again, or publish them in a folder of their own",
            )


def _common_facts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((name, str(config["versions"][name])) for name in ("protofl", "torch"))
    for plugin in config.get("plugins", ()):
        what = f"{plugin['kind']} {plugin['name']}"
        yield what, f"{plugin['version']} with code {plugin.get('code', '?')}"


def _names(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the runs by names that are unique: those of their folders."""
    names: dict[str, Run] = {}
    for run in runs:
        folder = run.folder.resolve()
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "run"
        name, number = stem, 1
        while name in names:
            number += 1
            name = f"{stem}-{number}"
        names[name] = run
    return names


def _target(out: str | Path, force: bool) -> Path:
    """Return the folder to write to.

    Raises:
        UsageError: It exists, and is not a published folder that may be replaced.
    """
    target = expand_user(out).absolute()
    parent = next(place for place in target.parents if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"--out {out} cannot be written", do="choose another folder with --out")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"--out {out} is not a folder", do="choose another folder with --out")
    if target.is_dir() and any(target.iterdir()):
        if not layout.is_publication(target):
            raise UsageError(
                f"--out {out} exists already, and is not a published folder",
                do="choose another folder with --out",
            )
        if not force:
            raise UsageError(
                f"--out {out} exists already", do="choose another folder with --out, or --force"
            )
    return target


# --- files of a run -------------------------------------------------------------------------------


class _Sources:
    """Sources of plugins that are not installed, each written once into the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[Path, str] = {}
        self.origins: dict[str, str] = {}
        """{file in the folder: the file from which it was copied}."""

    def place(self, label: str, place: str, code: str) -> str:
        """Copy the file of a class; return the place of the class in the published folder.

        Args:
            label: KIND/NAME.
            place: ``FILE.py:CLASS`` or ``MODULE:CLASS``.
            code: The recorded digest of its code.

        Raises:
            UsageError: The file is missing, or its code is not that of the run.
        """
        target, _, inner = place.rpartition(":")
        path = _file_of(target)
        if not code:
            raise UsageError(
                f"the digest of the code of {label} is not recorded",
                do="do the run again, or leave it out",
            )
        if path is None or not path.is_file():
            raise UsageError(
                f"the source of {label} is missing: {target}",
                do="restore the file, or leave the run out",
            )
        if digest_of_code(path) != code:
            raise UsageError(
                f"{path} has changed since the run with {label}",
                f"its code had the digest {code} and has {digest_of_code(path)}",
                "restore the file, or do the run again",
            )
        if path not in self._written:
            stem = re.sub(r"[^\w.-]+", "-", path.stem).strip("-.") or "plugin"
            name, number = f"{layout.PLUGINS}/{stem}.py", 1
            while name in self.origins:
                number += 1
                name = f"{layout.PLUGINS}/{stem}_{number}.py"
            (self._folder / layout.PLUGINS).mkdir(exist_ok=True)
            shutil.copyfile(path, self._folder / name)
            self._written[path], self.origins[name] = name, str(path)
        return f"{self._written[path]}:{inner}"


def _file_of(target: str) -> Path | None:
    if target.endswith(".py"):
        return expand_user(target).resolve()
    top = target.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        inside = target.split(".")[1:]
        root = Path(next(iter(spec.submodule_search_locations)))
        module = root.joinpath(*inside).with_suffix(".py") if inside else root / "__init__.py"
        return module if module.is_file() else root.joinpath(*inside, "__init__.py")
    return Path(spec.origin) if spec.origin else None


def _write_run(
    folder: Path,
    name: str,
    run: Run,
    include: Sequence[str],
    scrubber: Scrubber,
    sources: _Sources,
) -> None:
    """Write the record of a run without what is private."""
    target = folder / layout.RUNS / name
    target.mkdir(parents=True)
    recorded = json.loads((run.folder / CONFIG).read_text(encoding="utf-8"))
    recorded.pop("data_dir", None)
    codes = {f"{p['kind']}/{p['name']}": p.get("code", "") for p in recorded["plugins"]}
    for label, place in recorded.get("classes", {}).items():
        if not place:
            raise UsageError(
                f"{run.folder} has {label}, a class of a program or notebook, whose source is not "
                "recorded",
                do="write the class into a file FILE.py, and do the run with FILE.py:CLASS",
            )
    places = {
        label: sources.place(label, place, codes.get(label, ""))
        for label, place in recorded.get("classes", {}).items()
    }
    config = scrubber.values(recorded) | ({"classes": places} if places else {})
    write_json(target / CONFIG, config)
    files = [*COPIED, *([PREPARATION] if "preparation" in include else [])]
    for file in files:
        path = run.folder / file
        if not path.is_file():
            continue
        if file == METRICS:
            lines = path.read_text(encoding="utf-8").splitlines()
            write_file(target / file, "".join(f"{scrubber.line(line)}\n" for line in lines))
            continue
        values = json.loads(path.read_text(encoding="utf-8"))
        if file == PARTITION and "client-names" not in include:
            for split in (values, *values.get("trials", ())):
                split.pop("client_names", None)
        write_json(target / file, scrubber.values(values))
    if "predictions" in include and (run.folder / "predictions").is_dir():
        shutil.copytree(run.folder / "predictions", target / "predictions")
    if "weights" in include:
        _write_weights(run, target / "weights")


def _write_weights(run: Run, folder: Path) -> None:
    """Write the weights of each trial's best and last round, where they are kept."""
    from safetensors.torch import save_file

    from protofl.records.weights import read_weights

    for trial in run.trials:
        for which in ("best", "last"):
            try:
                weights = read_weights(run.folder, which, trial)
            except UsageError:  # not kept, or kept on other machines
                continue
            place = folder / f"t{trial}-{which}"
            place.mkdir(parents=True)
            save_file(
                {k: t.contiguous() for k, t in weights.server.items()}, place / "server.safetensors"
            )
            for client, tensors in weights.clients.items():
                kept = {k: t.contiguous() for k, t in tensors.items() if k.startswith("model/")}
                save_file(kept, place / f"client-{client:05d}.safetensors")


# --- files about all runs -------------------------------------------------------------------------


def _papers(names: Mapping[str, Run], note: Callable[[str], None]) -> list[Paper]:
    """Return the papers of protofl and of all plugins of the runs."""
    papers = [own_paper(str(next(iter(names.values())).config["versions"]["protofl"]))]
    lacking: list[str] = []
    seen: set[str] = set()
    for run in names.values():
        registry = Registry(classes=_allowed(run.config.get("classes", {})))
        plugins = [(str(p["kind"]), str(p["name"])) for p in run.config["plugins"]]
        for label, found in papers_of(registry, plugins).items():
            papers += found
            wanted = label.partition("/")[0] in ("method", "dataset", "model-group")
            if wanted and not found and label not in seen and label not in WITHOUT_PAPER:
                lacking.append(label)
            seen.add(label)
    if lacking:
        note(f"no paper is declared for {', '.join(lacking)} (a file papers.bib beside the plugin)")
    return papers


FORMS_OF_FILES = ("npz", "csv", "parquet", "folder", "domains", "hf", "nodes")

WITHOUT_PAPER = frozenset(
    (
        "method/local",
        "method/centralised",
        "model-group/mlp",
        *(f"dataset/{name}" for name in FORMS_OF_FILES),
    )
)
"""Plugins of protofl that have no paper: baselines, and forms of files."""


def _allowed(classes: Mapping[str, str]) -> dict[str, str]:
    """Return the classes that this process may import; papers are found without importing them."""
    from protofl.system.consent import is_allowed

    return {label: place for label, place in classes.items() if is_allowed(place)}


def _packages(names: Mapping[str, Run], note: Callable[[str], None]) -> dict[str, str]:
    """Return the versions of protofl's dependencies and of the packages with plugins."""
    recorded, here = next(iter(names.values())).config["versions"], versions()
    if any(recorded.get(name) != here[name] for name in ("protofl", "torch")):
        note("versions of further packages are left out: the runs were made with other versions")
        return {name: str(recorded[name]) for name in ("protofl", "torch")}
    wanted = {str(p["distribution"]) for run in names.values() for p in run.config["plugins"]} - {
        "this program"
    }
    for requirement in importlib.metadata.requires("protofl") or ():
        if "extra ==" not in requirement:
            wanted.add(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
    found: dict[str, str] = {}
    for name in sorted(wanted | {"protofl"}):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # not needed by this version of Python
            continue
    return found
