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

from protofl_workbench.plots.bar_charts import bars, traffic
from protofl_workbench.plots.client_charts import clients
from protofl_workbench.plots.curves import curve
from protofl_workbench.plots.figure_files import save
from protofl_workbench.plots.interval_chart import differences
from protofl_workbench.plots.matrices import confusion, cross, split

__all__ = [
    "bars", "clients", "confusion", "cross", "curve", "differences", "save", "split", "traffic",
]  # fmt: skip
