"""Figures of runs with matplotlib, for papers and pages.

    import protofl as pf

    figure = pf.plots.curve(["runs/fedproto", "runs/fedtgp"], x="mb")
    pf.plots.save(figure, "accuracy.pdf")

Each function returns a new `matplotlib.figure.Figure` without the global state of pyplot, so that
notebooks, threads and servers can draw.

Imports: comparing, errors, functional, records, system.
Start with ``curves.py``.
"""

from __future__ import annotations

from protofl_workbench.plots.bar_charts import bar_chart as bar_chart
from protofl_workbench.plots.bar_charts import bars as bars
from protofl_workbench.plots.bar_charts import stages as stages
from protofl_workbench.plots.bar_charts import traffic as traffic
from protofl_workbench.plots.client_charts import clients as clients
from protofl_workbench.plots.curves import Curve as Curve
from protofl_workbench.plots.curves import curve as curve
from protofl_workbench.plots.curves import curve_chart as curve_chart
from protofl_workbench.plots.figure_files import save as save
from protofl_workbench.plots.figure_files import svg as svg
from protofl_workbench.plots.image_grids import images as images
from protofl_workbench.plots.image_grids import images_of_runs as images_of_runs
from protofl_workbench.plots.interval_chart import differences as differences
from protofl_workbench.plots.matrices import confusion as confusion
from protofl_workbench.plots.matrices import matrix as matrix
from protofl_workbench.plots.matrices import similarity as similarity
from protofl_workbench.plots.matrices import split as split
from protofl_workbench.plots.prototype_charts import alignment as alignment
from protofl_workbench.plots.prototype_charts import distances as distances
from protofl_workbench.plots.prototype_charts import drift as drift
from protofl_workbench.plots.prototype_charts import margin_curves as margin_curves
from protofl_workbench.plots.prototype_charts import margins as margins
from protofl_workbench.plots.tsne_charts import features as features
from protofl_workbench.plots.tsne_charts import prototypes as prototypes

__all__ = [
    "Curve",
    "alignment",
    "bar_chart",
    "bars",
    "clients",
    "confusion",
    "curve",
    "curve_chart",
    "differences",
    "distances",
    "drift",
    "features",
    "images",
    "images_of_runs",
    "margin_curves",
    "margins",
    "matrix",
    "prototypes",
    "save",
    "similarity",
    "split",
    "stages",
    "svg",
    "traffic",
]
