"""A server that runs again on recorded uploads, and figures of its knowledge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from protofl import functional
from protofl.federation.plan import Plan
from protofl.federation.round_totals import Totals
from protofl.federation.server_side import ServerSide
from protofl.hooks.wire.payload import Payload, stack_rows
from protofl.records.observed import Features
from protofl.system.device import compute_threads, deterministic_kernels
from protofl.system.files.tables import finite
from protofl.system.profile.run_profile import Sums


@dataclass
class ReplayedRound:
    """A round of a replay.

    Attributes:
        round: The round.
        same: True if the knowledge equals that of the unchanged replay, bit by bit.
        figures: {name: number}, see docs/how-to/replay-the-server.md; None for a missing number.
        knowledge: Knowledge after the round, if requested.
    """

    round: int
    same: bool
    figures: dict[str, float | None]
    knowledge: Payload | None = None


@dataclass
class ReplayedServer:
    """The server of a trial that receives recorded uploads.

    Attributes:
        plan: Plan of the run, with or without changes.
        trial: The trial.
        number: The last round.
        extra: Figures that hooks added to the record of this round.
    """

    plan: Plan
    trial: int
    number: int = -1
    extra: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Set up the server as in the run."""
        with deterministic_kernels(self.plan.settings.deterministic):
            self._side = ServerSide(self.plan, self.trial, Sums())
            self._side.open_gate()  # checks what receive_uploads returns

    @property
    def knowledge(self) -> Payload:
        """Knowledge of the server."""
        return self._side.record.knowledge

    def downloads(self, number: int, clients: Iterable[int]) -> dict[int, bytes]:
        """Return {client: download} at the beginning of a round."""
        with compute_threads(self.plan.settings.server_threads):
            self._side.begin(number)
            return dict(self._side.downloads(clients, Totals(), counted=False))

    def round(self, number: int, uploads: Mapping[int, Payload]) -> None:
        """Run a round: aggregation, training, and figures at its end.

        Args:
            number: The round.
            uploads: {client: upload}; without uploads the server does not change.

        Raises:
            ProtoflError: A hook failed.
        """
        settings = self.plan.settings
        threads = compute_threads(settings.server_threads)
        with threads, deterministic_kernels(settings.deterministic):
            self.number = number
            self._side.begin(number)
            if uploads:
                self._side.learn(uploads)
            self.extra = self._side.end_round(Totals(malicious=self._side.record.malicious))

    @torch.no_grad()
    def figures(
        self, uploads: Mapping[int, Payload], own: Payload, features: Features | None
    ) -> dict[str, Any]:
        """Return figures of the knowledge.

        Args:
            uploads: {client: upload} of the round.
            own: Knowledge of the unchanged replay.
            features: Observed test features of the round, if any.
        """
        found = dict(self.extra)
        found["moved"] = finite(_moved(self.knowledge, own))
        if "prototypes" not in self.knowledge.keys():
            return found
        classes = self.plan.info.num_classes
        P, known = self.knowledge.table("prototypes", classes)
        found["mean_class_margin"] = finite(float(functional.class_margins(P, known).nanmean()))
        if uploads and all("prototypes" in upload.keys() for upload in uploads.values()):
            sent, there = stack_rows(uploads, "prototypes", classes)
            if sent.shape[2:] == P.shape[1:]:
                each = functional.distances_by_client(sent, there, P, known)
                found["distance_to_clients"] = finite(float(each.nanmean()))
        if features is not None and features.rows.shape[1:] == P.shape[1:] and known.any():
            found["nearest_prototype_accuracy"] = _nearest(features, P.cpu(), known.cpu())
        return found


def is_same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Return True if two servers have the same knowledge, bit by bit."""
    return one.keys() == other.keys() and all(
        value.dtype == other[key].dtype and torch.equal(value.cpu(), other[key].cpu())
        for key, value in one.items()
    )


def _moved(knowledge: Payload, own: Payload) -> float:
    """Return ‖a − b‖ / ‖b‖ over floating-point tensors with the same key and shape."""
    apart = norm = 0.0
    for key, value in own.items():
        if value.is_floating_point() and key in knowledge.keys():
            other = knowledge[key]
            if other.shape == value.shape:
                wide = value.double()
                apart += float((other.double() - wide).square().sum())
                norm += float(wide.square().sum())
    return (apart / norm) ** 0.5 if norm else 0.0


def _nearest(features: Features, prototypes: torch.Tensor, known: torch.Tensor) -> float | None:
    """Return the share of samples whose nearest prototype has their class."""
    if not len(features.rows):
        return None
    rows, labels = torch.from_numpy(features.rows), torch.from_numpy(features.labels)
    distances = functional.prototype_distance(rows, prototypes.to(rows.dtype))
    found = distances.masked_fill(~known, torch.inf).argmin(1)
    return float((found == labels).double().mean())
