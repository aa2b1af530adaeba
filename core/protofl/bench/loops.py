"""Loops that are measured: protofl's own, and one from a file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from protofl.errors import UsageError
from protofl.files.tensors import read_tensors
from protofl.hosts.jobs import Pool
from protofl.machine.cores import compute_threads
from protofl.plan.plan import Plan
from protofl.rounds.federation import Federation
from protofl.rounds.tally import Tally
from protofl.wire.payload import Payload


class Loop(Protocol):
    """A federation that ``protofl bench`` measures.

    A file for ``--against`` has a function ``open_loop(plan, folder) -> Loop``: the set-up, with
    the plan of the run (`protofl.plan.plan.Plan`: data, split, first weights, options) and an empty
    folder that it may write to. Every method that does work returns its seconds by stage
    (``setup``, ``train``, ``prototypes``, ``payload``, ``server``, ``evaluate``, whichever it
    can tell apart) and in all (``total``).
    """

    def round(self, number: int) -> dict[str, float]:
        """A whole round: local training, the server's step, evaluation of all clients."""
        ...

    def collect(self, number: int) -> dict[str, float]:
        """Local training and uploads alone."""
        ...

    def serve(self, number: int) -> dict[str, float]:
        """The server's step alone, on the uploads of the last `collect`; it may come again."""
        ...

    def evaluate(self, number: int) -> dict[str, float]:
        """The evaluation of all clients alone, with what the server knows; it may come again."""
        ...

    def accuracies(self) -> dict[int, float]:
        """Every client's accuracy in the last evaluation."""
        ...

    def knowledge(self) -> dict[str, Tensor]:
        """What the server knows, in the names of the wire; class-indexed rows in class order."""
        ...

    def weights(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Every client's model as ``model/PARAMETER`` and ``model/buffer/BUFFER``."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class ProtoflLoop:
    """protofl itself, without a run folder and checkpoints."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        backend = plan.choices["backend"]
        self._pool: Pool = backend.call(
            "open_pool", plan=plan, workers=plan.settings.workers, idle=None
        )
        self._folder, self._clients = folder, range(plan.info.num_clients)
        self._federation = Federation(plan, self._pool)
        self._federation.start_trial(0)
        self._uploads: dict[int, Payload] = {}
        self._accuracies: dict[int, float] = {}

    def round(self, number: int) -> dict[str, float]:
        """A whole round."""
        line, _ = self._federation.round(number)
        self._accuracies = self._federation.client_accuracy
        seconds: dict[str, float] = line["seconds"]
        return seconds

    # The parts of a round are the federation's own; they are not public, as nothing but a
    # measurement calls one without the others.

    def collect(self, number: int) -> dict[str, float]:
        """Local training and uploads."""
        federation, tally = self._federation, Tally()
        federation.server.round = number
        with compute_threads(federation.plan.settings.server_threads):
            chosen = federation.participants(number)
            self._uploads = federation.train_clients(chosen, number, tally)
        return tally.seconds

    def serve(self, number: int) -> dict[str, float]:
        """The server's hooks."""
        tally = Tally()
        self._federation.server.round = number
        with compute_threads(self._federation.plan.settings.server_threads):
            self._federation.train_server(self._uploads, tally)
        return tally.seconds

    def evaluate(self, number: int) -> dict[str, float]:
        """Downloads and evaluation."""
        tally = Tally()
        everyone = range(self._federation.plan.info.num_clients)
        with compute_threads(self._federation.plan.settings.server_threads):
            self._federation.evaluate_clients(everyone, number, tally)
        self._accuracies = tally.accuracy
        return tally.seconds

    def accuracies(self) -> dict[int, float]:
        """Every client's accuracy in the last evaluation."""
        return self._accuracies

    def knowledge(self) -> dict[str, Tensor]:
        """The server's knowledge."""
        return dict(self._federation.server.knowledge)

    def weights(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Every client's model, as its host writes it for a checkpoint."""
        for client in self._clients:
            path = self._folder / f"client-{client}.safetensors"
            self._federation.save_clients([client], {client: str(path)})
            tensors, _ = read_tensors(path)
            path.unlink()
            yield client, {k: v for k, v in tensors.items() if k.startswith("model/")}

    def close(self) -> None:
        """End the hosts."""
        self._pool.close()


def open_loop(plan: Plan, folder: Path, file: str | None) -> Loop:
    """The loop of protofl, or that of a file.

    Raises:
        UsageError: The file is missing, can't be imported, or has no ``open_loop``.
    """
    if file is None:
        return ProtoflLoop(plan, folder)
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"--against {file} is no Python file", do=_WRITE)
    folder_of_file = str(path.absolute().parent)
    if folder_of_file not in sys.path:  # as for a script
        sys.path.insert(0, folder_of_file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(
            f"--against {file} can't be imported: {type(error).__name__}: {error}"
        ) from error
    opened: Any = getattr(module, "open_loop", None)
    if opened is None:
        raise UsageError(f"--against {file} has no open_loop", do=_WRITE)
    loop: Loop = opened(plan, folder)
    return loop


_WRITE = "a file with open_loop(plan, folder), see protofl.bench.loops.Loop"


# --- double precision ---------------------------------------------------------------------------


@contextmanager
def double_precision() -> Iterator[None]:
    """Compute everything in float64 inside: weights, samples, and what is made of them.

    Two programs with the same arithmetic drift apart in float32 by rounding alone; in float64 what
    is left of that is far below any real difference.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
