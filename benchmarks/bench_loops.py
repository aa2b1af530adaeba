"""Loops that ``benchmarks/bench.py`` measures, and the comparison of their final states."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor

from protofl.errors import UsageError
from protofl.federation.jobs.pool_interface import Pool
from protofl.federation.plan.plan import Plan
from protofl.federation.round.federation import Federation
from protofl.federation.round.round_totals import Totals
from protofl.hooks.wire.payload import Payload
from protofl.system.device import compute_threads
from protofl.system.files.tensors import read_tensors, tensor_bytes
from protofl.system.torch_state import computing_in

TOLERANCE = 1e-9
"""Largest relative difference of two equal loops after two rounds in float64."""

LEAST = 1e-3
"""Smallest scale of a relative difference: a bias between BatchNorms holds only rounding errors."""


class Loop(Protocol):
    """Interface of a loop that is measured.

    A file for ``--against`` has a function ``open_loop(plan, folder) -> Loop``: ``plan`` holds the
    data, split, first weights and options of the run; ``folder`` is empty and the loop may write to
    it. The first four methods return seconds by stage (``setup``, ``train``, ``prototypes``,
    ``payload``, ``server``, ``evaluate``, as far as the loop can tell them apart).
    """

    def round(self, number: int) -> dict[str, float]:
        """Run a whole round: local training, the server's step, evaluation of all clients."""
        ...

    def collect(self, number: int) -> dict[str, float]:
        """Run only local training and uploads."""
        ...

    def serve(self, number: int) -> dict[str, float]:
        """Run only the server's step, on the uploads of the last `collect`."""
        ...

    def evaluate(self, number: int) -> dict[str, float]:
        """Run only the evaluation of all clients."""
        ...

    def accuracies(self) -> dict[int, float]:
        """Return each client's accuracy in the last evaluation."""
        ...

    def global_state(self) -> dict[str, Tensor]:
        """Return the server's global state by wire names; class-indexed rows in class order."""
        ...

    def weights(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield each client's model as ``model/PARAMETER`` and ``model/buffer/BUFFER``."""
        ...

    def close(self) -> None:
        """Release the loop's resources."""
        ...


class ProtoflLoop:
    """protofl itself, without run folder and checkpoints."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        backend, settings = plan.choices["backend"], plan.settings
        self._pool: Pool = backend.call("open_pool", plan=plan, workers=settings.workers, idle=None)
        self._folder, self._everyone = folder, range(plan.info.num_clients)
        self._federation = Federation(plan, self._pool)
        self._federation.start_trial(0)
        self._uploads: dict[int, Payload] = {}
        self._accuracies: dict[int, float] = {}

    def round(self, number: int) -> dict[str, float]:
        """Run a whole round."""
        line, _ = self._federation.round(number)
        self._accuracies = self._federation.client_accuracy
        seconds: dict[str, float] = line["seconds"]
        return seconds

    def collect(self, number: int) -> dict[str, float]:
        """Run local training and uploads."""
        rounds = self._federation._rounds
        with self._part(number) as rounds.totals:
            self._uploads = rounds.collect(number)
        return rounds.totals.seconds

    def serve(self, number: int) -> dict[str, float]:
        """Run the server's hooks."""
        with self._part(number) as tally:
            self._federation.train_server(self._uploads, tally)
        return tally.seconds

    def evaluate(self, number: int) -> dict[str, float]:
        """Run downloads and evaluation."""
        with self._part(number) as tally:
            self._federation.evaluate_clients(self._everyone, number, tally)
        self._accuracies = tally.accuracy
        return tally.seconds

    @contextmanager
    def _part(self, number: int) -> Iterator[Totals]:
        self._federation.server.round = number
        with compute_threads(self._federation.plan.settings.server_threads):
            yield Totals()

    def accuracies(self) -> dict[int, float]:
        """Return each client's accuracy in the last evaluation."""
        return self._accuracies

    def global_state(self) -> dict[str, Tensor]:
        """Return the server's global state."""
        return dict(self._federation.server.global_state)

    def weights(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield each client's model as its host writes it to a checkpoint."""
        for client in self._everyone:
            path = self._folder / f"client-{client}.safetensors"
            self._federation.save_clients([client], {client: str(path)})
            tensors, _ = read_tensors(path)
            path.unlink()
            yield client, {k: v for k, v in tensors.items() if k.startswith("model/")}

    def close(self) -> None:
        """Stop the hosts."""
        self._pool.close()


def open_loop(plan: Plan, folder: Path, file: str | None) -> Loop:
    """Open protofl's own loop, or the loop in a file.

    Raises:
        UsageError: The file has no ``open_loop``.
    """
    if file is None:
        return ProtoflLoop(plan, folder)
    path = Path(file).absolute()
    if str(path.parent) not in sys.path:  # as Python does for a script
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, file
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "open_loop"):
        raise UsageError(f"--against {file} has no open_loop(plan, folder)")
    loop: Loop = module.open_loop(plan, folder)
    return loop


@contextmanager
def double_precision() -> Iterator[None]:
    """Use float64 for everything in the block: weights, samples and results.

    In float32, rounding alone makes two programs with the same arithmetic diverge.
    """
    with computing_in(torch.float64):
        yield


# --- in the process of a loop -------------------------------------------------------------------

_opened = ExitStack()
_loop: Loop


def start(options: dict[str, Any], folder: Path, file: str | None, double: bool) -> None:
    """Open the loop of this process."""
    global _loop
    if double:
        _opened.enter_context(double_precision())
    plan = Plan.make(options, report=lambda line: None)
    if plan.settings.backend == "auto":
        plan = plan.choosing("backend", "process")
    _loop = open_loop(plan, folder, file)
    _opened.callback(_loop.close)


def work(call: str, number: int) -> dict[str, float]:
    """Call a function of the loop; return seconds by stage, and wall-clock time as ``total``."""
    run: Callable[[int], dict[str, float]] = getattr(_loop, call)
    _synchronise()
    begin = time.perf_counter()
    seconds = dict(run(number))
    _synchronise()
    return seconds | {"total": time.perf_counter() - begin}


def save(path: Path) -> None:
    """Write the current state of this process's loop."""
    write_state(_loop, path)


def stop() -> int:
    """Close the loop; return the peak memory in bytes of this process and its descendants.

    The sum of the peak resident sets is an upper bound: peaks need not coincide, and shared pages
    count in each process.
    """
    peak = sum(map(_peak, _family(os.getpid())))
    _opened.close()
    return peak


def _synchronise() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _family(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for file in files for child in file.read_text().split()]
    return [pid, *(each for child in children for each in _family(child))]


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


# --- equality -----------------------------------------------------------------------------------


def write_state(loop: Loop, path: Path) -> None:
    """Write all clients' weights and accuracies and the server's global state."""
    tensors = {f"global_state/{k}": v for k, v in loop.global_state().items()}
    for client, named in loop.weights():
        tensors |= {f"client/{client}/{k}": v for k, v in named.items()}
    accuracies = [accuracy for _, accuracy in sorted(loop.accuracies().items())]
    tensors["client/accuracies"] = torch.tensor(accuracies, dtype=torch.float64)
    path.write_bytes(tensor_bytes(tensors))


def largest_difference(ours: Path, theirs: Path) -> tuple[float, str]:
    """Return the largest `difference` of two states, and the name of its tensor.

    Global state that only protofl has is ignored (the factors of FedKD's last broadcast).
    """
    a, b = safetensors.torch.load_file(ours), safetensors.torch.load_file(theirs)
    names = {n for n in a if n.startswith("client/")} | b.keys()
    return max((difference(a.get(name), b.get(name)), name) for name in names)


def difference(a: Tensor | None, b: Tensor | None) -> float:
    """Return the largest |a - b|, relative to the largest |b| (or to `LEAST`).

    Infinite if a tensor is missing, shapes differ, or a tensor holds NaN.
    """
    if a is None or b is None or a.shape != b.shape:
        return float("inf")
    if torch.equal(a, b):
        return 0.0
    a, b = a.double(), b.double()
    ratio = float((a - b).abs().max()) / max(float(b.abs().max()), LEAST)
    return ratio if ratio < float("inf") else float("inf")  # NaN too
