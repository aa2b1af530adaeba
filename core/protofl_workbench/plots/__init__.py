"""Pictures of runs as matplotlib figures, for a paper or a page.

    import protofl as pf

    figure = pf.plots.curve(["runs/fedproto", "runs/fedtgp"], x="mb")
    pf.plots.save(figure, "accuracy.pdf")

Each function makes a `matplotlib.figure.Figure` by itself and leaves pyplot and its global state
alone, so notebooks, threads and servers may draw.

Imports: comparing, data, errors, functional, records, runs, system.
Start with ``curves.py``.
"""

from __future__ import annotations

from protofl_workbench.plots.bar_charts import bar_chart as bar_chart
from protofl_workbench.plots.bar_charts import bars as bars
from protofl_workbench.plots.bar_charts import stages as stages
from protofl_workbench.plots.bar_charts import traffic as traffic
from protofl_workbench.plots.curves import Curve as Curve
from protofl_workbench.plots.curves import curve as curve
from protofl_workbench.plots.curves import curve_chart as curve_chart
from protofl_workbench.plots.differences import differences as differences
from protofl_workbench.plots.observations import alignment as alignment
from protofl_workbench.plots.observations import distances as distances
from protofl_workbench.plots.observations import drift as drift
from protofl_workbench.plots.observations import margin_curves as margin_curves
from protofl_workbench.plots.observations import margins as margins
from protofl_workbench.plots.observed_images import images as images
from protofl_workbench.plots.observed_images import images_of_runs as images_of_runs
from protofl_workbench.plots.per_client import clients as clients
from protofl_workbench.plots.planes import features as features
from protofl_workbench.plots.planes import prototypes as prototypes
from protofl_workbench.plots.saving import save as save
from protofl_workbench.plots.saving import svg as svg
from protofl_workbench.plots.squares import confusion as confusion
from protofl_workbench.plots.squares import matrix as matrix
from protofl_workbench.plots.squares import similarity as similarity
from protofl_workbench.plots.squares import split as split

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
