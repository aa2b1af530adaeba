"""`protofl.compare`: means of groups, differences over pairs of trials, and their statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from protofl.data.task_names import with_score
from protofl.errors import UsageError, unknown
from protofl.system.formatting import count
from protofl_workbench.comparing import mcnemar, statistics
from protofl_workbench.comparing.chosen_figures import (
    AnyFigure,
    costs_to_target,
    default_figures,
    figure,
    trials_alone,
)
from protofl_workbench.comparing.comparison import Comparison
from protofl_workbench.comparing.figure_table import Difference, FigureTable, GroupFigure
from protofl_workbench.comparing.pairing import (
    UNPAIRED,
    Setting,
    finished_trials,
    paired_trials,
    settings_of,
)
from protofl_workbench.comparing.run_groups import (
    Group,
    Labels,
    Runs,
    grouped,
    in_order,
    label_notes,
    new_labels,
    places_in,
    with_labels,
    with_score_of,
)
from protofl_workbench.comparing.trial_figures import (
    CHANCE,
    ROUNDS,
    CostToTarget,
    TrialFigure,
    WorseOff,
)
from protofl_workbench.comparing.trials import Trial

WILCOXON, MCNEMAR = "wilcoxon", "mcnemar"

TESTS = (WILCOXON, MCNEMAR)
"""Tests of `compare`."""

CONFIDENCE = 0.95
"""Default confidence of intervals."""

BASELINES = ("local", "fedavg")
"""Methods that are the baseline by default, in this order; otherwise the first group is."""


def compare(
    runs: Runs,
    figures: str | Sequence[str] = (),
    *,
    target: float | None = None,
    baseline: str = "",
    unpaired: bool = False,
    by: str | Sequence[str] = (),
    rounds: int | None = None,
    confidence: float = CONFIDENCE,
    labels: Labels = (),
    test: str = WILCOXON,
    round: str = "",
    order: str | Sequence[str] = (),
) -> Comparison:
    """Compare runs, paired over seeds and splits.

    Args:
        runs: Runs, their folders, or a mapping of labels to them. Runs without labels are grouped
            by the options that differ.
        figures: ``final``, ``best`` (on test samples) or ``validation``: the test accuracy in this
            round; any other figure in the last round, or as ``FIGURE@best``. Default: these, the
            spread over clients, macro F1 and balanced accuracy, if every trial has them.
        target: An accuracy, 0 to 1; adds the rounds, MB, seconds and FLOPs until it is reached.
        baseline: Label or method of the group that the others are compared with. Default:
            ``local``, then ``fedavg``, otherwise the first group.
        unpaired: Also compare runs on different data or with different seeds.
        by: Options to group by.
        rounds: Number of rounds of each trial that count.
        confidence: Confidence of the intervals.
        labels: {group: its label in the tables}, or texts ``GROUP=LABEL``. The beginning of a
            group's name is enough: ``fedtgp`` for ``fedtgp, tau=1``.
        test: ``wilcoxon`` compares trials (unpaired ones by the Mann-Whitney U test); ``mcnemar``
            compares test samples, of runs with ``--record-predictions``.
        round: With ``mcnemar``: ``last`` (the default), ``best`` or ``validation``.
        order: Names or labels of groups in the order in which the tables show them; ``A,B`` or a
            sequence. Other groups follow in the order of the runs.

    Returns:
        A table for each figure and setting. Notes name the trials that are left out.

    Raises:
        UsageError: The runs cannot be compared (other data, other evaluation, other splits, no
            common seed), or a figure or the predictions are not recorded.

    Examples:
        >>> print(pf.compare(["runs/fedproto", "runs/fedtgp"], target=0.8))
        wine...fedproto...fedtgp...
    """
    _check(target, confidence, rounds)
    others = {
        "--figure": bool(figures),
        "--target": target is not None,
        "--unpaired": unpaired,
        "--confidence": confidence != CONFIDENCE,
    }
    _check_test(test, round, [flag for flag, given in others.items() if given])
    notes: list[str] = []
    if unpaired:
        groups = finished_trials(grouped(runs, by, settings=not by, notes=notes), rounds, notes)
        settings = [Setting("all runs", tuple(groups))]
    else:
        remedy = UNPAIRED if test == WILCOXON else "compare runs on the same data"
        settings = settings_of(runs, by, rounds, notes, remedy)
    group_names = [g.label for setting in settings for g in setting.groups]
    renamed = new_labels(labels, group_names)
    if order:
        places = places_in(group_names, order, renamed, notes)
        settings = [replace(s, groups=tuple(in_order(s.groups, places))) for s in settings]
    settings = [replace(s, groups=tuple(with_labels(s.groups, renamed))) for s in settings]
    notes += label_notes(renamed)
    baselines = _baselines(settings, renamed.get(baseline, baseline), notes)
    if test == MCNEMAR:
        return _over_samples(settings, baselines, round or "last", notes)
    trials = [trial for setting in settings for group in setting.groups for trial in group.trials]
    names = [figures] if isinstance(figures, str) else list(figures)
    alone = {key: trial for setting in settings for key, trial in trials_alone(setting).items()}
    chosen = [figure(name, alone) for name in names] or default_figures(trials, alone)
    shown = tuple(
        names or [chosen_figure.name for chosen_figure in chosen if chosen_figure.name in ROUNDS]
    )
    compared = _Compared(unpaired, confidence)
    columns: list[AnyFigure] = [*chosen, *costs_to_target(trials, target)]
    tables = tuple(
        compared.table(setting, figure, base)
        for setting, base in zip(settings, baselines, strict=True)
        for figure in columns
    )
    notes += _round_notes(trials, chosen)
    explained = _explanations(tables, trials, shown, not unpaired, confidence)
    notes += [with_score(note, (trial.run.config for trial in trials)) for note in explained]
    return Comparison(tables, tuple(notes), not unpaired, shown)


def _over_samples(
    settings: Sequence[Setting], baselines: Sequence[str], which: str, notes: list[str]
) -> Comparison:
    """Return the comparison by McNemar's test over recorded predictions of a round."""
    mcnemar.check_recorded([group for setting in settings for group in setting.groups], which)
    tables = tuple(
        table
        for setting, base in zip(settings, baselines, strict=True)
        for table in mcnemar.mcnemar_tables(setting, which, base, notes)
    )
    notes += ["± is the population standard deviation over trials"]
    notes += mcnemar.explanations(tables, which)
    shown = (mcnemar.FIGURE_OF[which],)
    return Comparison(tables, tuple(notes), True, shown, MCNEMAR)


