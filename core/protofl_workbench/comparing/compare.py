"""`protofl.compare`: means of groups, differences over pairs of trials, and their statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from protofl.data.task_names import with_score
from protofl.errors import UsageError, unknown
from protofl.system.formatting import count
from protofl_workbench.comparing import statistics
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
    Setting,
    paired_trials,
    settings_of,
)
from protofl_workbench.comparing.run_groups import (
    Group,
    Labels,
    Runs,
    label_notes,
    new_labels,
    with_labels,
    with_score_of,
)
from protofl_workbench.comparing.trial_figures import (
    ACCURACIES,
    CHANCE,
    CostToTarget,
    TrialFigure,
    WorseOff,
)
from protofl_workbench.comparing.trials import Trial

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
    by: str | Sequence[str] = (),
    rounds: int | None = None,
    confidence: float = CONFIDENCE,
    labels: Labels = (),
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
        by: Options to group by.
        rounds: Number of rounds of each trial that count.
        confidence: Confidence of the intervals.
        labels: {group: its label in the tables}, or texts ``GROUP=LABEL``. The beginning of a
            group's name is enough: ``fedtgp`` for ``fedtgp, tau=1``.

    Returns:
        A table for each figure and setting. Notes name the trials that are left out.

    Raises:
        UsageError: The runs cannot be compared (other data, other evaluation, other splits, no
            common seed), or a figure is not recorded.

    Examples:
        >>> print(pf.compare(["runs/fedproto", "runs/fedtgp"], target=0.8))
        wine...fedproto...fedtgp...
    """
    _check(target, confidence, rounds)
    notes: list[str] = []
    settings = settings_of(runs, by, rounds, notes)
    group_names = [g.label for setting in settings for g in setting.groups]
    renamed = new_labels(labels, group_names)
    settings = [replace(s, groups=tuple(with_labels(s.groups, renamed))) for s in settings]
    notes += label_notes(renamed)
    baselines = _baselines(settings, renamed.get(baseline, baseline), notes)
    trials = [trial for setting in settings for group in setting.groups for trial in group.trials]
    names = [figures] if isinstance(figures, str) else list(figures)
    alone = {key: trial for setting in settings for key, trial in trials_alone(setting).items()}
    chosen = [figure(name, alone) for name in names] or default_figures(trials, alone)
    shown = tuple(names or [figure.name for figure in chosen if figure.name in ACCURACIES])
    columns: list[AnyFigure] = [*chosen, *costs_to_target(trials, target)]
    tables = tuple(
        _table(setting, figure, base, confidence)
        for setting, base in zip(settings, baselines, strict=True)
        for figure in columns
    )
    notes += [*_round_notes(trials, chosen), *_guess_notes(tables)]
    explained = _explanations(tables, trials, shown, confidence)
    notes += [with_score(note, (trial.run.config for trial in trials)) for note in explained]
    return Comparison(tables, tuple(notes), shown)


def _check(target: float | None, confidence: float, rounds: int | None) -> None:
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"--target {target:g}", "expected an accuracy, more than 0 to 1", "0.8")
    if not 0 < confidence < 1:
        raise UsageError(f"--confidence {confidence:g}", "expected more than 0 and less than 1")
    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds {rounds}", "expected at least 1")


# --- the baseline ---------------------------------------------------------------------------------


def _baselines(settings: Sequence[Setting], name: str, notes: list[str]) -> list[str]:
    """Return the baseline of each setting; empty for one group, and without the named one."""
    result: list[str] = []
    errors = []
    for setting in settings:
        try:
            result.append(baseline_of(setting.groups, name) if len(setting.groups) > 1 else "")
        except UsageError as error:
            errors.append(error)
            result.append("")
            notes.append(f"{setting.title} has no {name}: left out of the differences")
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


def _table(setting: Setting, figure: AnyFigure, base: str, confidence: float) -> FigureTable:
    """Return the table of a figure in a setting."""
    of = {g.label: {id(t): figure.of(t) for t in g.trials} for g in setting.groups}
    against = next((g for g in setting.groups if g.label == base), None)
    differences = {
        group.label: _difference(group, against, of, confidence, lower=figure.about.lower)
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
        _guess(setting, figure),
    )


def _guess(setting: Setting, figure: AnyFigure) -> GroupFigure | None:
    """Return the majority guess of each split of a setting; None for figures without one."""
    name = getattr(figure, "figure", "")
    if name not in ("accuracy", "balanced-accuracy"):
        return None
    trials = {trial.seed: trial for group in setting.groups for trial in group.trials}
    values = tuple(trials[seed].guess(name) for seed in sorted(trials))
    return GroupFigure("majority guess", tuple(sorted(trials)), values)


def _difference(
    group: Group,
    against: Group,
    of: dict[str, dict[int, float]],
    confidence: float,
    *,
    lower: bool,
) -> Difference:
    ours, theirs = of[group.label], of[against.label]
    differences = _known(ours[id(a)] - theirs[id(b)] for a, b in paired_trials(group, against))
    p = statistics.wilcoxon(differences)
    gained = -differences if lower else differences
    low, high = statistics.interval(differences, confidence)
    return Difference(
        len(differences),
        float(differences.mean()) if len(differences) else math.nan,
        float(differences.std()) if len(differences) else math.nan,
        low,
        high,
        p,
        p,
        better=int((gained > 0).sum()),
        worse=int((gained < 0).sum()),
    )


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


def _guess_notes(tables: Sequence[FigureTable]) -> list[str]:
    """Return a note about the groups of each setting that are not better than their guess."""
    first = {table.setting: table for table in reversed(tables) if table.guess}
    notes = []
    for table in first.values():
        assert table.guess is not None
        below = [
            row.label
            for row in table.rows
            if (differences := table.pairs(row, table.guess)) and np.mean(differences) <= 1e-9
        ]
        if below:
            where = f"{table.setting}: " if len(first) > 1 else ""
            title = table.title.removesuffix(" (%)")
            notes.append(f"{where}{title}: not better than the majority guess: {', '.join(below)}")
    return notes[::-1]


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
    least = min(d.count for d in differences)
    bound = statistics.least_p(least)
    notes.append(
        "p: exact two-sided Wilcoxon signed-rank test over pairs with the same seed and split"
        + f"; with {count(least, 'pair')} it cannot be below {bound:.3g}" * (bound > 0.01)
    )
    if max(map(len, seen)) > 1:
        notes.append("Holm: p corrected for all comparisons with the baseline in one figure")
    if any(not math.isnan(d.low) for d in differences):
        notes.append(f"interval: {confidence:.0%} Student's t interval of the mean difference")
    return notes
