"""`verify`: check a published folder, and do one of its runs again.

Digests only show that the folder is as it was when ``SHA256SUMS`` was written. So rows,
summaries and the page are compared with what follows from the configuration and the rows
(`derivation`). Whether the rows are those of the run is known only for a run that is repeated.

A repeated run must have the same figures to the last bit if torch, the type of processor and the
code of all plugins are those of the published run (docs/background/results.md, Repeatability).
Otherwise its accuracies may differ by a tolerance, and the result says what differs. The verifier
draws the run, because an author who knows which run is repeated can change the others.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError, unknown
from protofl.federation import events
from protofl.records.layout import CONFIG, PARTITION
from protofl.runs.python_api import run_named
from protofl.runs.results.identity import file_digests
from protofl.system.consent import check_recorded
from protofl.system.files.atomic import parse_json, write_json
from protofl.system.files.home import expand_user
from protofl.system.formatting import count
from protofl.system.machine import recorded_facts
from protofl.system.options.table import UNRECORDED
from protofl_workbench.comparing.run_difference import run_difference
from protofl_workbench.publishing import layout
from protofl_workbench.publishing.derivation import check_derived
from protofl_workbench.recorded.recorded_run import Run

if TYPE_CHECKING:
    from protofl.federation.plan.plan import Plan

TOLERANCE = 0.02
"""Largest difference of accuracies, as a fraction, where bits cannot be expected to be equal."""


@dataclass(frozen=True)
class Repeated:
    """A published run that was done again.

    Attributes:
        name: The run.
        rounds: Number of compared rounds, of all trials.
        of: Number of rounds that the published run has.
        exact: True if the figures had to be equal to the last bit.
        reasons: What differs between the published run and this one, if they need not be equal.
        equal_rounds: Number of rounds from the first on that are equal to the last bit.
        largest: Largest difference of the test accuracy in a compared round; None if no round has
            an accuracy in both.
        tolerance: The tolerance for ``largest`` if the figures need not be equal.
        accuracy: The published test accuracy of the last compared round.
        accuracy_here: That of the repeated run.
        first: Figures that differ in the first round that is not equal: (name, published, here).
        facts: Facts about data, split and models that differ: (name, published, here).
        seconds: Seconds of the repeated rounds.
    """

    name: str
    rounds: int
    of: int
    exact: bool
    reasons: tuple[str, ...]
    equal_rounds: int
    largest: float | None
    tolerance: float
    accuracy: float | None
    accuracy_here: float | None
    first: tuple[tuple[str, Any, Any], ...]
    facts: tuple[tuple[str, Any, Any], ...]
    seconds: float

    @property
    def confirmed(self) -> bool:
        """True if the repeated run has the published figures."""
        within = not self.exact and self.largest is not None and self.largest <= self.tolerance
        return not self.facts and (self.equal or within)

    @property
    def equal(self) -> bool:
        """True if at least one round was compared, and all are equal to the last bit."""
        return self.equal_rounds == self.rounds > 0

    @property
    def outcome(self) -> str:
        """A line that says what was compared, and how."""
        rounds = f"{self.name}, {self.rounds} of {count(self.of, 'round')}"
        if not self.confirmed:
            return f"{rounds}: other figures here"
        if self.equal:
            return f"{rounds}: equal to the last bit"
        assert self.largest is not None
        return (
            f"{rounds}: not compared to the last bit, because {'; '.join(self.reasons)}; only test "
            f"accuracies were compared, and differ by at most {100 * self.largest:.2f} of "
            f"{100 * self.tolerance:g} allowed points"
        )


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        folder: The folder.
        digests: Its files against their digests.
        repeated: The repeated run; None if none was asked for.
        values: The content of ``publication.json``.
        not_checked: What was not checked, besides the runs that were not repeated.
    """

    folder: Path
    digests: layout.Digests
    repeated: Repeated | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    not_checked: tuple[str, ...] = ()

    @property
    def confirmed(self) -> bool:
        """True if nothing that was checked differs, which without a repeated run says little."""
        return self.digests.whole and (self.repeated is None or self.repeated.confirmed)

    @property
    def not_repeated(self) -> list[str]:
        """Names of the runs of which no round was repeated."""
        done = self.repeated and self.repeated.name
        return [name for about in self.values["runs"] if (name := about["name"]) != done]

    @property
    def outcome(self) -> str:
        """A paragraph that says what was checked, and what was not."""
        every = len(self.values["runs"])
        if self.repeated is None:
            start = (
                f"not verified: no run was repeated, so the rows of {count(every, 'run')} are what "
                "the author says. Digests are right, and all else that was checked follows "
                "from the rows."
            )
        else:
            word = "verified" if self.repeated.equal else "within the tolerance"
            word = word if self.confirmed else "not confirmed"
            start = f"{word}: repeated 1 of {count(every, 'run')}: {self.repeated.outcome}."
        left = f" Not repeated: {', '.join(self.not_repeated)}." if self.not_repeated else ""
        return f"{start}{left} Not checked: {'; '.join(self.not_checked)}."


