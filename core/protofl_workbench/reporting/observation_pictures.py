"""Pictures of observed prototypes, features and generated images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protofl.errors import TooLittle
from protofl_workbench.plots.embedding_animation import embedding
from protofl_workbench.plots.image_grids import images
from protofl_workbench.plots.matrices import similarity
from protofl_workbench.plots.prototype_charts import (
    alignment,
    distances,
    drift,
    margin_curves,
    margins,
)
from protofl_workbench.plots.tsne_charts import features, prototypes
from protofl_workbench.reporting.group_record import GroupRecord, Moments
from protofl_workbench.reporting.page_parts import Drawings, Part, Picture, Section, animated
from protofl_workbench.reporting.picture_texts import curves_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES: dict[str, tuple[tuple[str, Callable[..., Figure], str], ...]] = {
    "images": (
        ("Generated images", images, "Images of the server, one for each class, by rounds."),
    ),
    "prototypes": (
        (
            "Prototypes in the plane",
            prototypes,
            "t-SNE in the last observed round. Circles are clients' prototypes, triangles the "
            "server's, colours are classes. Distances between groups and their sizes have no "
            "meaning.",
        ),
        (
            "Margins, clients to server",
            margins,
            "The largest margin of the clients and the margin of the server for each class, in the "
            "last observed round (FedTGP, Fig. 1). Falling lines are margins that shrink.",
        ),
        ("Margins over rounds", margin_curves, "Mean over classes."),
        (
            "Distances within and between classes",
            distances,
            "Mean Euclidean distances of prototypes.",
        ),
        (
            "Alignment by architecture",
            alignment,
            "Mean distance of clients' prototypes to the server's.",
        ),
        (
            "Drift of the server's prototypes",
            drift,
            "Distance between observed rounds; a thin line for each class.",
        ),
        (
            "Similarity of clients",
            similarity,
            "Pearson correlation of the prototypes of two clients, in the last observed round.",
        ),
    ),
    "features": (
        (
            "Features of test samples",
            features,
            "t-SNE of the features of all clients in the last observed round; colours are classes.",
        ),
    ),
}
"""{kind of observation: title, figure and caption of its pictures}."""

OVER_ROUNDS = (margin_curves, distances, alignment, drift)
ON_PAPER = (images, similarity)
"""Figures with curves over rounds, and figures that stay on a light background."""


def observed_section(record: GroupRecord, drawings: Drawings) -> Section:
    """Return pictures of the observations of the first observed trial; empty if there are none.

    Pictures with too few observations are left out.

    Args:
        record: The run.
        drawings: The figures of the page.
    """
    observed, parts = record.run.observed, list[Part]()
    if not observed:
        return Section("Observations")
    trial = observed.trials[0]
    kinds = observed.kinds(-1, trial)
    for title, make, caption in (
        picture for kind in PICTURES if kind in kinds for picture in PICTURES[kind]
    ):
        style = {"width": "column"} if make is images else {}
        try:
            figure = make(record.run, trial=trial, font="sans", **style)
        except TooLittle:
            continue
        text = curves_text(title, _series(figure)) if make in OVER_ROUNDS else f"{title}. {caption}"
        drawing = drawings.inline(figure)
        parts.append(Picture(title, drawing, text, caption, on_paper=make in ON_PAPER))
    try:
        frames = embedding(record.run, trial, font="sans")
    except TooLittle:
        pass
    else:
        moving, still = animated(frames)
        parts.append(
            Picture(
                "Features and prototypes over rounds",
                moving,
                f"An animation of {len(frames)} rounds: test features and prototypes in the plane.",
                "One t-SNE of all shown rounds. Dots are features of test samples, circles "
                "prototypes of clients and triangles the server's, with a line from their place "
                "before; colours are classes.",
                on_paper=True,
                still=still,
            )
        )
    if parts and len(record.group.trials) > 1:
        parts.append(f"Trial with seed {record.config['seed'] + trial}.")
    return Section("Observations", parts)


def _series(figure: Figure) -> dict[str, dict[int, Moments]]:
    """Return the labelled curves of a figure over rounds; the first curve if it has no legend."""
    labels = [
        text.get_text().replace("\n", " ")
        for legend in figure.legends
        for text in legend.get_texts()
    ]
    lines = figure.axes[0].get_lines()[: max(1, len(labels))]
    points = [line.get_xydata().tolist() for line in lines]  # type: ignore[union-attr] # 2-D
    return {
        label: {round(x) - 1: Moments(y, None) for x, y in curve_points}
        for label, curve_points in zip(labels or ["mean"], points, strict=True)
    }
