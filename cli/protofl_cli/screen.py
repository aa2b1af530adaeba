"""What ``protofl run`` shows: the composition, the progress, and the table at the end."""

from __future__ import annotations

import os
import shlex
import statistics
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from protofl_cli import render
from protofl_cli.options import value_text

if TYPE_CHECKING:
    from protofl.plan import Plan
    from protofl.record import RunFolder
    from protofl.run import Result

SIGN_OF_LIFE = 10.0
"""Seconds between lines within a round where there is no terminal."""

TRAINING_SHARE = 0.8
"""Share of a round's time that training takes, until a round has been measured."""

TRIALS_SHOWN = 5


class Screen:
    """Follows a run by its events; to be called with each.

    Args:
        quiet: Whether to print the last table only.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.folder: RunFolder | None = None
        """The run folder, once it is there."""
        self._bar = render.Bar()
        self._plan: Plan | None = None
        self._trial, self._round = 0, 0
        self._stage, self._jobs, self._done = "", 0, 0
        self._begin = self._moved = self._said = time.monotonic()
        self._spent: list[float] = []
        self._training = TRAINING_SHARE
        self._last: float | None = None
        self._best: tuple[float, int] | None = None
        self._ended = threading.Event()
        self._lock = threading.RLock()

    def __enter__(self) -> Screen:
        if not self.quiet:
            threading.Thread(target=self._every_second, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._ended.set()
            self._bar.stop()

    def __call__(self, event: str, values: dict[str, Any]) -> None:
        """Take an event of `protofl.run`; unknown ones are left alone."""
        handler = getattr(self, f"_on_{event}", None)
        if handler is not None:
            with self._lock:
                self._moved = time.monotonic()
                handler(**values)

    def loading(self) -> None:
        """Importing torch and the plugins takes seconds."""
        if not self.quiet:
            self._bar.show("loading", "")

    # --- events ---------------------------------------------------------------------------------

    def _on_note(self, text: str) -> None:
        if not self.quiet:
            self._bar.line(f"note: {text}", "yellow")

    def _on_plan(self, plan: Plan, folder: RunFolder) -> None:
        self._plan = plan
        self._bar.stop()
        if folder.commit is not None or folder.path.exists():
            self.folder = folder
        if folder.rows:
            own = [r for r in folder.rows if r["trial"] == folder.rows[-1]["trial"]]
            for row in own:
                self._note_accuracy(row)
        if self.quiet:
            return
        s = plan.settings
        render.heading(f"{s.method} · {s.models} · {s.dataset}")
        render.pairs(composition_rows(plan, folder))
        for note in dict.fromkeys([*plan.notes, *plan.split(0).notes]):
            render.text(f"  note: {note}", "yellow")
        render.text()
        if folder.commit is not None and len(folder.rows) < s.trials * s.rounds:
            count = len(folder.rows)
            render.text(f"Continuing behind {count} finished round{'s' if count > 1 else ''}.")

    def _on_dry(self) -> None:
        if self.quiet:
            return
        words = "two short rounds of two clients, before the first"
        if self._bar.live:
            self._bar.show("dry step", words)
        else:
            self._bar.line(f"dry step: {words}")

    def _on_folder(self, folder: RunFolder) -> None:
        self.folder = folder

    def _on_round(self, trial: int, round: int) -> None:
        if trial != self._trial:
            self._last = self._best = None
        self._trial, self._round = trial, round
        self._begin = self._said = time.monotonic()
        self._stage, self._jobs, self._done = "setup", 0, 0
        self._draw()

    def _on_stage(self, stage: str, jobs: int) -> None:
        self._stage, self._jobs, self._done = stage, jobs, 0
        self._draw()

    def _on_client(self, stage: str, client: int) -> None:
        self._done += 1
        self._draw()

    def _on_done(self, row: dict[str, Any]) -> None:
        seconds = row["seconds"]
        self._spent.append(time.monotonic() - self._begin)
        whole = seconds["total"]
        if whole > 0 and row["test_accuracy"] is not None:
            # Stages are summed over hosts, so only their proportion says something.
            train, test = seconds["train"] + seconds["setup"], seconds["evaluate"]
            self._training = train / (train + test) if train + test else TRAINING_SHARE
        better = self._note_accuracy(row)
        self._stage, self._jobs = "", 0
        if self.quiet or self._plan is None:
            return
        if self._bar.live:
            self._draw(1.0)
        else:
            self._bar.line(self._round_line(row, better))

    def _on_end(self, result: Result, plan: Plan) -> None:
        self._ended.set()
        self._bar.stop()
        columns, rows = result_rows(result, plan)
        s = plan.settings
        if not self.quiet:
            render.text()
        name, others = f"{s.method} · {s.models} · {s.dataset}", run_rows(result)
        others.append(("run folder", shown_path(result.folder)))
        if columns:
            render.table((name, *columns), rows, right=columns)
            render.pairs(others)
        else:
            render.table((name, ""), rows + [list(row) for row in others])

    # --- the progress ---------------------------------------------------------------------------

    def _note_accuracy(self, row: dict[str, Any]) -> bool:
        accuracy = row["test_accuracy"]
        if accuracy is None:
            return False
        self._last = accuracy
        if self._best is None or accuracy > self._best[0]:
            self._best = accuracy, row["round"]
            return True
        return False

    def _draw(self, within: float | None = None) -> None:
        """The live line."""
        if self.quiet or self._plan is None or not self._bar.live:
            return
        rounds, trials = self._plan.settings.rounds, self._plan.settings.trials
        share = self._within() if within is None else within
        label = self._where(rounds, trials)
        parts = [f"{self._stage} {self._done}/{self._jobs}" if self._jobs else self._stage]
        if self._last is not None and self._best is not None:
            parts.append(f"acc {self._last:.1%}, best {self._best[0]:.1%}")
        left = self._time_left(share)
        parts.append(f"{left} left" if left else "")
        done = (self._trial * rounds + self._round + share) / (rounds * trials)
        self._bar.show(label, "  ".join(part for part in parts if part), done)

    def _where(self, rounds: int, trials: int) -> str:
        trial = f"trial {self._trial + 1}/{trials} " if trials > 1 else ""
        return f"{trial}round {self._round + 1}/{rounds}"

    def _within(self) -> float:
        """How much of the round is done."""
        share = self._done / self._jobs if self._jobs else 0.0
        if self._stage == "train":
            return share * self._training
        if self._stage == "evaluate":
            return self._training + share * (1 - self._training)
        return 0.0

    def _time_left(self, share: float) -> str:
        """From the rounds of this session so far, or from the first one's part that is done."""
        assert self._plan is not None
        settings = self._plan.settings
        recent = self._spent[-5:]
        if recent:
            each = statistics.mean(recent)
        elif share > 0.2:
            each = (time.monotonic() - self._begin) / share
        else:
            return ""
        rounds = settings.rounds * settings.trials - self._trial * settings.rounds - self._round
        return clock(max(0.0, each * (rounds - share) - (time.monotonic() - self._moved)))

    def _round_line(self, row: dict[str, Any], better: bool) -> str:
        assert self._plan is not None
        settings = self._plan.settings
        accuracy = row["test_accuracy"]
        words = [f"{self._where(settings.rounds, settings.trials)}:"]
        words.append("not evaluated" if accuracy is None else f"accuracy {accuracy:.1%}")
        words[-1] += " (best)," if better else ","
        loss = "not finite" if row["train_loss"] is None else f"{row['train_loss']:.3f}"
        words.append(f"loss {loss}, {clock(self._spent[-1], exact=True)}")
        left = self._time_left(1.0)
        return " ".join(words) + (f", {left} left" if left not in ("", "0:00") else "")

    def _every_second(self) -> None:
        """Count down; where there is no terminal, print a line now and then in a long round."""
        while not self._ended.wait(1.0):
            with self._lock:
                now = time.monotonic()
                if self._ended.is_set() or self.quiet or self._plan is None or not self._stage:
                    continue
                if self._bar.live:
                    self._draw()
                elif now - self._said >= SIGN_OF_LIFE:
                    self._said = now
                    settings = self._plan.settings
                    jobs = f" {self._done}/{self._jobs} clients" if self._jobs else ""
                    where = self._where(settings.rounds, settings.trials)
                    self._bar.line(f"  {where}: {self._stage}{jobs}, {clock(now - self._begin)}")


