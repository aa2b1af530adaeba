"""Pictures of a page: figures of `protofl_workbench.plots` with descriptions and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.data.task_names import STRATA, task_name
from protofl.errors import UsageError
from protofl_workbench import plots
from protofl_workbench.comparing.run_figures import figure_named
from protofl_workbench.comparing.run_groups import Group, with_score_of
from protofl_workbench.comparing.trial_figures import trial_figure
from protofl_workbench.comparing.trials import Trial
from protofl_workbench.plots.bar_charts import bar_chart
from protofl_workbench.plots.client_charts import BANDS
from protofl_workbench.plots.curves import Curve, curve_chart
from protofl_workbench.plots.matrices import confusion_counts
from protofl_workbench.reporting import picture_texts
from protofl_workbench.reporting.group_record import GroupRecord
from protofl_workbench.reporting.number_formats import (
    NONE,
    amount,
    number,
    percent,
    spread,
)
from protofl_workbench.reporting.page_parts import Drawings, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Pictures:
    """Makes the pictures of a page.

    Args:
        records: The groups to show; those without rounds are left out.
        drawings: The figures of the page.
    """

    def __init__(self, records: Sequence[GroupRecord], drawings: Drawings) -> None:
        self.records = [record for record in records if record.rows]
        self.drawings = drawings
        self._groups = [record.group for record in self.records]

    def _named(self, text: str) -> str:
        """Return a text about accuracy, with the name of the runs' score in its place."""
        return with_score_of(text, self._groups)

    def _inline(self, make: Callable[..., Figure], *args: Any, **options: Any) -> str:  # noqa: ANN401
        scrolls = options.get("width") != "page"  # narrow screens do not show a wide figure
        return self.drawings.inline(make(*args, font="sans", **options), scrolls=scrolls)

    def groups_with(self, has: Callable[[Trial], bool]) -> list[Group]:
        """Return the groups with those of their trials that have something recorded."""
        groups = [replace(g, trials=tuple(filter(has, g.trials))) for g in self._groups]
        return [group for group in groups if group.trials]

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
        """Return a figure over rounds; None if no group has it.

        Args:
            name: The figure (`protofl_workbench.comparing.run_figures.FIGURES`).
            title: Heading.
            caption: Text below the picture.
            wide: True to add a drawing with double width.
            target: A value at which a line is drawn.
        """
        groups = self.groups_with(lambda trial: trial.has(name))
        if not groups:
            return None
        title, figure = self._named(title), figure_named(name)
        series = {g.label: GroupRecord(g).by_round(figure.read) for g in groups}
        options: dict[str, Any] = {"target": target}
        options["band"] = "std" if len(groups) <= BANDS else "none"
        return Picture(
            title,
            self._inline(plots.curve, groups, name, **options),
            picture_texts.curves_text(
                title,
                series,
                percent if figure.share else number,
                more_is_better=not figure.lower,
            ),
            caption,
            picture_texts.rounds_table(title, series, share=figure.share),
            broad=self._inline(plots.curve, groups, name, **options, width="page") if wide else "",
        )

    def losses(self) -> Picture | None:
        """Return the cross-entropy over rounds, because total losses have different terms.

        The total loss is shown if a group does not record a term ``ce``.
        """
        name = "loss_terms.ce"
        if len(self.groups_with(lambda trial: trial.has(name))) < len(self._groups):
            return self.over_rounds("loss", "Training loss", caption="Sum of all terms.")
        caption = "The term ce of the training loss, which all methods have."
        return self.over_rounds(name, "Cross-entropy", caption=caption)

    def terms(self, record: GroupRecord) -> Picture | None:
        """Return the terms of the loss over rounds; None for a single term."""
        if len(record.terms) < 2:
            return None
        series = {
            name: record.by_round(lambda row, n=name: row.loss_terms.get(n))  # type: ignore[misc]
            for name in record.terms
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
            picture_texts.curves_text("terms of the loss", series, more_is_better=False),
            "Weighted terms, averaged over the samples of a round; their sum is the training loss.",
            picture_texts.rounds_table("Terms of the loss", series),
        )

    # --- over clients and classes -----------------------------------------------------------------

    def clients(self) -> Picture | None:
        """Return the accuracy of each client; None if it is not recorded."""
        groups = self.groups_with(lambda t: any(row.client_accuracies for row in t.rows))
        records = [GroupRecord(group) for group in groups]
        if not records:
            return None
        return Picture(
            self._named("Accuracy of each client"),
            self._inline(plots.clients, groups),
            picture_texts.clients_text(records),
            self._named(
                "The last evaluation; clients in the order of their accuracy within each trial, "
                "the worst on the left."
            ),
            picture_texts.clients_table(records[0]) if len(records) == 1 else None,
        )

    def split(self, record: GroupRecord) -> Picture | None:
        """Return the samples of classes at clients; None if the split is not recorded yet."""
        held = record.split
        if held is None or not len(held.train_counts):
            return None
        counts = held.train_counts + held.test_counts
        _, parts = STRATA[task_name(record.config)]
        return Picture(
            f"Samples of {parts} at clients",
            self.drawings.inline(plots.split(record.run, record.group.trials[0].number)),
            picture_texts.split_text(counts.tolist(), held.classes, parts),
            "Training and test samples; a bubble's area is their number."
            + " The first trial." * (len(record.group.trials) > 1),
        )

    def confusion(self, record: GroupRecord) -> Picture | None:
        """Return the confusion matrix of the first trial; None if it is not recorded."""
        trial = record.group.trials[0]
        if record.split is None:
            return None
        try:
            counts = confusion_counts(record.run, trial.number)
        except UsageError:
            return None
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return Picture(
            "Confusion matrix",
            self._inline(plots.confusion, record.run, trial.number),
            picture_texts.confusion_text(shares.tolist(), record.split.classes),
            "Test samples of all clients at the last evaluation, in % of each true class.",
            on_paper=True,
        )

    def by_class(
        self, record: GroupRecord, title: str, series: Mapping[str, Sequence[float | None]],
        axis: str, shown: Callable[[float], str], scale: float = 1.0, caption: str = "",
    ) -> Picture:  # fmt: skip
        """Return figures of classes as bars.

        Args:
            record: The group.
            title: Heading.
            series: {name: a figure for each class, None for none}.
            axis: Title of the axis.
            shown: Formats a figure.
            scale: Factor of figures on the axis.
            caption: Text below the picture.
        """
        some = max(map(len, series.values()))
        classes = record.split.classes if record.split else [str(c) for c in range(some)]
        known = [
            (name, classes[c], value)
            for name, values in series.items()
            for c, value in enumerate(values)
            if value is not None
        ]
        bars: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in series}
        texts = {}
        for name, label, value in known:
            bars[name][label] = (value * scale, float("nan"))
            texts[f"{name} of {label}" if len(series) > 1 else label] = shown(value)
        rows = [
            (classes[c], *(NONE if v is None else shown(v) for v in values))
            for c, values in enumerate(zip(*series.values(), strict=True))
        ]
        return Picture(
            title,
            self._inline(bar_chart, bars, axis),
            picture_texts.bars_text(title, texts),
            caption,
            picture_texts.numbers_table(title, ("class", *series), rows),
        )

    def bars(self, name: str, title: str, caption: str = "") -> Picture | None:
        """Return a figure of each group as a bar; None if no group has it."""
        groups = self.groups_with(lambda trial: trial.has(trial_figure(name).figure))
        if not groups:
            return None
        title, values = self._named(title), {g.label: GroupRecord(g).figure(name) for g in groups}
        shown = {label: spread(m.mean, m.std) for label, m in values.items() if m}
        drawing = self._inline(plots.bars, groups, name)
        return Picture(title, drawing, picture_texts.bars_text(title, shown), caption)

    # --- costs ------------------------------------------------------------------------------------

    def traffic(self) -> Picture:
        """Return the bytes that are sent and received in a round."""
        texts = {
            record.group.label: f"{amount(record.mean(lambda r: r.upload_bytes))} sent and "
            f"{amount(record.mean(lambda r: r.download_bytes))} received"
            for record in self.records
        }
        return Picture(
            "Traffic of a round",
            self._inline(plots.traffic, self._groups),
            picture_texts.bars_text("bytes of all clients in a round, mean over rounds", texts),
            "All clients together, mean over rounds.",
        )