def verify(
    folder: str | Path,
    *,
    run: str | None = None,
    start: bool = True,
    rounds: int | None = None,
    datasets: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    digest: str = "",
    tolerance: float = TOLERANCE,
    data_dir: str | Path | None = None,
    device: str | None = None,
    follow: events.Progress = lambda event: None,
    note: Callable[[str], None] = lambda line: None,
) -> Verification:
    """Check a published folder: its files against digests and rows, and one run that is repeated.

    Args:
        folder: The folder, wherever it is now.
        run: Name of the run; by default one is drawn at random, of those whose data are here and
            whose code has consent.
        start: False to repeat no run.
        rounds: Repeat only the first rounds of the first trial.
        datasets: {data set as published: place}: ``{"npz:set.npz": "npz:/data/set.npz"}``.
        files: {option: path} of further files: ``{"init": "/data/weights.safetensors"}``.
        digest: The digest of the publication, as a paper prints it; empty to not compare.
        tolerance: Allowed difference of accuracies where bits cannot be expected to be equal.
        data_dir: Cache of data sets.
        device: Device of the repeated run; by default that of the published run.
        follow: Called with every event of the run.
        note: Takes a line about each step.

    Returns:
        The result. The repeated run may have other figures: see `Verification.confirmed`, and
        `Verification.outcome` for what was compared.

    Raises:
        Changed: A file was changed, is missing or was added, or does not follow from the rows.
        UsageError: The folder is not a published one, the run is unknown, or no run can be
            repeated: its data are missing or others, or its code in the folder has no consent.

    Examples:
        >>> publication = pf.publish("runs/first", "published", license="CC-BY-4.0")
        >>> pf.verify("published").confirmed
        True
    """
    path = expand_user(folder)
    values = layout.read_publication(path)
    digests = layout.check_digests(path)
    digests.require(path)
    if digest and not digests.digest.startswith(digest.lower()):
        raise layout.Changed(
            f"{folder} is another publication: its digest is {digests.digest}",
            f"--digest {digest} was expected",
        )
    names = [str(about["name"]) for about in values["runs"]]
    if run is not None and run not in names:
        raise unknown("run", run, names, f"see: protofl runs list {folder}")
    unchecked = tuple(check_derived(path, values))
    if not start:
        return Verification(path, digests, None, values, unchecked)
    note(f"all {digests.files} files have their digests, and follow from the rows")
    possible, errors = dict[str, dict[str, Any]](), list[UsageError]()
    for about in values["runs"]:
        if run in (None, name := about["name"]):
            try:
                possible[name] = _options(path, about, datasets or {}, files or {}, values)
            except UsageError as error:
                errors.append(error)
                unchecked = (*unchecked, f"{name}, which cannot be repeated here")
                note(f"{name} cannot be repeated: {error.what}")
    if not possible:
        raise errors[0]
    about = secrets.choice([about for about in values["runs"] if about["name"] in possible])
    options, run_count = possible[about["name"]], count(len(possible), "run")
    drawn = f", drawn at random from {run_count} (--run chooses)" if not run else ""
    note(f"repeating {about['name']}{drawn}; its record says {about['seconds']:,.1f} s")
    if device is not None:
        options["device"] = device
    if rounds is not None:
        options |= {"rounds": min(rounds, int(options["rounds"])), "trials": 1}
    repeated = _repeat(path, about, options, tolerance, data_dir, follow)
    return Verification(path, digests, repeated, values, unchecked)


