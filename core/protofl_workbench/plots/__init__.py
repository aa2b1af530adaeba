"""Figures of runs with matplotlib, for papers and pages.

    import protofl as pf

    figure = pf.plots.curve(["runs/fedproto", "runs/fedtgp"], x="mb")
    pf.plots.save(figure, "accuracy.pdf")

Each function returns a new `matplotlib.figure.Figure` without the global state of pyplot, so that
notebooks, threads and servers can draw.

Imports: comparing, data, errors, functional, recorded, records, system.
Start with ``curves.py``.
"""

from __future__ import annotations

from protofl_workbench.plots.bar_charts import bar_chart, bars, stages, traffic
from protofl_workbench.plots.calibration_chart import (
    calibration,
    calibration_counts,
    calibration_error,
)
from protofl_workbench.plots.client_charts import clients
from protofl_workbench.plots.curves import Curve, curve, curve_chart
from protofl_workbench.plots.embedding_animation import embedding
from protofl_workbench.plots.figure_files import gif, save, save_animation, svg
from protofl_workbench.plots.image_grids import images, images_of_runs
from protofl_workbench.plots.interval_chart import differences
from protofl_workbench.plots.matrices import (
    confusion,
    confusion_by_client,
    confusion_counts,
    confusions,
    matrix,
    similarity,
    split,
)
from protofl_workbench.plots.prototype_charts import (
    alignment,
    distances,
    drift,
    margin_curves,
    margins,
)
from protofl_workbench.plots.tsne_charts import features, prototypes

__all__ = [
    "Curve",
    "alignment",
    "bar_chart",
    "bars",
    "calibration",
    "calibration_counts",
    "calibration_error",
    "clients",
    "confusion",
    "confusion_by_client",
    "confusion_counts",
    "confusions",
    "curve",
    "curve_chart",
    "differences",
    "distances",
    "drift",
    "embedding",
    "features",
    "gif",
    "images",
    "images_of_runs",
    "margin_curves",
    "margins",
    "matrix",
    "prototypes",
    "save",
    "save_animation",
    "similarity",
    "split",
    "stages",
    "svg",
    "traffic",
]
