"""Observations of a run (``--observe``): checks, and records of rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from protofl.errors import UsageError
from protofl.federation.clients.sample_outputs import FEATURES, LABELS
from protofl.federation.plan.plan import Plan
from protofl.hooks.wire.payload import Payload
from protofl.records.layout import OBSERVED, UPLOADS
from protofl.system.files.series import Round, Series
from protofl.system.formatting import size_text

SERVER_KEYS = ("prototypes", "global_prototypes")
"""Keys of the server's prototypes; FedSA has global prototypes in addition to its anchors."""

STARTS = {"prototypes": ("server/", "clients/"), "features": ("features",), "images": ("images",)}
"""{kind of observation: prefixes of its tensors' names}."""

NAMED = 96
"""Overhead in bytes of each tensor in a file."""


def is_observed(plan: Plan, round: int) -> bool:
    """Return True if prototypes, features and images of a round are recorded."""
    return bool(plan.settings.observe) and plan.is_due(round, plan.settings.observe_every)


def check_observing(plan: Plan) -> None:
    """Check that the methods of a run have what ``--observe`` asks for.

    Raises:
        UsageError: Its methods have nothing of what is asked for.
    """
    observed, composition = plan.settings.observe, plan.composition
    sent = composition.declarations("upload_payload")
    received = composition.declarations("download_payload")
    method = plan.settings.method
    if "prototypes" in observed and not sent.covers("prototypes"):
        raise UsageError(
            f"--observe prototypes: clients of {method} don't send prototypes",
            f"they send: {', '.join(sent.names or ()) or 'nothing'}",
            "observe features, or take a method that does",
        )
    if "features" in observed and len(plan.info.feature_dims) > 1:
        raise UsageError(
            "--observe features needs features of one width, and the clients' have "
            f"{', '.join(map(str, plan.info.feature_dims))}",
            do="observe prototypes, or give a number for --feature-dim",
        )
    if "images" in observed and not received.covers("images"):
        raise UsageError(
            f"--observe images: the server of {method} makes no images",
            f"clients get: {', '.join(received.names or ()) or 'nothing'}",
            "leave it out, or take a method with an image generator (fedktl)",
        )


class Observer:
    """Records what `--observe` and `--record-uploads` ask for.

    Args:
        plan: The run.
        folder: Its folder.
        done: The rounds that are over; what was observed in others is removed.
        note: Takes a line for the user.
    """

    def __init__(
        self, plan: Plan, folder: Path, finished: Collection[Round], note: Callable[[str], None]
    ) -> None:
        self._plan, self._note = plan, note
        self._observed, self._uploads = Series(folder / OBSERVED), Series(folder / UPLOADS)
        for series in (self._observed, self._uploads):
            for line in series.retain(finished):
                note(line)
        self._noted: set[str] = set()
        self._seen: dict[str, Tensor] = {}
        self._features: dict[int, tuple[Tensor, Tensor]] = {}
        self._sent: Mapping[int, Payload] | None = None

    def samples(self, round: int) -> int:
        """Return how many test samples of a client have their features recorded after a round."""
        takes_features = "features" in self._plan.settings.observe and is_observed(
            self._plan, round
        )
        return self._plan.settings.observe_samples if takes_features else 0

    def take_features(self, client: int, counts: Payload) -> None:
        """Take a client's features out of the counts of its evaluation, until the round ends."""
        if FEATURES in counts.keys():
            self._features[client] = counts.pop(FEATURES), counts.pop(LABELS)

    def see(self, round: int, uploads: Mapping[int, Payload], global_state: Payload) -> None:
        """Store references to observed tensors until the round ends; no tensor is copied.

        Args:
            round: The round.
            uploads: The validated uploads.
            global_state: What the server knows after its step.
        """
        settings = self._plan.settings
        self._sent = uploads if settings.record_uploads else None
        if not is_observed(self._plan, round):
            return
        if "prototypes" in settings.observe:
            self._seen |= _rows_of_clients(uploads)
            for key in SERVER_KEYS:
                if key in global_state.keys():
                    rows, classes = global_state.rows(key)
                    self._seen |= {f"server/{key}": rows, f"server/{key}.classes": classes}
        if "images" in settings.observe and "images" in global_state.keys():
            images, classes = global_state.rows("images")
            bounds = self._plan.images.bounds if self._plan.images else (-1.0, 1.0)
            self._seen |= {"images": as_bytes(images, *bounds), "images.classes": classes}

    def keep(self, trial: int, round: int) -> None:
        """Write a file of observations and one of uploads, before the round counts."""
        if self._features:
            clients = sorted(self._features)
            rows, labels = zip(*(self._features[client] for client in clients), strict=True)
            owners = [torch.full((len(y),), c) for c, y in zip(clients, labels, strict=True)]
            self._seen |= {
                "features": torch.cat(rows),
                "features.labels": torch.cat(labels),
                "features.clients": torch.cat(owners),
            }
        plan, rounds = self._plan, range(self._plan.settings.rounds)
        about = {
            "architectures": plan.info.names_by_client,
            "classes": plan.info.num_classes,
        }
        uploads = self._sent or {}
        sent = {f"{c}/{k}": v for c, upload in uploads.items() for k, v in upload.items()}
        sizes = {"uploads": _size(sent) * len(rounds)}
        for what, start in STARTS.items():
            tensors = {name: t for name, t in self._seen.items() if name.startswith(start)}
            if tensors and what not in self._noted:
                every = plan.settings.eval_every if what == "features" else 1
                due = sum(is_observed(plan, r) and plan.is_due(r, every) for r in rounds)
                sizes[what] = _size(tensors) * due
        self._note_sizes({what: size * plan.settings.trials for what, size in sizes.items()})
        if self._seen:
            self._observed.add((trial, round), self._seen, about)
        if self._sent is not None:
            self._uploads.add((trial, round), sent, {"clients": [*uploads]})
        self._seen, self._features, self._sent = {}, {}, None

    def _note_sizes(self, sizes: Mapping[str, int]) -> None:
        """Note the expected size of the files of new kinds."""
        new = {what: size for what, size in sizes.items() if size and what not in self._noted}
        if not new:
            return
        self._noted |= new.keys()
        total = size_text(sum(new.values()))
        parts = ", ".join(f"{what} {size_text(size)}" for what, size in new.items())
        self._note(f"observations will use about {total} in the run folder ({parts})")


def _size(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of a file of tensors."""
    return sum(NAMED + tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _rows_of_clients(uploads: Mapping[int, Payload]) -> dict[str, Tensor]:
    """Return the uploaded prototypes of all clients, one table for each width."""
    pieces_by_width: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for client, upload in uploads.items():
        if "prototypes" in upload.keys():
            rows, classes = upload.rows("prototypes")
            pieces = pieces_by_width.setdefault(rows.shape[1], [])
            pieces.append((rows, classes, torch.full((len(rows),), client)))
    return {
        f"clients/{width}/{name}": torch.cat([parts[place] for parts in each])
        for width, each in pieces_by_width.items()
        for place, name in enumerate(("prototypes", "classes", "clients"))
    }


def as_bytes(images: Tensor, low: float, high: float) -> Tensor:
    """Return images as uint8, scaled from the range ``low`` to ``high``."""
    if images.dtype == torch.uint8:
        return images
    scale = 255 / max(high - low, 1e-12)
    return images.float().sub(low).mul(scale).round().clamp(0, 255).byte()
