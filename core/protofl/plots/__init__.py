"""Pictures of runs as matplotlib figures, for a paper or a page.

    import protofl as pf

    figure = pf.plots.curve(["runs/fedproto", "runs/fedtgp"], x="mb")
    pf.plots.save(figure, "accuracy.pdf")

Each function makes a `matplotlib.figure.Figure` by itself and leaves pyplot and its global state
alone, so notebooks, threads and servers may draw.
"""

from __future__ import annotations

from protofl.plots.bar_charts import bar_chart as bar_chart
from protofl.plots.bar_charts import bars as bars
from protofl.plots.bar_charts import stages as stages
from protofl.plots.bar_charts import traffic as traffic
from protofl.plots.curves import Curve as Curve
from protofl.plots.curves import curve as curve
from protofl.plots.curves import curve_chart as curve_chart
from protofl.plots.differences import differences as differences
from protofl.plots.observations import alignment as alignment
from protofl.plots.observations import distances as distances
from protofl.plots.observations import drift as drift
from protofl.plots.observations import margin_curves as margin_curves
from protofl.plots.observations import margins as margins
from protofl.plots.observed_images import images as images
from protofl.plots.observed_images import images_of_runs as images_of_runs
from protofl.plots.per_client import clients as clients
from protofl.plots.planes import features as features
from protofl.plots.planes import prototypes as prototypes
from protofl.plots.saving import save as save
from protofl.plots.saving import svg as svg
from protofl.plots.squares import confusion as confusion
from protofl.plots.squares import matrix as matrix
from protofl.plots.squares import similarity as similarity
from protofl.plots.squares import split as split

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