# --- what stands on the pages -------------------------------------------------------------------


def composition_rows(plan: Plan, folder: RunFolder) -> list[tuple[str, str]]:
    """Who provides what, on which data, how and where."""
    s, info, composition = plan.settings, plan.info, plan.composition
    rows = list(composition.describe().items())
    wrappers = [m.name for m in composition.members.values() if m.role == "wrapper"]
    if wrappers:
        rows.append(("wrappers", ", then ".join(wrappers)))
    rows += [
        (f"{name} options", words)
        for name, config in composition.configs.items()
        if (words := _changed(config))
    ]
    split = plan.split(0)
    sizes = split.offsets.diff()[::2]
    images = plan.images
    channels, height, width = images.x.shape[1:]
    rows.append(
        (
            "data",
            f"{s.dataset}: {len(images.y):,} images {channels}×{height}×{width}, "
            f"{images.num_classes} classes",
        )
    )
    part = plan.parts["partitioner"]
    how = "as the data come" if split.partitioner == "own" else _called(part.text, part.config)
    rows.append(
        (
            "split",
            f"{how}: {info.num_clients} clients with {int(sizes.min()):,} … {int(sizes.max()):,} "
            f"training samples, hash {split.hash[:12]}",
        )
    )
    if split.public is not None:
        rows.append(("public", f"{len(split.public):,} unlabelled samples"))
    elif plan.public_images is not None:
        rows.append(("public", f"{len(plan.public_images.y):,} unlabelled samples, {s.public}"))
    names = [a.name for a in info.architectures]
    group = s.models if names == [s.models] else f"{s.models}: {', '.join(names)}"
    rows.append(
        (
            "models",
            f"{group}; K = {info.feature_dim}, {info.channels}×{info.side}×{info.side} pixels",
        )
    )
    optimizer = f"{s.optimizer} with lr {s.lr:g}" + (
        f", momentum {s.momentum:g}" * bool(s.momentum)
    )
    extras = [
        word
        for word, is_on in (
            ("last batch dropped", s.drop_last),
            ("augmented", s.augment),
            (s.precision, s.precision != "fp32"),
        )
        if is_on
    ]
    rows.append(
        (
            "training",
            ", ".join(
                [
                    _count(s.rounds, "round"),
                    f"{info.participants} of {info.num_clients} clients a round",
                    _count(s.local_epochs, "epoch"),
                    f"batches of {s.batch_size}",
                    optimizer,
                    *extras,
                ]
            ),
        )
    )
    trials = f", {s.trials} trials" if s.trials > 1 else ""
    rows.append(("seed", f"{s.seed}{trials}"))
    workers = ""
    if s.backend != "local":
        workers = f" with {_count(s.workers, 'worker')}" if s.workers else ", a worker per core"
    rows.append(("runs on", f"{s.device}, engine {s.engine}, backend {s.backend}{workers}"))
    rows.append(("run folder", shown_path(folder.path)))
    return rows