def _check_test(test: str, round: str, others: Sequence[str]) -> None:
    """Check the test, and options that apply only to one of the tests.

    Args:
        test: The test.
        round: The round of recorded predictions.
        others: Given options of the other test.
    """
    if test not in TESTS:
        raise unknown("test", test, TESTS)
    if test == WILCOXON and round:
        raise UsageError(
            f"--round {round} applies only to --test mcnemar",
            do="choose the round of an accuracy by --figure final, best or validation",
        )
    if test == WILCOXON:
        return
    if round not in ("", *mcnemar.FIGURE_OF):
        raise unknown("round", round, mcnemar.FIGURE_OF)
    if others:
        hint = "; --round chooses the round" if "--figure" in others else ""
        raise UsageError(
            f"--test mcnemar cannot be used with {others[0]}",
            "it compares the predictions of paired test samples, without an interval" + hint,
            "leave one of them out",
        )


def _check(target: float | None, confidence: float, rounds: int | None) -> None:
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"--target {target:g}", "expected an accuracy, more than 0 to 1", "0.8")
    if not 0 < confidence < 1:
        raise UsageError(f"--confidence {confidence:g}", "expected more than 0 and less than 1")
    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds {rounds}", "expected at least 1")


# --- the baseline ---------------------------------------------------------------------------------


