"""Pictures of observed prototypes, features and generated images."""

from __future__ import annotations

from protofl.errors import TooLittle
from protofl_workbench.plots.observation_charts import CHARTS
from protofl_workbench.reporting.group_record import GroupRecord
from protofl_workbench.reporting.page_parts import Drawings, Part, Picture, Section

PICTURES = {
    "margins": (
        "prototypes",
        "Margins over rounds",
        "The largest margin of the clients and the server's margin, as means over classes.",
    ),
    "prototypes": (
        "prototypes",
        "Prototypes in the plane",
        "t-SNE in the last observed round. Circles are clients' prototypes, triangles the "
        "server's, colours are classes. Distances between groups and their sizes have no meaning.",
    ),
    "features": (
        "features",
        "Features of test samples",
        "t-SNE of the features of all clients in the last observed round; colours are classes.",
    ),
    "images": (
        "images",
        "Generated images",
        "Images of the server, one for each class, by rounds.",
    ),
}
"""{chart: the observation that it needs, title and caption}."""


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
    for chart, (kind, title, caption) in PICTURES.items():
        if kind not in kinds:
            continue
        try:
            figure = CHARTS[chart](record.run, trial=trial, font="sans", width="column")
        except TooLittle:
            continue
        drawing, text = drawings.inline(figure), f"{title}. {caption}"
        parts.append(Picture(title, drawing, text, caption, on_paper=chart == "images"))
    if parts and len(record.group.trials) > 1:
        parts.append(f"Trial with seed {record.config['seed'] + trial}.")
    return Section("Observations", parts)
