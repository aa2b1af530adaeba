"""The backend without processes: one host, here."""

from __future__ import annotations

import protofl as pf


class Local:
    """All clients in this process, one after the other."""

    @pf.hookimpl
    def open_pool(self, plan: pf.backends.Plan) -> pf.backends.Pool:
        """Open one host, for any number of workers."""
        return pf.backends.Host(plan)