def _changed(config: Any) -> str:  # noqa: ANN401 - a plugin's Config
    """The options that differ from their defaults."""
    try:
        usual = type(config)().model_dump(by_alias=True)
    except ValueError:  # it has options without a default
        usual = {}
    values = config.model_dump(by_alias=True)
    return " ".join(f"{k}={value_text(v)}" for k, v in values.items() if usual.get(k, ...) != v)


def _called(name: str, config: Any) -> str:  # noqa: ANN401 - a plugin's Config
    """A plugin with its options in brackets."""
    values = config.model_dump(by_alias=True)
    words = ", ".join(f"{k}={value_text(v)}" for k, v in values.items() if v is not None)
    return f"{name}({words})" if words else name


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def result_rows(result: Result, plan: Plan) -> tuple[list[str], list[list[str]]]:
    """The last table's headings and its rows; of several trials mean ± std and each."""
    summary = result.summary
    trials = summary["trials"]
    labels = {
        "best_test_accuracy": "best accuracy",
        "final_test_accuracy": "final accuracy",
        "majority_accuracy": "majority guess",
    }
    if len(trials) == 1:
        rows = [[label, f"{summary[key]:.2%}"] for key, label in labels.items()]
        rows[0][1] += f" after {summary['best_round'] + 1} of {_count(summary['rounds'], 'round')}"
        return [], rows
    # Trial k of seed s is a run with seed s + k, and is named by that.
    shown = trials if len(trials) <= TRIALS_SHOWN else []
    rows = [
        [
            label,
            f"{summary['mean'][key]:.2%} ± {summary['std'][key]:.2%}",
            *(f"{trial[key]:.2%}" for trial in shown),
        ]
        for key, label in labels.items()
    ]
    rows.insert(1, ["best after", "", *(_count(t["best_round"] + 1, "round") for t in shown)])
    if not shown:
        del rows[1]
    return ["mean ± std", *(f"seed {plan.seed(t['trial'])}" for t in shown)], rows


