"""The dry run of asynchronous schedules: steps with the upload of one of two clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import protofl as pf
from protofl import schedules
from protofl_plugins.schedules.options import AsynchronousConfig, staleness_weight
from protofl_plugins.schedules.refusals import runs_on_versions
from protofl_plugins.schedules.stale_uploads import by_rows, mixed, shared_keys

STEP = 2
"""The dry run's rounds before."""


def try_stale_steps(
    coordinator: schedules.Coordinator, note: Callable[[str], None], config: AsynchronousConfig
) -> None:
    """Act on the upload of one client, which lacks a class, then on a stale one of the other.

    Args:
        coordinator: The server and two clients after the two rounds of the dry run.
        note: Takes lines for the user.
        config: The options.

    Raises:
        UsageError: A hook fails without the uploads of all clients, or the server forgets what
            the clients of other uploads have sent.
    """
    plan, clients = coordinator.plan, [int(client) for client in coordinator.members()]
    method, schedule = plan.composition.main, plan.settings.timing
    coordinator.begin(STEP)
    downloads = coordinator.downloads(clients)
    replies = coordinator.train({c: (STEP, downloads[c]) for c in clients})
    before = coordinator.next_download(clients[0])
    try:
        (upload,) = coordinator.accept({clients[-1]: (STEP, replies[clients[-1]])}).values()
        shared = shared_keys(upload, before)
        coordinator.act({clients[-1]: _without_a_class(upload)})
        lost = _lost(before, coordinator.next_download(clients[0]))
        if len(clients) > 1:
            coordinator.begin(STEP + 1)
            (stale,) = coordinator.accept({clients[0]: (STEP, replies[clients[0]])}).values()
            base = None
            if runs_on_versions(plan):
                base = pf.Payload.from_bytes(downloads[clients[0]], plan.device)
            weight = config.mixing * staleness_weight(config, 1)
            now = coordinator.next_download(clients[0])
            coordinator.act({clients[0]: mixed(stale, now, base, weight, plan.info.num_classes)})
    except pf.RunFailure as error:
        raise pf.UsageError(
            f"--schedule {schedule}: {method} fails with the upload of one of two clients: "
            f"{error.what}",
            error.near,
            "take --schedule rounds; the author of the method declares asynchronous as a text that "
            "says why",
        ) from error
    if lost:
        raise pf.UsageError(
            f"--schedule {schedule}: {method} forgets what the clients of other uploads have sent "
            f"({lost})",
            "the server acts on the uploads of some clients",
            "take --schedule rounds, or options with which the server keeps it",
        )
    if not shared and (config.mixing < 1 or config.a):
        note(
            f"{method} uploads and downloads no common key: the weight of stale uploads and mixing "
            "change nothing"
        )


def _without_a_class(upload: pf.Payload) -> pf.Payload:
    """Return an upload without the rows of its last class, as far as it has several classes."""
    if "classes" not in upload.keys() or len(upload["classes"]) < 2:
        return upload
    kept = upload["classes"] != upload["classes"][-1]
    names = [
        k for k in upload if k == "classes" or (f"{k}.classes" not in upload and by_rows(upload, k))
    ]
    result = pf.Payload({**upload, **{k: upload[k][kept] for k in names}})
    result.version, result.staleness = upload.version, upload.staleness
    return result


def _lost(before: pf.Payload, after: Mapping[str, object] | pf.Payload) -> str:
    """Return what a download had before a step and lacks after it, in words; empty for nothing."""
    assert isinstance(after, pf.Payload)
    for key in before:
        if key not in after.keys():
            return f"{key} is gone from its download"
        if key != "classes" and before.has_class_rows(key) and after.has_class_rows(key):
            gone = {*before.classes_of(key).tolist()} - {*after.classes_of(key).tolist()}
            if gone:
                return f"{key} of class {min(gone)} is gone from its download"
    return ""
