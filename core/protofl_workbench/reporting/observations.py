"""What a run has observed, on its page: prototypes, features, generated images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.errors import TooLittle
from protofl_workbench.reporting import alternatives
from protofl_workbench.reporting.drawing import Drawings
from protofl_workbench.reporting.numbers import count, listed, number
from protofl_workbench.reporting.parts import Picture, Section
from protofl_workbench.reporting.told import Moments, Told

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl.records.recorded.observed import Observed

Series = dict[str, dict[int, Moments]]


def observed_section(told: Told, drawings: Drawings) -> Section:
    """Pictures of what was observed of the first trial that has any; empty without ``--observe``.

    Args:
        told: The run.
        drawings: Takes the figures.
    """
    section = Section("What was observed")
    observed = told.run.observed
    if not observed:
        return section
    pictures = _Pictures(told, observed, observed.trials[0], drawings)
    kinds = observed.kinds(-1, pictures.trial)
    if "images" in kinds:
        section.parts += pictures.images()
    if "prototypes" in kinds:
        section.parts += pictures.prototypes()
    if "features" in kinds:
        section.parts += pictures.features()
    if section.parts and len(told.group.trials) > 1:
        section.parts.append(f"Of the trial with seed {told.config['seed'] + pictures.trial}.")
    return section


class _Pictures:
    """The pictures of a trial, as far as enough was observed for each."""

    def __init__(self, told: Told, observed: Observed, trial: int, drawings: Drawings) -> None:
        self.told, self.observed, self.trial, self.drawings = told, observed, trial, drawings

    def _drawn(
        self,
        title: str,
        make: Callable[..., Figure],
        words: Callable[[], str],
        caption: str,
        **options: Any,  # noqa: ANN401 - of a figure
    ) -> list[Picture]:
        """Return the picture, or nothing if too little was observed for it."""
        on_paper = options.pop("on_paper", False)
        try:
            figure = make(self.told.run, trial=self.trial, font="sans", **options)
            return [
                Picture(title, self.drawings.inline(figure), words(), caption, on_paper=on_paper)
            ]
        except TooLittle:
            return []

    def prototypes(self) -> list[Picture]:
        """Return pictures of prototypes, and of how they change."""
        from protofl_workbench import plots

        seen = self.observed.prototypes(-1, self.trial)
        after = f"after round {seen.round + 1}"
        return [
            *self._drawn(
                "Prototypes in the plane",
                plots.prototypes,
                lambda: self._of_plane("prototypes", len(seen.rows), seen.classes),
                f"t-SNE {after}. Circles are clients' prototypes, triangles the server's; "
                "distances between groups, and their sizes, say nothing.",
            ),
            *self._drawn(
                "Margins, clients to server",
                plots.margins,
                self._of_margins,
                f"The largest of the clients' margins and the server's, of each class {after} "
                "(FedTGP, Fig. 1). Lines that fall are margins that shrink.",
            ),
            *self._drawn(
                "Margins over rounds", plots.margin_curves, self._of_margins, "Mean over classes."
            ),
            *self._drawn(
                "Within classes and between",
                plots.distances,
                self._of_distances,
                "Mean Euclidean distances of prototypes.",
            ),
            *self._drawn(
                "Alignment by architecture",
                plots.alignment,
                self._of_alignment,
                "Mean distance of clients' prototypes to the server's.",
            ),
            *self._drawn(
                "Drift of the server's prototypes",
                plots.drift,
                self._of_drift,
                "From one observed round to the next; a thin line for each class.",
            ),
            *self._drawn(
                "Similarity of clients",
                plots.similarity,
                self._of_similarity,
                f"Pearson correlation of the prototypes of two clients, {after}.",
                on_paper=True,
            ),
        ]

    def features(self) -> list[Picture]:
        """Features of test samples in the plane."""
        from protofl_workbench import plots

        seen = self.observed.features(-1, self.trial)
        return self._drawn(
            "Features of test samples",
            plots.features,
            lambda: self._of_plane("features of test samples", len(seen.rows), seen.labels),
            f"t-SNE of the features of all clients after round {seen.round + 1}; colours are "
            "classes.",
        )

    def images(self) -> list[Picture]:
        """Images that the server generated."""
        from protofl_workbench import plots

        seen = self.observed.images(-1, self.trial)
        names = self._classes([*dict.fromkeys(seen.classes.tolist())])
        return self._drawn(
            "Generated images",
            plots.images,
            lambda: f"Generated images of the classes {listed(names, 12)}, over rounds.",
            "What the server sends, one image of a class, over rounds.",
            on_paper=True,
            width="column",
        )

    # --- the pictures in words ------------------------------------------------------------------

    def _of_margins(self) -> str:
        from protofl_workbench.plots import feature_space as figures

        found = figures.margins(self.observed, self.trial)
        sides = {"clients": found.clients, "server": found.server}
        words = "mean margin of the classes' prototypes"
        return alternatives.over_rounds(words, _by_side(found.rounds, sides))

    def _of_distances(self) -> str:
        from protofl_workbench.plots import feature_space as figures

        between = figures.inter_class(self.observed, self.trial)
        rounds, within = figures.intra_class(self.observed, self.trial)
        sides = {"between classes on the server": between.server}
        sides |= {"between classes on clients": between.clients, "within classes": within}
        return alternatives.over_rounds("mean distance of prototypes", _by_side(rounds, sides))

    def _of_alignment(self) -> str:
        from protofl_workbench.plots import feature_space as figures

        rounds, found = figures.alignment(self.observed, self.trial)
        series = _by_side(rounds, {name: values[:, None] for name, values in found.items()})
        words = "distance of clients' prototypes to the server's, by architecture"
        return alternatives.over_rounds(words, series, more_is_better=False)

    def _of_drift(self) -> str:
        from protofl_workbench.plots import feature_space as figures

        rounds, moved = figures.drift(self.observed, self.trial)
        words = "mean distance that the server's prototypes move from round to round"
        return alternatives.over_rounds(
            words, _by_side(rounds, {"server": moved}), more_is_better=False
        )

    def _of_plane(self, what: str, points: int, classes: np.ndarray) -> str:
        names = self._classes(sorted({*classes.tolist()}))
        return (
            f"{count(points, 'point')} of {what} in the plane by t-SNE, in the colours of their "
            f"classes: {listed(names, 12)}."
        )

    def _of_similarity(self) -> str:
        from protofl_workbench.plots import feature_space as figures

        who, table = figures.similarity(self.observed.prototypes(-1, self.trial))
        apart = table[~np.eye(len(table), dtype=bool)]
        apart = apart[np.isfinite(apart)]
        if not len(apart):
            return "A matrix of similarities, of which none could be computed."
        return (
            f"Matrix of the similarity of {count(len(who), 'client')}: between two it is "
            f"{number(float(apart.mean()), 2)} on average, from {number(float(apart.min()), 2)} to "
            f"{number(float(apart.max()), 2)}."
        )

    def _classes(self, numbers: Sequence[int]) -> list[str]:
        held = self.told.split
        names = held.classes if held is not None else ()
        return [str(names[c]) if c < len(names) else str(c) for c in numbers]


def _by_side(rounds: Sequence[int], sides: Mapping[str, np.ndarray]) -> Series:
    """{side: {round: mean over classes}} of tables [R, C], without what is NaN."""
    found: Series = {}
    for name, table in sides.items():
        own = {
            round: Moments(float(np.nanmean(row)), None)
            for round, row in zip(rounds, table, strict=True)
            if np.isfinite(row).any()
        }
        found[name] = own
    return found