def _options(
    folder: Path,
    about: Mapping[str, Any],
    datasets: Mapping[str, str],
    files: Mapping[str, str],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the ``config.json`` of a run with the places of files on this machine."""
    file = folder / layout.RUNS / str(about["name"]) / CONFIG
    config: dict[str, Any] = parse_json(file.read_bytes())
    for name in UNRECORDED - {"backend", "profile"}:
        config.pop(name, None)  # such as trackers, which are not wanted here
    if classes := config.get("classes"):
        places = {label: _inside(folder, place) for label, place in classes.items()}
        config["classes"] = places
        check_recorded(config, str(file))
    known = sorted({str(run["dataset"]) for run in values["runs"]})
    for name in datasets:
        if name not in known:
            raise unknown("data set of --dataset", name, known, "write NAME=FORM:FILE")
    dataset = str(config["dataset"])
    config["dataset"] = datasets.get(dataset, dataset)
    form, colon, place = dataset.partition(":")
    if dataset not in datasets and colon and form in FORMS and not Path(place).exists():
        raise UsageError(
            f"the data of {about['name']} are not part of the folder: {dataset}",
            f"their samples have the SHA-256 {about['data']}",
            f"--dataset {dataset}={form}:PATH; or check digests only: --no-run",
        )
    _check_files(config, files)
    for option, place in files.items():
        owner, dot, key = option.rpartition(".")
        target = config["options"].setdefault(owner, {}) if dot else config
        if (key if dot else option) not in target:
            raise unknown("option of --file", option, config.get("files", {}), "write OPTION=PATH")
        target[key if dot else option] = place
    if (other := config.get("participants_from")) and (folder / layout.RUNS / other).is_dir():
        config["participants_from"] = str((folder / layout.RUNS / other).resolve())
    return config


def _check_files(config: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Check that further files of a run, such as initial weights, are given or at their place.

    Raises:
        UsageError: One is missing; the error has its digest.
    """
    for file, digest in config.get("files", {}).items():
        option = file.partition("/")[0]
        owner, dot, key = option.rpartition(".")
        value = str((config["options"].get(owner, {}) if dot else config).get(key or option) or "")
        place = value.partition(":")[2] or value
        if option not in files and not Path(place).exists():
            raise UsageError(
                f"the file of {option} is not part of the folder: {value}",
                f"its SHA-256 is {digest}",
                f"--file {option}=PATH",
            )


FORMS = ("npz", "csv", "parquet", "folder", "domains", "pfllib")
"""Data sets that are files or folders of the user: ``FORM:PATH``."""


def _inside(folder: Path, place: str) -> str:
    """Return the place of a class in the published folder as an absolute one."""
    target, _, inner = place.rpartition(":")
    path = (folder / target).resolve()
    return f"{path}:{inner}" if target.endswith(".py") and path.is_file() else place


def _repeat(
    folder: Path,
    about: Mapping[str, Any],
    options: Mapping[str, Any],
    tolerance: float,
    data_dir: str | Path | None,
    follow: events.Progress,
) -> Repeated:
    """Do a run again in a temporary folder, and compare the records."""

    def check_and_follow(event: events.Event) -> None:
        if isinstance(event, events.Planned):
            _check_inputs(event.plan, about)
        if not isinstance(event, events.Finished):  # its folder is removed
            follow(event)

    with tempfile.TemporaryDirectory(prefix="protofl-verify-") as scratch:
        place = Path(scratch)
        write_json(place / CONFIG, options)
        typed = {} if data_dir is None else {"data_dir": str(data_dir)}
        result = run_named(
            typed, config=place / CONFIG, out=place / "run", progress=check_and_follow
        )
        published = Run.of(folder / layout.RUNS / str(about["name"]))
        here = Run.of(result.folder)
        here.rows  # noqa: B018 - read before the folder is removed
        return _compared(str(about["name"]), published, here, tolerance)


def _check_inputs(plan: Plan, about: Mapping[str, Any]) -> None:
    """Check, before anything is trained, that data and files are those of the published run.

    Raises:
        UsageError: Their digests differ.
    """
    if plan.data.digest != about["data"]:
        raise UsageError(
            f"the data of {plan.settings.dataset} are not those of {about['name']}",
            f"SHA-256 of the samples: published {about['data']}, here {plan.data.digest}",
            "give the published data with --dataset",
        )
    here = file_digests(plan)
    for option, digest in about["files"].items():
        if here.get(option) != digest:
            raise UsageError(
                f"the file of {option} is not that of {about['name']}",
                f"SHA-256: published {digest}, here {here.get(option, 'no file')}",
                f"give the published file: --file {option.partition('/')[0]}=PATH",
            )


def _compared(name: str, published: Run, here: Run, tolerance: float) -> Repeated:
    difference = run_difference(published, here)
    reasons = _reasons(published.config, here.config)
    rows = {(row.trial, row.round): row for row in published.rows}
    shared = [(rows[key], row) for row in here.rows if (key := (row.trial, row.round)) in rows]
    scored = [
        (one.test_accuracy, two.test_accuracy)
        for one, two in shared
        if one.test_accuracy is not None and two.test_accuracy is not None
    ]
    one_sided = sum((o.test_accuracy is None) != (t.test_accuracy is None) for o, t in shared)
    asked = {key for key in rows if key[0] < here.config["trials"]}
    asked = {key for key in asked if key[1] < here.config["rounds"]}
    facts = _facts(published, here)
    if asked != {(row.trial, row.round) for row in here.rows}:
        facts.append(("rounds", len(asked), len(here.rows)))
    return Repeated(
        name,
        difference.shared_rounds,
        len(published.rows),
        not reasons,
        tuple(reasons),
        difference.equal_rounds,
        max((abs(one - two) for one, two in scored), default=None) if not one_sided else None,
        tolerance,
        scored[-1][0] if scored else None,
        scored[-1][1] if scored else None,
        tuple(difference.first),
        tuple(facts),
        sum(float(row.seconds["total"]) for row in here.rows),
    )


def _facts(published: Run, here: Run) -> list[tuple[str, Any, Any]]:
    """Return the facts about data, models and splits that differ."""
    keys = ("data", "layout", "architectures", "depends_on")
    facts = [(key, published.config.get(key), here.config.get(key)) for key in keys]
    splits = []
    for run in (published, here):
        record: dict[str, Any] = {"trials": [], **(run.partition or {})}
        each = [{**record, "trials": []}, *record["trials"]]
        splits.append([{k: v for k, v in one.items() if k != "client_names"} for one in each])
    if splits[0][: len(splits[1])] != splits[1]:
        facts.append((PARTITION, "another split", "the split of these data"))
    return [(name, one, two) for name, one, two in facts if one != two]


def _reasons(published: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return what differs of all on which the last bits may depend."""
    then, now = (
        {
            **recorded_facts(config),
            "device": str(config.get("device")),
            **{
                f"the code of {p['kind']} {p['name']}": p.get("code", "?")
                for p in config.get("plugins", ())
            },
        }
        for config in (published, here)
    )
    for facts in (then, now):
        facts.pop("python", None)
    reasons = [
        f"{name} was {then[name]} and is {now[name]}"
        for name in then
        if name in now and then[name] != now[name]
    ]
    if not all(
        config.get("arithmetic", {}).get("repeatable", True) for config in (published, here)
    ):
        reasons.append("the run was not repeatable on its GPU (--deterministic)")
    return reasons
