"""What clients have sent: held against the gate, and booked."""

from __future__ import annotations

import time
from collections.abc import Mapping

from protofl.federation.hosts.jobs import TrainReply
from protofl.federation.plan.plan import Plan
from protofl.federation.rounds.stages import Stages
from protofl.federation.rounds.tally import Tally
from protofl.hooks.transport.gates import UploadGate
from protofl.hooks.transport.rules import diverged, left_out, refused_upload
from protofl.hooks.wire.payload import Payload


def let_in(
    replies: Mapping[int, TrainReply],
    number: int,
    tally: Tally,
    gate: UploadGate,
    plan: Plan,
    stages: Stages,
) -> dict[int, Payload]:
    """What clients sent and the gate lets in; others are absent, or stop the run.

    Args:
        replies: {client: what its training came to}.
        number: The round.
        tally: Takes traffic, losses and seconds, and who is absent.
        gate: What lets uploads in.
        plan: The run.
        stages: Tells the user lines.

    Raises:
        RunFailure: An upload is not as it should be, and the run is to stop then.
    """
    start = time.perf_counter()
    blobs = {client: reply.blob for client, reply in replies.items()}
    uploads, faults = gate.admit(blobs, plan.device)
    tally.spend({"payload": time.perf_counter() - start})
    for client in uploads:
        reply, sent = replies[client], tally.traffic[client]
        sent["upload_bytes"], sent["upload_floats"] = len(reply.blob), reply.floats
        tally.add_losses(reply)
        for term in diverged(reply.sums):
            stages.note(f"client {client}: its {term} loss is NaN or infinite")
    for client, fault in faults.items():
        if plan.settings.on_bad_upload == "stop":
            raise refused_upload(client, number, fault)
        stages.note(left_out(client, number, fault))
        tally.leave_out(client, "skipped")
    return uploads
