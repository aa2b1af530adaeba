"""The backend without processes: one host, here."""

from __future__ import annotations

import protofl as pf


class Local:
    """All clients in this process, one after the other."""

    @pf.hookimpl
    def open_pool(self, plan: pf.backends.Plan) -> pf.backends.Pool:
        """One host, whatever the number of workers asked for."""
        return pf.backends.Host(plan)
