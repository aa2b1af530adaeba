"""Pictures of observed prototypes, features and generated images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.errors import TooLittle
from protofl_workbench import plots
from protofl_workbench.plots import feature_space
from protofl_workbench.reporting.group_record import GroupRecord, Moments
from protofl_workbench.reporting.inline_svg import Drawings
from protofl_workbench.reporting.number_formats import count, listed, number
from protofl_workbench.reporting.page_parts import Picture, Section
from protofl_workbench.reporting.picture_texts import curves_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def observed_section(record: GroupRecord, drawings: Drawings) -> Section:
    """Return pictures of the observations of the first observed trial; empty if there are none.

    Args:
        record: The run.
        drawings: The figures of the page.
    """
    section = Section("Observations")
    observed = record.run.observed
    if not observed:
        return section
    pictures = _Pictures(record, drawings)
    kinds = observed.kinds(-1, pictures.trial)
    for kind, make in {
        "images": pictures.images,
        "prototypes": pictures.prototypes,
        "features": pictures.features,
    }.items():
        if kind in kinds:
            section.parts += make()
    if section.parts and len(record.group.trials) > 1:
        section.parts.append(f"Trial with seed {record.config['seed'] + pictures.trial}.")
    return section


class _Pictures:
    """The pictures of a trial; those with too few observations are left out."""

    def __init__(self, record: GroupRecord, drawings: Drawings) -> None:
        self.record, self.drawings = record, drawings
        self.observed = record.run.observed
        self.trial: int = self.observed.trials[0]

    def _picture(
        self,
        title: str,
        make: Callable[..., Figure],
        text: Callable[[], str],
        caption: str,
        *,
        on_paper: bool = False,
        **style: Any,  # noqa: ANN401 - of a figure
    ) -> list[Picture]:
        try:
            figure = make(self.record.run, trial=self.trial, font="sans", **style)
            drawing = self.drawings.inline(figure)
            return [Picture(title, drawing, text(), caption, on_paper=on_paper)]
        except TooLittle:
            return []

    def prototypes(self) -> list[Picture]:
        """Return pictures of prototypes and their changes."""
        seen = self.observed.prototypes(-1, self.trial)
        after = f"after round {seen.round + 1}"
        return [
            *self._picture(
                "Prototypes in the plane",
                plots.prototypes,
                lambda: self._plane_text("prototypes", len(seen.rows), seen.classes),
                f"t-SNE {after}. Circles are clients' prototypes, triangles the server's. "
                "Distances between groups and their sizes have no meaning.",
            ),
            *self._picture(
                "Margins, clients to server",
                plots.margins,
                self._margins_text,
                f"The largest margin of the clients and the margin of the server for each class, "
                f"{after} (FedTGP, Fig. 1). Falling lines are margins that shrink.",
            ),
            *self._picture(
                "Margins over rounds", plots.margin_curves, self._margins_text, "Mean over classes."
            ),
            *self._picture(
                "Distances within and between classes",
                plots.distances,
                self._distances_text,
                "Mean Euclidean distances of prototypes.",
            ),
            *self._picture(
                "Alignment by architecture",
                plots.alignment,
                self._alignment_text,
                "Mean distance of clients' prototypes to the server's.",
            ),
            *self._picture(
                "Drift of the server's prototypes",
                plots.drift,
                self._drift_text,
                "Distance between observed rounds; a thin line for each class.",
            ),
            *self._picture(
                "Similarity of clients",
                plots.similarity,
                self._similarity_text,
                f"Pearson correlation of the prototypes of two clients, {after}.",
                on_paper=True,
            ),
        ]

    def features(self) -> list[Picture]:
        """Return the features of test samples in the plane."""
        seen = self.observed.features(-1, self.trial)
        return self._picture(
            "Features of test samples",
            plots.features,
            lambda: self._plane_text("features of test samples", len(seen.rows), seen.labels),
            f"t-SNE of the features of all clients after round {seen.round + 1}; colours are "
            "classes.",
        )

    def images(self) -> list[Picture]:
        """Return images that the server generated."""
        seen = self.observed.images(-1, self.trial)
        names = self._classes([*dict.fromkeys(seen.classes.tolist())])
        return self._picture(
            "Generated images",
            plots.images,
            lambda: f"Generated images of the classes {listed(names, 12)}, over rounds.",
            "Images that the server sends, one for each class, over rounds.",
            on_paper=True,
            width="column",
        )

    # --- descriptions -----------------------------------------------------------------------------

    def _margins_text(self) -> str:
        found = feature_space.margins(self.observed, self.trial)
        sides = {"clients": found.clients, "server": found.server}
        return _over_rounds("mean margin of the classes' prototypes", found.rounds, sides)

    def _distances_text(self) -> str:
        between = feature_space.inter_class(self.observed, self.trial)
        rounds, within = feature_space.intra_class(self.observed, self.trial)
        sides = {"between classes on the server": between.server}
        sides |= {"between classes on clients": between.clients, "within classes": within}
        return _over_rounds("mean distance of prototypes", rounds, sides)

    def _alignment_text(self) -> str:
        rounds, found = feature_space.alignment(self.observed, self.trial)
        sides = {name: values[:, None] for name, values in found.items()}
        title = "distance of clients' prototypes to the server's, by architecture"
        return _over_rounds(title, rounds, sides, more_is_better=False)

    def _drift_text(self) -> str:
        rounds, moved = feature_space.drift(self.observed, self.trial)
        title = "mean distance that the server's prototypes move from round to round"
        return _over_rounds(title, rounds, {"server": moved}, more_is_better=False)

    def _plane_text(self, what: str, points: int, classes: np.ndarray) -> str:
        names = self._classes(sorted({*classes.tolist()}))
        return (
            f"{count(points, 'point')} of {what} in the plane by t-SNE, in the colours of their "
            f"classes: {listed(names, 12)}."
        )

    def _similarity_text(self) -> str:
        who, table = feature_space.similarity(self.observed.prototypes(-1, self.trial))
        pairs = table[~np.eye(len(table), dtype=bool)]
        pairs = pairs[np.isfinite(pairs)]
        if not len(pairs):
            return "A matrix of similarities without known entries."
        low, mean, high = (number(float(v), 2) for v in (pairs.min(), pairs.mean(), pairs.max()))
        return (
            f"Matrix of the similarity of {count(len(who), 'client')}: between two clients it is "
            f"{mean} on average, from {low} to {high}."
        )

    def _classes(self, numbers: Sequence[int]) -> list[str]:
        split = self.record.split
        names = split.classes if split is not None else ()
        return [str(names[c]) if c < len(names) else str(c) for c in numbers]


def _over_rounds(
    title: str,
    rounds: Sequence[int],
    sides: Mapping[str, np.ndarray],
    *,
    more_is_better: bool = True,
) -> str:
    """Describe tables [R, C] as means over their known entries in each round."""
    series = {
        name: {
            round: Moments(float(np.nanmean(row)), None)
            for round, row in zip(rounds, table, strict=True)
            if np.isfinite(row).any()
        }
        for name, table in sides.items()
    }
    return curves_text(title, series, more_is_better=more_is_better)
