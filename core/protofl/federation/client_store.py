"""Storage of clients between their jobs, in memory or in files.

A client that has never trained is not stored, because its seed builds it. A client that has trained
stays live (``memory`` on a CPU), as tensors in host memory (``memory`` on an accelerator), or in a
safetensors file (``disk``). Results do not depend on the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from protofl.data.batches import Samples
from protofl.hooks.models.architecture import SplitModel
from protofl.hooks.models.modules import Spares
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.views.run_info import RunInfo
from protofl.hooks.views.snapshots import pack_client, unpack_client
from protofl.system.files.atomic import ScratchFolder, link_or_copy
from protofl.system.files.tensors import Packed, read_tensors, write_tensors
from protofl.system.transfers import copied

Kind = Literal["live", "packed", "disk"]
Build = Callable[[int, SplitModel | None], ClientState]
"""Makes a client from its seed; its model is the one given, or a fresh one with its own weights."""

Kept = ClientState | Packed | Path
"""A client as it is kept: live, as tensors in host memory, or in a file."""

POOL = 8
"""Models that wait for their next client, at most: one of an architecture."""


def store_kind(asked: str, device: torch.device, *, dry: bool) -> Kind:
    """Return the storage that ``--client-store`` selects; memory means host memory."""
    if dry:
        return "live"
    if asked == "disk":
        return "disk"
    return "live" if device.type == "cpu" else "packed"


class ClientStore:
    """The clients of a host that have trained.

    Args:
        kind: How they are kept.
        info: The run.
        build: Makes a client from its seed.
        received: Whether a client's last download belongs to it (phases after the server's step).
        reuse: Whether a client that is read back may take over the model of another. It may not
            where a method's set-up can see the model: there it must hold the initial weights.
    """

    def __init__(
        self, kind: Kind, info: RunInfo, build: Build, *, received: bool, reuse: bool
    ) -> None:
        self._kind, self._info, self._build, self._received = kind, info, build, received
        self._kept: dict[int, Kept] = {}
        self._before: dict[int, Kept | None] = {}
        self._features: dict[int, tuple[Samples, Samples, Samples | None]] = {}
        self._models = Spares(POOL if reuse and kind != "live" else 0)
        self._scratch = ScratchFolder("protofl-clients-")

    def start(self, files: Mapping[int, Path], parked: str | None) -> None:
        """Forget all clients; those in ``files`` have trained before.

        Args:
            files: {client: its file}. They are read, never written or removed.
            parked: A folder for this store's own files; None for the system's temporary one. A
                host on another machine, which doesn't see it, has a disk of its own.
        """
        for client in {*self._kept, *self._before}:
            self.drop(client)
        self._kept, self._features = {**files}, {}
        self._scratch = ScratchFolder("protofl-clients-", parked)

    @property
    def clients(self) -> set[int]:
        """The stored clients: those that have trained."""
        return {*self._kept}

    # --- at work --------------------------------------------------------------------------------

    def state(self, client: int) -> ClientState:
        """Return the current state of a client."""
        kept = self._kept.get(client)
        if isinstance(kept, ClientState):
            return kept
        packed = read_tensors(kept) if isinstance(kept, Path) else kept
        name = self._info.architecture_of(client).name
        state = self._build(client, self._models.take(name) if packed else None)
        if state.architecture.precomputed:
            if client not in self._features:
                self._features[client] = state.features_as_samples()
            state.train, state.test, state.validation = self._features[client]
        self._models.note(name, state.model)
        if packed:
            unpack_client(state, packed)
        return state

    @contextmanager
    def lent(self, client: int, *, trains: bool, undo: bool = False) -> Iterator[ClientState]:
        """Lend a client for a job. A trained client is stored afterwards, an evaluated one is not.

        After an error a client that is not live is what it was before the job. With ``undo`` it
        can be put back to that until its next job.
        """
        self.forget_before(client)
        if undo:
            self._before[client] = self._as_it_is(client)
        state = self.state(client)
        yield state
        if self._kept.get(client) is state:
            return
        if trains or (self._kind == "live" and client in self._kept):
            self._keep(client, state)
        self._models.give(self._info.architecture_of(client).name, state.model)

    def _keep(self, client: int, state: ClientState) -> None:
        kept: Kept
        if self._kind == "disk":
            kept = self._file(client)
            write_tensors(kept, *self._pack(state))
        else:
            kept = self._copied(state) if self._kind == "packed" else state
            self._forget_file(client)
        self._kept[client] = kept

    def _copied(self, state: ClientState) -> Packed:
        tensors, header = self._pack(state)
        return {k: t.detach().to("cpu", copy=True) for k, t in tensors.items()}, header

    def _pack(self, state: ClientState) -> Packed:
        return pack_client(state, received=self._received)

    # --- back to before a job -------------------------------------------------------------------

    def forget_before(self, client: int) -> None:
        """Forget the state to which `undo` would restore a client."""
        before = self._before.pop(client, None)
        if isinstance(before, Path):
            before.unlink(missing_ok=True)

    def undo(self, client: int) -> None:
        """Restore a client to its state before it was lent, if that was its last job."""
        if client not in self._before:
            return
        before = self._before.pop(client)
        self.drop(client)
        if isinstance(before, Path):
            before = before.replace(self._file(client))
        if before is not None:
            self._kept[client] = before

    def _as_it_is(self, client: int) -> Kept | None:
        """Return a copy of a client's stored state; None if it is not stored."""
        kept = self._kept.get(client)
        if isinstance(kept, ClientState):
            return self._copied(kept)
        if not isinstance(kept, Path):
            return kept  # replaced when it trains, never changed
        before = self._file(client, "-before")  # whose file it is may remove it
        link_or_copy(kept, before)
        return before

    def _file(self, client: int, mark: str = "") -> Path:
        return self._scratch.file(f"client-{client:05d}{mark}.safetensors")

    # --- from and to files ----------------------------------------------------------------------

    def save(self, client: int, path: Path) -> None:
        """Write a client; one that lies in a file already is linked, not written again."""
        kept = self._kept.get(client)
        if isinstance(kept, Path):
            link_or_copy(kept, path)
        else:
            packed = kept if isinstance(kept, tuple) else self._pack(self.state(client))
            write_tensors(path, *packed)

    def snapshot(self, client: int, path: Path) -> Packed | None:
        """Return a client's tensors in host memory, where nobody changes them.

        None for a client that lies in a file already, which is linked as in `save`.
        """
        kept = self._kept.get(client)
        if isinstance(kept, Path):
            link_or_copy(kept, path)
            return None
        if isinstance(kept, tuple):
            return kept  # replaced when it trains, never changed
        tensors, header = self._pack(self.state(client))
        return copied(tensors), header

    def load(self, client: int, path: Path) -> None:
        """Set a client to the content of a file, which stays as long as it is used."""
        self.drop(client)
        self._kept[client] = path

    def drop(self, client: int) -> None:
        """Drop a client: it has its initial state again."""
        self.forget_before(client)
        self._forget_file(client)
        self._kept.pop(client, None)

    def _forget_file(self, client: int) -> None:
        """Remove the file in which a client lies, if it is one of this store's."""
        file = self._kept.get(client)
        if isinstance(file, Path) and self._scratch.holds(file):
            file.unlink(missing_ok=True)
