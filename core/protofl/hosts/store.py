"""Where a host keeps its clients between their jobs: in memory, or in files.

A client that has never trained is kept nowhere: it is its seed, and is built whenever it is
needed. One that has trained stays live (``memory`` on a CPU), as tensors in host memory
(``memory`` on an accelerator), or in a safetensors file (``disk``). Results don't depend on it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from protofl.files.replacing import link_or_copy
from protofl.files.tensors import write_tensors
from protofl.hosts.checkpoint import load_client, pack_client, save_client, unpack_client
from protofl.models.architecture import SplitModel
from protofl.views.records import ClientRecord
from protofl.views.run import RunInfo

Kind = Literal["live", "packed", "disk"]
Build = Callable[[int, SplitModel | None], ClientRecord]
"""Makes a client from its seed; its model is the one given, or a fresh one with its own weights."""

POOL = 8
"""Models that wait for their next client, at most: one of an architecture."""


def store_kind(asked: str, device: torch.device, *, dry: bool) -> Kind:
    """What ``--client-store`` means here; memory is the host's, not an accelerator's."""
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
        self._live: dict[int, ClientRecord] = {}
        self._packed: dict[int, tuple[dict[str, Tensor], Any]] = {}
        self._files: dict[int, Path] = {}
        self._models = _Models(POOL if reuse and kind != "live" else 0)
        self._parked: str | None = None
        self._folder: Path | None = None

    def start(self, files: Mapping[int, Path], parked: str | None) -> None:
        """Forget all clients; those in ``files`` have trained before.

        Args:
            files: {client: its file}. They are read, never written or removed.
            parked: The folder for this store's own files; None for the system's temporary one.
        """
        for client in self.clients:
            self.drop(client)
        self._files, self._parked = dict(files), parked

    @property
    def clients(self) -> set[int]:
        """All that are kept: those that have trained."""
        return {*self._live, *self._packed, *self._files}

    # --- at work --------------------------------------------------------------------------------

    def record(self, client: int) -> ClientRecord:
        """A client as it is now."""
        record = self._live.get(client)
        if record is not None:
            return record
        packed, file = self._packed.get(client), self._files.get(client)
        known = packed is not None or file is not None
        name = self._info.architecture_of(client).name
        record = self._build(client, self._models.take(name) if known else None)
        self._models.note(name, record.model)
        if packed is not None:
            unpack_client(record, *packed)
        elif file is not None:
            load_client(record, file)
        return record

    @contextmanager
    def lent(self, client: int, *, trains: bool) -> Iterator[ClientRecord]:
        """A client for a job. One that trained is kept; what an evaluation did is not.

        After an error a client that is not live is what it was before the job.
        """
        record = self.record(client)
        yield record
        if client in self._live:
            return
        if self._kind == "live":
            if trains or client in self._files:
                self._live[client] = record
                self._files.pop(client, None)
            return
        if trains:
            self._keep(client, record)
        self._models.give(self._info.architecture_of(client).name, record.model)

    def _keep(self, client: int, record: ClientRecord) -> None:
        if self._kind == "disk":
            path = self._own(client)
            save_client(record, path, received=self._received)
            self._files[client] = path
            return
        tensors, header = pack_client(record, received=self._received)
        host = {k: t.detach().to("cpu", copy=True) for k, t in tensors.items()}
        self._packed[client] = host, header
        self._files.pop(client, None)

    # --- from and to files ----------------------------------------------------------------------

    def save(self, client: int, path: Path) -> None:
        """Write a client; one that lies in a file already is linked, not written again."""
        file = self._files.get(client)
        if file is not None:
            link_or_copy(file, path)
        elif client in self._packed:
            write_tensors(path, *self._packed[client])
        else:
            save_client(self.record(client), path, received=self._received)

    def load(self, client: int, path: Path) -> None:
        """From now on a client is what a file holds; the file stays as long as that is so."""
        self.drop(client)
        self._files[client] = path

    def drop(self, client: int) -> None:
        """Forget a client: it is its seed again."""
        self._live.pop(client, None)
        self._packed.pop(client, None)
        file = self._files.pop(client, None)
        if file is not None and file.parent == self._folder:
            file.unlink(missing_ok=True)

    def _own(self, client: int) -> Path:
        """Where this store parks a client, in a folder that nobody else writes to."""
        if self._folder is None:
            # A host on another machine, which doesn't see the run folder, has a disk of its own.
            here = self._parked if self._parked and Path(self._parked).parent.is_dir() else None
            if here is not None:
                os.makedirs(here, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="protofl-clients-", dir=here))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / f"client-{client:05d}.safetensors"


class _Models:
    """Models whose clients are parked, for the next client of the same architecture."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: OrderedDict[str, SplitModel] = OrderedDict()
        self._built: dict[str, list[object]] = {}

    def note(self, name: str, model: SplitModel) -> None:
        """Remember what a model of an architecture is made of, before a method works on it."""
        if self._most and name not in self._built:
            self._built[name] = _structure(model)

    def take(self, name: str) -> SplitModel | None:
        """A model whose weights are somebody's, or None."""
        return self._free.pop(name, None)

    def give(self, name: str, model: SplitModel) -> None:
        """Take back a model, unless a method has changed what it is made of."""
        if not self._most or name in self._free or self._built[name] != _structure(model):
            return
        self._free[name] = model
        if len(self._free) > self._most:
            self._free.popitem(last=False)


def _structure(model: SplitModel) -> list[object]:
    """All of a model that is not weights and that a method could change."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    parts: list[object] = [
        (name, type(module), *(len(getattr(module, h)) for h in hooks))
        for name, module in model.named_modules()
    ]
    named = (*model.named_parameters(), *model.named_buffers())
    parts += [(n, t.shape, t.stride(), t.dtype, t.requires_grad, t.device) for n, t in named]
    return parts
