"""Local: every client trains alone.

The reference of every comparison: what clients reach without a federation.

    min over w_i of  E_{(x, y) ~ D_i} ℓ(h_i(f_i(x)), y)

Nothing is sent. Inference is by the client's own head.
"""

from __future__ import annotations

import protofl as pf


class Local:
    """Every client trains alone by the loss of the task; nothing is sent."""

    tasks = pf.datasets.Task.ALL
    native_widths = True
    uploads: dict[str, str] = {}
    downloads: dict[str, str] = {}