def _baselines(settings: Sequence[Setting], name: str, notes: list[str]) -> list[str]:
    """Return the baseline of each setting; the default one in settings that lack the named one."""
    result: list[str] = []
    errors = []
    for setting in settings:
        try:
            result.append(baseline_of(setting.groups, name) if len(setting.groups) > 1 else "")
        except UsageError as error:
            errors.append(error)
            result.append(baseline_of(setting.groups, ""))
            notes.append(f"{setting.title} has no {name}: the baseline is {result[-1]}")
    if errors and len(errors) == sum(len(setting.groups) > 1 for setting in settings):
        raise errors[0]
    return result


def baseline_of(groups: Iterable[Group], name: str) -> str:
    """Return the label of the baseline.

    Args:
        groups: The groups.
        name: A label or a method; empty for ``local``, then ``fedavg``, then the first group.

    Raises:
        UsageError: There is no such group, or several of the method.
    """
    groups = [*groups]
    labels = [group.label for group in groups]
    if not name:
        methods = [group.runs[0].name if group.trials else "" for group in groups]
        return next((labels[methods.index(m)] for m in BASELINES if m in methods), labels[0])
    if name in labels:
        return name
    of_method = [
        group.label
        for group in groups
        if group.label.startswith(f"{name},") or (group.trials and group.runs[0].name == name)
    ]
    if len(of_method) > 1:
        raise UsageError(
            f"--baseline {name} stands for several groups", "; ".join(of_method), "give one of them"
        )
    if not of_method:
        raise unknown("baseline", name, labels, "give the name of a group")
    return of_method[0]


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Compared:
    """The way in which groups are compared."""

    unpaired: bool
    confidence: float

    def table(self, setting: Setting, figure: AnyFigure, base: str) -> FigureTable:
        """Return the table of a figure in a setting."""
        of = {g.label: {id(t): figure.of(t) for t in g.trials} for g in setting.groups}
        against = next((g for g in setting.groups if g.label == base), None)
        differences = {
            group.label: self._difference(group, against, of, lower=figure.about.lower)
            for group in setting.groups
            if against is not None and group is not against
        }
        corrected = statistics.holm([difference.p for difference in differences.values()])
        for label, p in zip(differences, corrected, strict=True):
            differences[label] = replace(differences[label], holm=p)
        rows = tuple(
            GroupFigure(
                group.label,
                tuple(trial.seed for trial in group.trials),
                tuple(of[group.label].values()),
                differences.get(group.label),
            )
            for group in setting.groups
        )
        machines = {trial.machine for group in setting.groups for trial in group.trials}
        seconds = isinstance(figure, CostToTarget) and figure.cost == "seconds"
        return FigureTable(
            setting.title,
            figure.name,
            with_score_of(figure.title, setting.groups),
            figure.about.share,
            figure.about.lower,
            base,
            rows,
            seconds and len(machines) > 1,
        )

    def _difference(
        self, group: Group, against: Group, of: dict[str, dict[int, float]], *, lower: bool
    ) -> Difference:
        ours, theirs = of[group.label], of[against.label]
        if self.unpaired:
            one, two = (_known(values.values()) for values in (ours, theirs))
            both = len(one) > 0 and len(two) > 0
            ends = statistics.interval(one, two, self.confidence) if both else (math.nan, math.nan)
            mean = float(one.mean() - two.mean()) if both else math.nan
            p = statistics.mann_whitney(one, two)
            sizes = len(one), len(two)
            return Difference(
                len(one), mean, math.nan, *ends, p, p, 0, 0, _interval_name(ends, sizes)
            )
        differences = _known(ours[id(a)] - theirs[id(b)] for a, b in paired_trials(group, against))
        p = statistics.wilcoxon(differences)
        gained = -differences if lower else differences
        ends = statistics.interval(differences, (), self.confidence)
        return Difference(
            len(differences),
            float(differences.mean()) if len(differences) else math.nan,
            float(differences.std()) if len(differences) else math.nan,
            *ends,
            p,
            p,
            better=int((gained > 0).sum()),
            worse=int((gained < 0).sum()),
            interval=_interval_name(ends, [len(differences)]),
        )


