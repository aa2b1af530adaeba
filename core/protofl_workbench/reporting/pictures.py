"""The pictures of the page: figures of `protofl_workbench.plots` with their text and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl_workbench.comparing.run_figures import COSTS, figure_named
from protofl_workbench.comparing.run_groups import Group
from protofl_workbench.comparing.trials import Trial
from protofl_workbench.reporting import alternatives
from protofl_workbench.reporting.drawing import Drawings
from protofl_workbench.reporting.numbers import (
    NONE,
    all_but_first,
    amount,
    clients_table,
    duration,
    number,
    percent,
    reader,
    rounds_table,
    spread,
)
from protofl_workbench.reporting.parts import Picture, Table
from protofl_workbench.reporting.told import Moments, Told

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

BANDS = 6
"""Groups at most whose curves have bands: more would hide each other."""


class Pictures:
    """Makes the pictures of a page.

    Args:
        told: The groups that are shown.
        drawings: The figures of the page.
    """

    def __init__(self, told: Sequence[Told], drawings: Drawings) -> None:
        self.told = [own for own in told if own.rows]
        self.drawings = drawings
        self._groups = [own.group for own in self.told]

    def _inline(self, make: Callable[..., Drawn], *args: Any, **options: Any) -> str:  # noqa: ANN401
        broad = options.get("width") == "page"  # it isn't shown where there is no room for it
        return self.drawings.inline(make(*args, font="sans", **options), scrolls=not broad)

    def _having(self, has: Callable[[Trial], bool]) -> list[Group]:
        """The groups, with those of their trials that have something recorded."""
        found = [Group(g.label, tuple(t for t in g.trials if has(t))) for g in self._groups]
        return [group for group in found if group.trials]

    # --- over rounds ------------------------------------------------------------------------------

    def over_rounds(
        self,
        name: str,
        title: str,
        *,
        caption: str = "",
        wide: bool = False,
        target: float | None = None,
    ) -> Picture | None:
        """A figure over rounds; None where no group has it.

        Args:
            name: The figure (`protofl_workbench.comparing.trials.FIGURES`).
            title: The picture's heading.
            caption: What stands below it.
            wide: Whether it takes the width of two where there is room.
            target: A figure at which a line is drawn.
        """
        from protofl_workbench.plots import curve

        groups = self._having(lambda trial: trial.has(name))
        if not groups:
            return None
        figure = figure_named(name)
        series = {g.label: Told(g).by_round(reader(figure)) for g in groups}
        shown = alternatives.share if figure.share else number
        options: dict[str, Any] = {"target": target}
        options["band"] = "std" if len(groups) <= BANDS else "none"
        return Picture(
            title,
            self._inline(curve, groups, name, **options),
            alternatives.over_rounds(title, series, shown, more_is_better=not figure.lower),
            caption,
            rounds_table(f"{title}: the numbers", series, share=figure.share),
            broad=self._inline(curve, groups, name, **options, width="page") if wide else "",
        )

    def over_cost(self, cost: str, title: str, caption: str = "") -> Picture | None:
        """Accuracy over what rounds cost; None where a group hasn't recorded it.

        Args:
            cost: See `protofl_workbench.comparing.trials.COSTS`.
            title: The picture's heading.
            caption: What stands below it.
        """
        from protofl_workbench.plots import curve

        per_round = COSTS[cost].of
        if any(per_round(row) is None for own in self.told for row in own.rows):
            return None
        told = [Told(group) for group in self._having(lambda trial: trial.has("accuracy"))]
        totals = {own.group.label: own.total(lambda r: per_round(r) or 0.0) for own in told}
        if not totals:
            return None
        largest, least = (pick(m.mean for m in totals.values() if m) for pick in (max, min))
        if not largest:
            return None
        ends = {
            own.group.label: f"{percent(_last(own))} after {number(total.mean, 3)}"
            for own in told
            if (total := totals[own.group.label])
        }
        words = f"test accuracy over {COSTS[cost].title}, at the end of all rounds"
        log = least > 0 and largest / least > 20
        return Picture(
            title,
            self._inline(curve, [own.group for own in told], "accuracy", cost, log=log),
            alternatives.as_bars(words, ends),
            caption + (" The axis is logarithmic." if log else ""),
        )

    def terms(self, own: Told) -> Picture | None:
        """The terms of the loss over rounds; None of a loss of one."""
        from protofl_workbench.plots import Curve, curve_chart

        names = own.terms
        if len(names) < 2:
            return None
        series = {
            name: own.by_round(lambda row, n=name: row.loss_terms.get(n))  # type: ignore[misc]
            for name in names
        }
        curves = {
            name: Curve(
                np.array([*values], dtype=np.float64) + 1,
                np.array([[m.mean for m in values.values()]]),
            )
            for name, values in series.items()
        }
        return Picture(
            "Terms of the loss",
            self._inline(curve_chart, curves, "weighted loss", "rounds", whole=True),
            alternatives.over_rounds("terms of the loss", series, more_is_better=False),
            "As they are weighted, averaged over the samples of a round; their sum is the training "
            "loss.",
            rounds_table("Terms of the loss: the numbers", series),
        )

    # --- over clients and classes -----------------------------------------------------------------

    def clients(self) -> Picture | None:
        """Each client's accuracy; None where it isn't recorded."""
        from protofl_workbench.plots import clients

        groups = self._having(lambda t: bool(t.run.accuracies.get(t.number)))
        having = [Told(group) for group in groups]
        if not having:
            return None
        values = {own.group.label: [m.mean for m in own.clients.values()] for own in having}
        return Picture(
            "Accuracy of each client",
            self._inline(clients, groups),
            alternatives.over_clients(values),
            "The last evaluation; clients in order of their accuracy, the worst at the left.",
            clients_table(having[0]) if len(having) == 1 else None,
        )

    def split(self, own: Told) -> Picture | None:
        """The samples of classes at clients; None where the run has not come so far."""
        from protofl_workbench.plots import split

        held = own.split
        if held is None or not len(held.train_counts):
            return None
        counts = held.train_counts + held.test_counts
        trial = own.group.trials[0]
        return Picture(
            "Samples of classes at clients",
            self.drawings.inline(split(own.run, trial.number)),
            alternatives.of_split(counts.tolist(), held.classes),
            "Training and test samples; a bubble's area is their number."
            + (" The first trial." if len(own.group.trials) > 1 else ""),
        )

    def confusion(self, own: Told) -> Picture | None:
        """Which class is taken for which, in the first trial; None where it isn't recorded."""
        from protofl_workbench.plots.matrices import METRIC, confusion

        trial = own.group.trials[0]
        recorded = [row for row in trial.rows if METRIC in row.metrics]
        if not recorded or own.split is None:
            return None
        counts = np.array(recorded[-1].metrics[METRIC]["all"], dtype=np.float64)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return Picture(
            "What classes are taken for",
            self._inline(confusion, own.run, trial.number),
            alternatives.of_confusion(shares.tolist(), own.split.classes),
            "Test samples of all clients at the last evaluation, in % of each true class.",
            on_paper=True,
        )

    def by_class(
        self, own: Told, title: str, series: Mapping[str, Sequence[float | None]], axis: str,
        shown: Callable[[float], str], scale: float = 1.0, caption: str = "",
    ) -> Picture:  # fmt: skip
        """Figures of classes as bars.

        Args:
            own: Whose they are.
            title: The picture's heading.
            series: {what: a figure for each class, None where there is none}.
            axis: What they are, for the axis.
            shown: How a figure is written.
            scale: By what figures are multiplied on the axis.
            caption: What stands below it.
        """
        from protofl_workbench.plots import bar_chart

        classes = own.split.classes if own.split else [str(c) for c in range(10**4)]
        bars = {
            name: {
                classes[c]: (v * scale, float("nan")) for c, v in enumerate(values) if v is not None
            }
            for name, values in series.items()
        }
        words = {
            f"{name} of {classes[c]}" if len(series) > 1 else classes[c]: shown(v)
            for name, values in series.items()
            for c, v in enumerate(values)
            if v is not None
        }
        columns = ("class", *series)
        rows = [
            (classes[c], *(NONE if v is None else shown(v) for v in values))
            for c, values in enumerate(zip(*series.values(), strict=True))
        ]
        table = Table(f"{title}: the numbers", columns, rows, all_but_first(columns), folded=True)
        drawing = self._inline(bar_chart, bars, axis)
        return Picture(title, drawing, alternatives.as_bars(title, words), caption, table)

    def bars(self, figure: str, title: str, caption: str = "") -> Picture | None:
        """A figure of each group as a bar; None where one hasn't it."""
        from protofl_workbench.comparing.trial_figures import trial_figure
        from protofl_workbench.plots import bars

        wanted = trial_figure(figure)
        groups = self._having(lambda trial: trial.has(wanted.figure))
        if not groups:
            return None
        values = {g.label: Moments.of([wanted.of(trial) for trial in g.trials]) for g in groups}
        shown = {name: spread(m.mean, m.std) for name, m in values.items() if m}
        drawing = self._inline(bars, groups, figure)
        return Picture(title, drawing, alternatives.as_bars(title, shown), caption)

    # --- costs ------------------------------------------------------------------------------------

    def traffic(self) -> Picture:
        """Bytes that are sent and received in a round."""
        from protofl_workbench.plots import traffic

        words = {
            own.group.label: f"{amount(own.mean(lambda r: r.upload_bytes))} sent and "
            f"{amount(own.mean(lambda r: r.download_bytes))} received"
            for own in self.told
        }
        return Picture(
            "Traffic of a round",
            self._inline(traffic, self._groups),
            alternatives.as_bars("bytes of all clients in a round, mean over rounds", words),
            "By all clients together, mean over rounds.",
        )

    def stages(self) -> Picture:
        """Seconds of a round by stage."""
        from protofl_workbench.plots import stages

        words = {}
        for own in self.told:
            parts = ", ".join(f"{stage} {duration(s)}" for stage, s in own.stages.items())
            total = duration(own.mean(lambda row: row.seconds["total"]))
            words[own.group.label] = f"{total} a round ({parts})"
        return Picture(
            "Time of a round, by stage",
            self._inline(stages, self._groups),
            alternatives.as_bars("seconds of a round, mean over rounds", words),
            "Hosts that work side by side are added up, so a bar may be longer than the round.",
        )


def _last(own: Told) -> float | None:
    """The mean of the trials' last accuracies."""
    final = own.end("final_test_accuracy")
    return final.mean if final else None
