"""Messages about nodes: absent clients, errors that nodes sent, differences of machines."""

from __future__ import annotations

from typing import Any

import protofl as pf
from protofl_flower.fingerprints import facts_of
from protofl_flower.protocol.transport import RemoteNode, printed


def absent(reason: str, explanation: str, node: RemoteNode) -> pf.backends.Reply:
    """Return the reply for a lost client."""
    note = f"{node.name}: {explanation}; the round goes on without it"
    return pf.backends.Reply.from_header({"kind": "Absent", "reason": reason, "notes": [note]})


def reason_of(error: pf.ProtoflError) -> str:
    """Return the reason for which a client is absent after a node's error."""
    return "refused" if isinstance(error, pf.UsageError) else "failed"


def one_line(error: pf.ProtoflError) -> str:
    """Return an error in one line."""
    return "; ".join(filter(None, (error.what, error.near, error.do)))


def failure_of(node: RemoteNode, values: Any) -> pf.ProtoflError:  # noqa: ANN401 - as a node sent it
    """Return the error that a node sent."""
    if not isinstance(values, dict):
        return pf.RunFailure(f"{node.name} sent an error without words")
    texts = {key: printed(values.get(key, "")) for key in ("near", "do")}
    texts = {key: f"{node.name} says: {text}" if text else "" for key, text in texts.items()}
    texts |= {"error": printed(values.get("error", "")), "trace": "see the node's log"}
    texts |= {"what": f"{node.name}: {printed(values.get('what'))}"}
    return pf.ProtoflError.from_values(texts)


def differences(node: RemoteNode, plan: pf.backends.Plan, facts: Any) -> list[str]:  # noqa: ANN401
    """Return lines about what differs between a node and the run's machine."""
    node_facts = facts if isinstance(facts, dict) else {}
    here = facts_of(plan)
    if plan.data.elsewhere:
        del here["data"]  # each node has its own
    return [
        f"{node.name} has {name} {printed(node_facts[name])}, the run has {value}: "
        "results differ from a simulation's"
        for name, value in here.items()
        if name in node_facts and node_facts[name] != value
    ]
