"""Observations of a run, read from its folder as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.errors import UsageError
from protofl.records.layout import OBSERVED
from protofl.system.files.home import expand_user
from protofl.system.files.series import Series

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Round:
    """The trial and round of an observation.

    Attributes:
        trial: The trial.
        round: The round, from 0.
        architectures: The group's architectures by name, client i's at place i mod their number.
        num_classes: C.
    """

    trial: int
    round: int
    architectures: list[str]
    num_classes: int

    def architecture_of(self, client: int) -> str:
        """Return the name of a client's architecture."""
        return self.architectures[client % len(self.architectures)]


@dataclass(frozen=True)
class Prototypes(Round):
    """Prototypes of a round: accepted uploads, and the server's prototypes after its step.

    Attributes:
        rows: The clients' prototypes [n, K], all below each other.
        classes: The class of each [n].
        clients: The client of each [n].
        server: {name: rows [m, K] and their classes [m]} of what the server knows: ``prototypes``,
            and of FedSA ``global_prototypes`` too.
    """

    rows: np.ndarray
    classes: np.ndarray
    clients: np.ndarray
    server: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def who(self) -> list[int]:
        """Clients that sent prototypes, ascending."""
        return sorted({*self.clients.tolist()})

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the clients' prototypes with a row for every class, in the order of `who`.

        Returns:
            [M, C, K], zero where a client sent none, and which it sent [M, C].
        """
        place = {client: number for number, client in enumerate(self.who)}
        dense = np.zeros((len(place), self.num_classes, self.rows.shape[1]), self.rows.dtype)
        known = np.zeros(dense.shape[:2], bool)
        at = [place[client] for client in self.clients.tolist()], self.classes
        dense[at], known[at] = self.rows, True
        return dense, known

    def server_table(self, name: str = "prototypes") -> tuple[np.ndarray, np.ndarray]:
        """Return the server's prototypes as [C, K], and a mask of known rows [C].

        Args:
            name: ``prototypes`` or ``global_prototypes``.

        Returns:
            All unknown where the server had none of that name.
        """
        rows, classes = self.server.get(name, (self.rows[:0], self.classes[:0]))
        dense = np.zeros((self.num_classes, rows.shape[1]), rows.dtype)
        known = np.zeros(self.num_classes, bool)
        dense[classes], known[classes] = rows, True
        return dense, known


@dataclass(frozen=True)
class Features(Round):
    """Features of test samples after a round, computed with each client's next download.

    Attributes:
        rows: Features [n, K] of all clients, below each other.
        labels: The class of each sample [n].
        clients: The client of each [n].
    """

    rows: np.ndarray
    labels: np.ndarray
    clients: np.ndarray


@dataclass(frozen=True)
class Images(Round):
    """Images that the server sends after a round, one per class.

    Attributes:
        images: [n, channels, H, W] uint8.
        classes: The class of each [n].
    """

    images: np.ndarray
    classes: np.ndarray


class Observed:
    """Observations of a run (``--observe``); also of a run that is still going on.

    Args:
        run: The run's folder.

    Examples:
        >>> observed = pf.load_run("runs/first").observed
        >>> observed.prototypes(round=-1).rows.shape
        (5, 64)
    """

    def __init__(self, run: str | Path) -> None:
        self.run = expand_user(run)
        self._series = Series(self.run / OBSERVED)
        self._last: tuple[tuple[int, int], tuple[dict[str, Tensor], Any]] | None = None

    def __bool__(self) -> bool:
        """Return True if there are observations."""
        return bool(self._series.entries)

    def rounds(self, trial: int = 0) -> list[int]:
        """Return the observed rounds of a trial, ascending.

        Raises:
            Damaged: The journal of what was observed is not what was written.
        """
        return sorted(round for entry_trial, round in self._series.entries if entry_trial == trial)

    @property
    def trials(self) -> list[int]:
        """Trials with observations, ascending."""
        return sorted({trial for trial, _ in self._series.entries})

    def kinds(self, round: int = -1, trial: int = 0) -> list[str]:
        """Return the kinds of observations of a round: ``prototypes``, ``features``, ``images``."""
        tensors, _ = self._read(round, trial)[1]
        starts = {name.partition("/")[0] for name in tensors}
        have = {
            "prototypes": bool(starts & {"clients", "server"}),
            "features": "features" in starts,
            "images": "images" in starts,
        }
        return [kind for kind, there in have.items() if there]

    def prototypes(self, round: int = -1, trial: int = 0, width: int | None = None) -> Prototypes:
        """Return the prototypes of a round.

        Args:
            round: The round; -1 for the last observed one.
            trial: The trial.
            width: K of those that are wanted, where clients send some of several widths.

        Raises:
            UsageError: None were observed, or they are of several widths.
            Damaged: The file is not what was written.
        """
        of, tensors = self._of("prototypes", round, trial, ("clients", "server"))
        widths = sorted({int(key.split("/")[1]) for key in tensors if key.startswith("clients/")})
        if width is None and len(widths) > 1:
            raise UsageError(
                f"clients sent prototypes of several widths: {', '.join(map(str, widths))}",
                do="say which are wanted: width=…",
            )
        chosen = width if width is not None else next(iter(widths), 0)
        names = ("prototypes", "classes", "clients")
        arrays = {name: tensors.get(f"clients/{chosen}/{name}") for name in names}
        none = {"prototypes": np.zeros((0, chosen), np.float32)}
        rows, classes, clients = (
            _array(value) if value is not None else none.get(name, np.zeros(0, np.int64))
            for name, value in arrays.items()
        )
        server = {
            key.removeprefix("server/"): (_array(value), _array(tensors[f"{key}.classes"]))
            for key, value in tensors.items()
            if key.startswith("server/") and not key.endswith(".classes")
        }
        return Prototypes(*of, rows, classes, clients, server)

    def features(self, round: int = -1, trial: int = 0) -> Features:
        """Return the features of a round; see `prototypes` for the arguments and errors."""
        of, tensors = self._of("features", round, trial, ("features",))
        names = ("features", "features.labels", "features.clients")
        return Features(*of, *(_array(tensors[name]) for name in names))

    def images(self, round: int = -1, trial: int = 0) -> Images:
        """Return the generated images of a round; see `prototypes` for the arguments and errors."""
        of, tensors = self._of("images", round, trial, ("images",))
        return Images(*of, _array(tensors["images"]), _array(tensors["images.classes"]))

    def _of(
        self, kind: str, round: int, trial: int, starts: tuple[str, ...]
    ) -> tuple[tuple[int, int, list[str], int], Mapping[str, Tensor]]:
        """Return the fields of `Round` and the tensors of a kind, or raise an error without any."""
        number, (tensors, about) = self._read(round, trial)
        if not any(name.partition("/")[0] in starts for name in tensors):
            have = ", ".join(self.kinds(round, trial))
            raise UsageError(
                f"{self.run} has observed no {kind} in round {number + 1} of trial {trial}",
                f"it has observed: {have}",
                f"run it with --observe {kind}",
            )
        return (trial, number, about["architectures"], about["classes"]), tensors

    def _read(self, round: int, trial: int) -> tuple[int, tuple[dict[str, Tensor], Any]]:
        """Return the number of a round and its file; the last file read is cached."""
        rounds = self.rounds(trial)
        if not rounds:
            observed = f"observed are trials {self.trials}" if self.trials else ""
            raise UsageError(
                f"{self.run} has observed nothing of trial {trial}",
                observed,
                "run it with --observe prototypes,features",
            )
        number = rounds[round] if -len(rounds) <= round < 0 else round
        place = trial, number
        if self._last is None or self._last[0] != place:
            self._last = place, self._series.read(place)
        return number, self._last[1]


def _array(tensor: Tensor) -> np.ndarray:
    """Copy a tensor to a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    wide = tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor
    return np.array(wide.numpy())
