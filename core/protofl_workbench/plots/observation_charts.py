"""Charts of the observations of a run, by the names of their kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHARTS: dict[str, Callable[..., Figure]] = {
    "margins": margins,
    "margin-curves": margin_curves,
    "distances": distances,
    "alignment": alignment,
    "drift": drift,
    "similarity": similarity,
    "prototypes": prototypes,
    "features": features,
    "images": images,
}
"""{kind of ``protofl plot``, or name of ``draw`` in a reproduction: function of a run}."""
