"""One head for all: what FedGen and FedGH have in common."""

from __future__ import annotations

import protofl as pf


def needs_one_head(run: pf.RunInfo, does: str) -> list[str]:
    """The reason why a method that ``does`` something with heads needs heads of one shape."""
    if run.one_head:
        return []
    heads = ", ".join(dict.fromkeys(a.head for a in run.architectures))
    return [
        f"it {does}, and the clients of {run.group} have different heads ({heads}); "
        "a group with one head works (--models htfe8, htcnn8), or a method that shares no "
        "head (feddistill, fml, fedproto)"
    ]