def _interval_name(ends: tuple[float, float], sizes: Sequence[int]) -> str:
    """Return the method of `statistics.interval` for samples of these sizes."""
    if math.isnan(ends[0]):
        return ""
    return "BCa" if statistics.uses_bootstrap(*sizes) else "t"


def _known(values: Iterable[float]) -> statistics.Floats:
    return np.array([value for value in values if not math.isnan(value)], dtype=np.float64)


def _round_notes(trials: Sequence[Trial], figures: Sequence[TrialFigure | WorseOff]) -> list[str]:
    """Return notes about rounds without evaluation, and about trials that diverged."""
    every = sorted({str(trial.run.config.get("eval_every", 1)) for trial in trials})
    notes = []
    if len(every) > 1 and any(getattr(figure, "when", "final") != "final" for figure in figures):
        notes.append(
            f"evaluated every {' or '.join(every)} rounds; the best round is not comparable with "
            "runs that evaluate more often"
        )
    lost = [(trial, trial.diverged) for trial in trials]
    return notes + [f"{trial.name} diverged in round {n + 1}" for trial, n in lost if n is not None]


def _samples_note(trials: Sequence[Trial]) -> list[str]:
    """Return how many samples of each class global accuracy is measured on, if it is recorded."""
    each = [row.measures.get("global_samples_per_class") for t in trials for row in t.rows]
    counts = sorted({int(number) for number in each if number})
    if not counts:
        return []
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [f"global accuracy: on {span} test samples of each class"]


def _explanations(
    tables: Sequence[FigureTable],
    trials: Sequence[Trial],
    shown: Sequence[str],
    paired: bool,
    confidence: float,
) -> list[str]:
    """Return notes about the numbers in the tables."""
    notes = ["± is the population standard deviation over trials"]
    if any(table.name == "best" or table.name.endswith("@best") for table in tables):
        notes.append("best on test: the round is chosen on the test samples, as in the papers")
    short = [t.name for t in tables if any(0 < len(r.found) < len(r.values) for r in t.rows)]
    if any("-to-" in name for name in short):
        notes.append("(3/4): 3 of 4 trials reached the accuracy; the mean is over these 3")
    if "worse-off-by" in short:
        notes.append("(3/4): clients lost in 3 of 4 trials; the mean is over these 3")
    if any("-to-" not in name and name != "worse-off-by" for name in short):
        notes.append("(3/4): the figure was finite in 3 of 4 trials; the mean is over these 3")
    if any(table.name.partition("@")[0] == "global-accuracy" for table in tables):
        notes += _samples_note(trials)
    if any(table.name == CHANCE for table in tables):
        notes.append(
            "worse off by chance: half of the clients whose accuracy differs from local; two "
            "equally good methods have this number on average"
        )
    if any(table.machines for table in tables):
        notes.append("†: seconds on different machines, devices, backends or versions")
    seen = [[r.difference for r in t.rows if r.difference] for t in tables if t.name in shown]
    differences = [d for table in seen for d in table]
    if not differences:
        return notes
    of = "pairs" if paired else "trials in a group"
    if paired:
        least = min(d.count for d in differences)
        bound = statistics.least_p(least)
        notes.append(
            "p: exact two-sided Wilcoxon signed-rank test over pairs with the same seed and split"
            + f"; with {count(least, 'pair')} it cannot be below {bound:.3g}" * (bound > 0.01)
        )
    else:
        notes.append("p: two-sided Mann-Whitney U test of unpaired samples")
    if max(map(len, seen)) > 1:
        notes.append("Holm: p corrected for all comparisons with the baseline in one figure")
    kinds = {d.interval for d in differences} - {""}
    if not kinds:
        return notes
    few = f"Student's t interval of the mean difference (fewer than {statistics.FEW} {of})"
    many = f"BCa bootstrap of the mean difference, {statistics.RESAMPLES:,} resamples"
    parts = [few] * ("t" in kinds) + [many] * ("BCa" in kinds)
    notes.append(f"interval: {confidence:.0%} {'; otherwise a '.join(parts)}")
    return notes