def run_rows(result: Result) -> list[tuple[str, str]]:
    """Spread over clients, traffic and seconds."""
    rows = []
    record = result.record
    last = max(result.client_accuracies, default=None)
    spread = sorted(result.client_accuracies[last].values()) if last is not None else []
    evaluated = [r for r in record if r["test_accuracy"] is not None]
    if spread:
        rows.append(
            (
                "over clients",
                f"{spread[0]:.1%} … {spread[-1]:.1%}, median {statistics.median(spread):.1%}, "
                f"std {statistics.pstdev(spread):.1%}",
            )
        )
    elif evaluated:  # the run was finished before
        mean, std = evaluated[-1]["client_test_accuracy"], evaluated[-1]["test_accuracy_std"]
        rows.append(("over clients", f"mean {mean:.1%}, std {std:.1%}"))
    # In round 0 many methods have nothing to send down yet.
    usual = [r for r in record if r["round"] > 0] or record
    for way in ("upload", "download"):
        floats = statistics.mean(r[f"{way}_floats"] for r in usual)
        size = statistics.mean(r[f"{way}_bytes"] for r in usual)
        amount = f"{floats:,.0f} floats, {_bytes(size)}" if size else "nothing"
        rows.append((f"{way} a round", amount))
    stages = [k for k in record[-1]["seconds"] if k != "total"]
    total = statistics.mean(r["seconds"]["total"] for r in record)
    rows.append(("seconds a round", f"{total:.2f}"))
    spent = [(k, statistics.mean(r["seconds"][k] for r in record)) for k in stages]
    parts = [f"{k} {value:.2f}" for k, value in spent if value >= 0.005]
    # Hosts work side by side, so what they spend together may exceed the round.
    rows.append(("by stage", ", ".join(parts) + (" (all hosts)" if parts else "")))
    return rows


def _bytes(size: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


def clock(seconds: float, *, exact: bool = False) -> str:
    """``1:05``, ``2:01:05``; exact ones below a minute as ``4.2 s``."""
    if exact and seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shown_path(path: Path) -> str:
    """A path as one would type it here."""
    whole = path.expanduser().absolute()
    relative = os.path.relpath(whole)
    return shlex.quote(relative if not relative.startswith("..") else str(whole))
