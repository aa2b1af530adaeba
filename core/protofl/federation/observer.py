"""The observer: records prototypes, features, images and uploads of a round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofl.federation.evaluation import FEATURES, LABELS, NoObserver
from protofl.federation.observation_limits import NAMED, SERVER_KEYS, is_observed
from protofl.federation.plan import Plan
from protofl.hooks.wire.payload import Payload
from protofl.records.observed import OBSERVED, UPLOADS
from protofl.system.files.series import Round, Series


class Observer(NoObserver):
    """Records what `--observe` and `--record-uploads` ask for.

    Args:
        plan: The run.
        folder: Its folder.
        done: The rounds that are over; what was observed in others is removed.
        note: Takes a line for the user.
    """

    def __init__(
        self, plan: Plan, folder: Path, done: Collection[Round], note: Callable[[str], None]
    ) -> None:
        self._plan, self._note = plan, note
        self._observed, self._uploads = Series(folder / OBSERVED), Series(folder / UPLOADS)
        for series in (self._observed, self._uploads):
            for line in series.retain(done):
                note(line)
        self._lost: set[int] = set()
        """Trials of which uploads are missing, so that further ones would be of no use."""
        if plan.settings.record_uploads:
            for trial, round in sorted(set(done) - self._uploads.entries.keys()):
                if trial not in self._lost:
                    self._lost.add(trial)
                    of = f" of trial {trial}" if plan.settings.trials > 1 else ""
                    end = "replays end before it" if round else "there is nothing to replay"
                    note(f"the uploads of round {round}{of} are not kept: {end}")
        self._left = plan.settings.observe_limit * 1e6 - self._observed.size - self._uploads.size
        self._full = False
        self._seen: dict[str, Tensor] = {}
        self._features: dict[int, tuple[Tensor, Tensor]] = {}
        self._sent: Mapping[int, Payload] | None = None

    def samples(self, round: int) -> int:
        """Return ``--observe-samples`` in an observed round, otherwise 0."""
        wanted = "features" in self._plan.settings.observe and is_observed(self._plan, round)
        return self._plan.settings.observe_samples if wanted else 0

    def take_features(self, client: int, counts: Payload) -> None:
        """Store the features until the round ends."""
        if FEATURES in counts.keys():
            self._features[client] = counts.pop(FEATURES), counts.pop(LABELS)

    def see(self, round: int, uploads: Mapping[int, Payload], knowledge: Payload) -> None:
        """Store references to observed tensors until the round ends; no tensor is copied."""
        settings = self._plan.settings
        self._sent = uploads if settings.record_uploads else None
        if not is_observed(self._plan, round):
            return
        if "prototypes" in settings.observe:
            self._seen |= _rows_of_clients(uploads)
            for key in SERVER_KEYS:
                if key in knowledge.keys():
                    rows, classes = knowledge.rows(key)
                    self._seen |= {f"server/{key}": rows, f"server/{key}.classes": classes}
        if "images" in settings.observe and "images" in knowledge.keys():
            images, classes = knowledge.rows("images")
            bounds = self._plan.images.bounds if self._plan.images else (-1.0, 1.0)
            self._seen |= {"images": as_bytes(images, *bounds), "images.classes": classes}

    def keep(self, trial: int, round: int) -> None:
        """Write a file of observations, and one of uploads."""
        if self._features:
            clients = sorted(self._features)
            rows, labels = zip(*(self._features[client] for client in clients), strict=True)
            owners = [torch.full((len(y),), c) for c, y in zip(clients, labels, strict=True)]
            self._seen |= {
                "features": torch.cat(rows),
                "features.labels": torch.cat(labels),
                "features.clients": torch.cat(owners),
            }
        info = self._plan.info
        about = {
            "architectures": [architecture.name for architecture in info.architectures],
            "classes": info.num_classes,
        }
        if self._seen:
            self._add(self._observed, (trial, round), self._seen, about)
        if self._sent is not None and trial not in self._lost:
            sent = {f"{c}/{k}": v for c, upload in self._sent.items() for k, v in upload.items()}
            if not self._add(self._uploads, (trial, round), sent, {"clients": [*self._sent]}):
                self._lost.add(trial)
        self._seen, self._features, self._sent = {}, {}, None

    def _add(
        self,
        series: Series,
        place: Round,
        tensors: Mapping[str, Tensor],
        about: Any,  # noqa: ANN401
    ) -> bool:
        """Write a file if it fits in the remaining space; return True if it did."""
        size = sum(NAMED + tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if size <= self._left:
            self._left -= series.add(place, tensors, about)
            return True
        if not self._full:
            limit = self._plan.settings.observe_limit
            self._note(
                f"--observe-limit {limit:g} MB is reached in round {place[1]} of trial {place[0]}: "
                "what does not fit is not kept"
            )
        self._full = True
        return False


def _rows_of_clients(uploads: Mapping[int, Payload]) -> dict[str, Tensor]:
    """Return the uploaded prototypes of all clients, one table for each width."""
    found: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for client, upload in uploads.items():
        if "prototypes" in upload.keys():
            rows, classes = upload.rows("prototypes")
            own = found.setdefault(rows.shape[1], [])
            own.append((rows, classes, torch.full((len(rows),), client)))
    return {
        f"clients/{width}/{name}": torch.cat([parts[place] for parts in each])
        for width, each in found.items()
        for place, name in enumerate(("prototypes", "classes", "clients"))
    }


def as_bytes(images: Tensor, low: float, high: float) -> Tensor:
    """Return images as uint8, scaled from the range ``low`` to ``high``."""
    if images.dtype == torch.uint8:
        return images
    scale = 255 / max(high - low, 1e-12)
    return images.float().sub(low).mul(scale).round().clamp(0, 255).byte()
