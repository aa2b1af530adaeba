"""A server that runs again on recorded uploads: its options, rounds and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from protofl import functional
from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.federation.round.round_totals import Totals
from protofl.federation.round.server_side import ServerSide
from protofl.functional.margins import class_margins
from protofl.hooks.wire.payload import Payload, stack_rows
from protofl.system.device import compute_threads, device_of
from protofl.system.files.tables import finite
from protofl.system.options.parsing import merge_options, options_in, parse_options
from protofl.system.options.table import portable
from protofl.system.profile import Sums
from protofl_workbench.recorded.observed import Features
from protofl_workbench.recorded.prototype_spreads import distances_by_client


@dataclass
class ReplayedRound:
    """A round of a replay.

    Attributes:
        round: The round.
        same: True if the global state equals that of the unchanged replay, bit by bit.
        figures: {name: number}, see docs/how-to/replay-the-server.md; None for a missing number.
        global_state: Global state after the round, if requested.
    """

    round: int
    same: bool
    figures: dict[str, float | None]
    global_state: Payload | None = None


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
        with self.plan.computing():
            self._side = ServerSide(self.plan, self.trial, Sums())
            self._side.build_validation()  # checks what receive_uploads returns

    @property
    def global_state(self) -> Payload:
        """Global state of the server."""
        return self._side.state.global_state

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
        with threads, self.plan.computing():
            self.number = number
            self._side.begin(number)
            if uploads:
                self._side.learn(uploads)
            self.extra = self._side.end_round(Totals(malicious=self._side.state.malicious))

    @torch.no_grad()
    def figures(
        self, uploads: Mapping[int, Payload], unchanged_state: Payload, features: Features | None
    ) -> dict[str, Any]:
        """Return figures of the global state.

        Args:
            uploads: {client: upload} of the round.
            unchanged_state: Global state of the unchanged replay.
            features: Observed test features of the round, if any.
        """
        result = dict(self.extra)
        result["moved"] = finite(_moved(self.global_state, unchanged_state))
        if not self.global_state.is_table("prototypes"):
            return result
        classes = self.plan.info.num_classes
        P, known = self.global_state.table("prototypes", classes)
        result["mean_class_margin"] = finite(float(class_margins(P, known).nanmean()))
        if uploads and all("prototypes" in upload.keys() for upload in uploads.values()):
            sent, there = stack_rows(uploads, "prototypes", classes)
            if sent.shape[2:] == P.shape[1:]:
                each = distances_by_client(sent, there, P, known)
                result["distance_to_clients"] = finite(float(each.nanmean()))
        if features is not None and features.rows.shape[1:] == P.shape[1:] and known.any():
            result["nearest_prototype_accuracy"] = _nearest(features, P.cpu(), known.cpu())
        return result


def is_same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Return True if two servers have the same global state, bit by bit."""
    return one.keys() == other.keys() and all(
        value.dtype == other[key].dtype and torch.equal(value.cpu(), other[key].cpu())
        for key, value in one.items()
    )


def _moved(global_state: Payload, unchanged_state: Payload) -> float:
    """Return the relative distance ‖a − b‖ / ‖b‖ of two servers after the same round.

    Args:
        global_state: a, the server's global state with the new options.
        unchanged_state: b, the server's global state with the run's own options.

    Returns:
        The norms are over all floating-point tensors with the same key and shape. 0 for equal
        ones, and if b is 0.
    """
    apart = norm = 0.0
    for key, value in unchanged_state.items():
        if value.is_floating_point() and key in global_state.keys():
            other = global_state[key]
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
    nearest = distances.masked_fill(~known, torch.inf).argmin(1)
    return float((nearest == labels).double().mean())


MOST = 200
"""Largest number of settings in one replay."""


@dataclass(frozen=True)
class ReplaySetting:
    """One setting of a replay.

    Attributes:
        label: Description of the changes: ``tau=10``.
        plan: Plan of the run with the changes.
    """

    label: str
    plan: Plan


def own_plan(recorded: Mapping[str, Any]) -> Plan:
    """Return the plan of a recorded run.

    Args:
        recorded: Content of its ``config.json``.

    Raises:
        UsageError: Data or plugins of the run are missing.
    """
    return Plan.make(_own_options(recorded), report=lambda line: None, recorded=True)


def changes_of(
    recorded: Mapping[str, Any],
    set: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    use: Mapping[str, str],
) -> Iterator[ReplaySetting]:
    """Yield every combination of changes.

    Args:
        recorded: Content of the run's ``config.json``.
        set: Options of all settings, as for ``--set``.
        grid: {option: values}.
        use: {hook of the server: method that provides it}.

    Raises:
        UsageError: An option is unknown or out of range, or there are too many combinations.
    """
    if (count := math.prod(map(len, grid.values()))) > MOST:
        raise UsageError(f"expected at most {MOST} settings, got {count}", do="use fewer values")
    for key in {**set, **grid}:
        if key.rpartition(".")[2] == "variant":
            raise UsageError(
                f"--set {key}: a run records the options of its variant, not the variant",
                do="set the options of the variant (see: protofl show METHOD)",
            )
    for hook in use:
        if not hook.startswith(("server_", "receive_")):
            raise UsageError(
                f"--use {hook}: a replay runs hooks of the server only",
                "expected server_aggregate or server_train",
                "start a run to change hooks of clients",
            )
    for values in product(*grid.values()):
        chosen = {**set, **dict(zip(grid, values, strict=True))}
        typed = parse_options({"set": chosen, "use": dict(use)}, owner=str(recorded["method"]))
        options = _without_displaced(merge_options(_own_options(recorded), typed), recorded)
        plan = Plan.make(options, report=lambda line: None, recorded=True)
        texts = [f"{key}={value}" for key, value in (*chosen.items(), *use.items())]
        yield ReplaySetting(", ".join(texts), plan)


def _without_displaced(options: dict[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Remove options of methods whose hooks are replaced."""
    added = {text.rpartition("=")[2].partition(".")[0] for text in options.get("add", ())}
    gone = {*recorded.get("use", {}).values()} - {*options.get("use", {}).values()} - added
    kept = {
        name: method_options
        for name, method_options in options["options"].items()
        if name not in gone
    }
    return options | {"options": kept}


def _own_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    return portable(options_in(recorded)) | {"device": _device(str(recorded["device"]))}


def _device(of_run: str) -> str:
    """Return the first device of the run, or the CPU if this machine does not have it."""
    try:
        return str(device_of(of_run.partition(",")[0]))
    except UsageError:
        return "cpu"
