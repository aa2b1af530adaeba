"""Storage of clients between their jobs, on the device, in host memory, or in files.

A client that has never trained is not stored, because its seed builds it. A client that has trained
stays on the device (``device``, on a CPU ``memory`` too), lies in host memory (``memory`` beside a
GPU), or in a safetensors file (``disk``). Beside a GPU, those that are not on the device by right
stay there as well as long as they take at most half of the free memory, so that an evaluation after
training copies nothing. Results do not depend on the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Union

import torch

from protofl.data.batches import Samples
from protofl.hooks.models.architecture import SplitModel
from protofl.hooks.models.modules import Spares
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.views.run_info import RunInfo
from protofl.hooks.views.snapshots import pack_client, unpack_client
from protofl.system.files.atomic import ScratchFolder, link_or_copy
from protofl.system.files.tensors import Packed, read_tensors, write_tensors
from protofl.system.transfers import (
    copied,
    has_streams,
    size_of,
    to_device,
    to_host,
)

if TYPE_CHECKING:
    from protofl.federation.clients.parked import Beside, CopyStreams, Fetched, Parked

Kind = Literal["live", "pinned", "disk"]
Build = Callable[[int, SplitModel | None], ClientState]
"""Makes a client from its seed; its model is the one given, or a fresh one with its own weights."""

Kept = Union[ClientState, "Parked", Path]
"""A client as it is kept: live, in host memory, or in a file."""

POOL = 8
"""Models that wait for their next client, at most."""


def store_kind(asked: str, device: torch.device, *, dry: bool) -> Kind:
    """Return the storage that ``--client-store`` selects; memory means host memory.

    ``auto`` has been replaced where it matters (`protofl.federation.plan.store_choice`).
    """
    if dry:
        return "live"
    if asked == "disk":
        return "disk"
    return "pinned" if asked == "memory" and has_streams(device) else "live"


class ClientStore:
    """The clients of a host that have trained.

    Args:
        kind: How they are kept.
        info: The run.
        build: Makes a client from its seed.
        received: Whether a client's last download belongs to it (phases after the server's step).
        reuse: Whether a client that is read back may take over the model of another. It may not
            where a method's set-up can see the model: there it must hold the initial weights.
        device: Where clients compute.
        sharers: Hosts that use the device.
    """

    def __init__(
        self,
        kind: Kind,
        info: RunInfo,
        build: Build,
        *,
        received: bool,
        reuse: bool,
        device: torch.device,
        sharers: int = 1,
    ) -> None:
        self._info, self._build, self._received = info, build, received
        self._kept: dict[int, Kept] = {}
        self._before: dict[int, Kept | None] = {}
        self._features: dict[int, tuple[Samples, Samples, Samples | None]] = {}
        self._reuse, self._device = reuse, device
        self._streams: CopyStreams | None = None
        self._beside: Beside | None = None
        if has_streams(device):
            from protofl.federation.clients.parked import Beside, CopyStreams

            self._streams, self._beside = CopyStreams(device), Beside(device, sharers)
        self._coming: dict[int, Fetched] = {}
        self._round = -1
        self._scratch = ScratchFolder("protofl-clients-")
        self.keep_as(kind)

    def keep_as(self, kind: Kind) -> None:
        """Set how clients are kept from now on."""
        self._kind = kind
        most = POOL if self._reuse else 0
        # Beside a device with streams several clients of one architecture work at once. Live ones
        # of a run without rounds are put back several at a time.
        one = kind == "disk" and self._streams is None
        self._models = Spares(most, 1 if one else most)

    def start(self, files: Mapping[int, Path], parked: str | None) -> None:
        """Forget all clients; those in ``files`` have trained before.

        Args:
            files: {client: its file}. They are read, never written or removed.
            parked: A folder for this store's own files; None for the system's temporary one. A
                host on another machine, which doesn't see it, has a disk of its own.
        """
        for client in {*self._kept, *self._before}:
            self.drop(client)
        self._kept, self._features, self._round = {**files}, {}, -1
        if self._beside:
            self._beside.clear()
        self._coming.clear()
        self._scratch = ScratchFolder("protofl-clients-", parked)

    @property
    def clients(self) -> set[int]:
        """The stored clients: those that have trained."""
        return {*self._kept}

    def size(self, client: int) -> int:
        """Return the bytes of all that is stored of a client."""
        return size_of(self._pack(self.state(client))[0].values())

    # --- at work --------------------------------------------------------------------------------

    def state(self, client: int) -> ClientState:
        """Return the current state of a client."""
        kept = self._kept.get(client)
        if isinstance(kept, ClientState):
            return kept
        if self._beside and (there := self._beside.get(client)):
            return there
        packed = None if kept is None else self._packed(client, kept)
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

    def _packed(self, client: int, kept: Parked | Path) -> Packed:
        """Return a stored client, on the device if that computes in streams."""
        coming = self._coming.pop(client, None)
        if isinstance(kept, Path):
            tensors, header = read_tensors(kept)
            return (tensors if self._streams is None else to_device(tensors, self._device)), header
        if coming is None or coming.parked is not kept:
            coming = kept.fetched()
        return kept.packed() if coming is None else coming.packed()

    def fetch(self, clients: Collection[int]) -> None:
        """Start the copies of clients from host memory to the device; the program goes on."""
        for client in clients:
            kept = self._kept.get(client)
            if kept is None or isinstance(kept, (ClientState, Path)) or client in self._coming:
                continue
            here = self._beside is None or self._beside.get(client)
            if not here and (coming := kept.fetched()) is not None:
                self._coming[client] = coming

    def expect(self, clients: Collection[int]) -> None:
        """Note the clients of the next stage; others make room for them on the device."""
        if self._beside:
            self._beside.expect(clients)
        self._coming = {c: coming for c, coming in self._coming.items() if c in clients}

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
        if self._beside:
            self._beside.take(client)  # it is not what is stored while it works
        yield state
        kept = self._kept.get(client)
        if kept is state and self._kind == "live":
            return
        if trains or kept is state or (self._kind == "live" and client in self._kept):
            self._keep(client, state)
        if self._kind == "live" or (client in self._kept and self._stays(client, state)):
            return
        self._models.give(self._info.architecture_of(client).name, state.model)

    def _stays(self, client: int, state: ClientState) -> bool:
        """Keep a stored client on the device as well, if there is room."""
        if self._beside is None:
            return False
        kept = self._kept[client]
        if isinstance(kept, (ClientState, Path)):
            return self._beside.offer(client, state, size_of(self._pack(state)[0].values()))
        return self._beside.offer(client, state, kept.size)

    def _keep(self, client: int, state: ClientState) -> None:
        kept: Kept
        if self._kind == "disk":
            kept = self._file(client)
            write_tensors(kept, *self._on_host(state))
        else:
            kept = self._copied(state) if self._kind == "pinned" else state
            self._forget_file(client)
        self._kept[client] = kept

    def _copied(self, state: ClientState) -> Parked:
        from protofl.federation.clients.parked import Parked

        return Parked(self._pack(state), self._streams)

    def _on_host(self, state: ClientState) -> Packed:
        """Pack a client, without copies except of what is on another device."""
        tensors, header = self._pack(state)
        return to_host(tensors), header

    def _pack(self, state: ClientState) -> Packed:
        return pack_client(state, received=self._received)

    # --- back to before a job -------------------------------------------------------------------

    def forget_others(self, round: int) -> None:
        """Forget the states to which clients could be put back in rounds before this one.

        A job of an earlier round, by which a lost client is restored, forgets nothing.
        """
        if round > self._round:
            self._round = round
            for client in [*self._before]:
                self.forget_before(client)

    def forget_before(self, client: int) -> None:
        """Forget the state to which `undo` would restore a client."""
        before = self._before.pop(client, None)
        if isinstance(before, Path):
            before.unlink(missing_ok=True)

    def undo(self, client: int) -> None:
        """Restore a client to its state before it was lent, if that was its last job."""
        if client not in self._before:
            return
        before, features = self._before.pop(client), self._features.get(client)
        self._give_model(client)
        self.drop(client)
        if features is not None:
            self._features[client] = features
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
        elif kept is None or isinstance(kept, ClientState):
            write_tensors(path, *self._on_host(self.state(client)))
        else:
            write_tensors(path, *kept.packed())

    def snapshot(self, client: int, path: Path) -> Packed | None:
        """Return a client's tensors in host memory, where they do not change.

        None for a client that lies in a file already, which is linked as in `save`.
        """
        kept = self._kept.get(client)
        if isinstance(kept, Path):
            link_or_copy(kept, path)
            return None
        if kept is None or isinstance(kept, ClientState):
            tensors, header = self._pack(self.state(client))
            return copied(tensors), header
        return kept.packed()  # replaced when it trains, never changed

    def load(self, client: int, path: Path) -> None:
        """Set a client to the content of a file, which stays as long as it is used."""
        self._give_model(client)
        self.drop(client)
        self._kept[client] = path

    def drop(self, client: int) -> None:
        """Drop a client: it has its initial state again."""
        self.forget_before(client)
        self._forget_file(client)
        self._kept.pop(client, None)
        self._coming.pop(client, None)
        self._features.pop(client, None)
        if self._beside:
            self._beside.take(client)

    def _give_model(self, client: int) -> None:
        """Leave the model of a live client that is to be replaced to the next one read back."""
        if isinstance(kept := self._kept.get(client), ClientState):
            self._models.give(self._info.architecture_of(client).name, kept.model)

    def _forget_file(self, client: int) -> None:
        """Remove the file in which a client lies, if it is one of this store's."""
        file = self._kept.get(client)
        if isinstance(file, Path) and self._scratch.holds(file):
            file.unlink(missing_ok=True)
