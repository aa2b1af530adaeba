"""Shared heads: the common part of LG-FedAvg, FedGen and FedGH."""

from __future__ import annotations

from typing import ClassVar

import protofl as pf
from protofl_plugins.weight_sharing import SharedPart


class SharedHead(SharedPart):
    """Hooks of a method with one head h for all, which is sent from round 0.

    Clients that began with heads of their own would train their features towards unrelated ones,
    and the first mean of those heads fits nobody's features.

    ``does`` says what a method does with heads, for the refusal of groups whose heads differ.
    """

    part = "head"
    does: ClassVar[str]

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require heads of one shape."""
        if run.one_head:
            return []
        heads = ", ".join(dict.fromkeys(a.head for a in run.architectures))
        return [
            f"it {self.does}, and the clients of {run.group} have different heads ({heads}); "
            "a group with one head works (--models htfe8, htcnn8), or a method that shares no "
            "head (feddistill, fml, fedproto)"
        ]

    @pf.hookimpl
    def setup_server(self, server: pf.Server) -> pf.Payload:
        """The head h as the server builds it."""
        return pf.models.pack_weights(server.build(server.clients[0].architecture).head, "head")
