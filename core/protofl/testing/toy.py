"""A tiny federation for tests: data whose split is chosen, small models, a pool that is watched.

Everything goes in through the public way: plugins that are not installed are given to
`protofl.backends.Plan` as ``extra``.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import protofl as pf
from protofl.federation.jobs.jobs import Job, Reply, Train, TrainReply
from protofl.federation.round.federation import Federation
from protofl.hooks.views.client import Client
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.views.server import Server
from protofl.hooks.views.server_state import ServerState
from protofl.testing.toy_data import CHANNELS as CHANNELS
from protofl.testing.toy_data import MIXED as MIXED
from protofl.testing.toy_data import SIDE as SIDE
from protofl.testing.toy_data import Deal as Deal
from protofl.testing.toy_data import dataset as dataset
from protofl.testing.toy_data import make_data as make_data
from protofl.testing.toy_data import make_images as make_images
from protofl.testing.toy_data import random_batch as random_batch
from protofl.testing.toy_data import with_task as with_task
from protofl.testing.toy_plugins import CNN as CNN
from protofl.testing.toy_plugins import EMBEDDING as EMBEDDING
from protofl.testing.toy_plugins import EXITS as EXITS
from protofl.testing.toy_plugins import FROZEN as FROZEN
from protofl.testing.toy_plugins import NARROW as NARROW
from protofl.testing.toy_plugins import NORM as NORM
from protofl.testing.toy_plugins import PIXELS as PIXELS
from protofl.testing.toy_plugins import TOKENS as TOKENS
from protofl.testing.toy_plugins import TWO_LAYERS as TWO_LAYERS
from protofl.testing.toy_plugins import WIDE as WIDE
from protofl.testing.toy_plugins import Extractor as Extractor
from protofl.testing.toy_plugins import Head as Head
from protofl.testing.toy_plugins import architecture as architecture
from protofl.testing.toy_plugins import group as group


def make_plan(
    method: str,
    folder: Path,
    data: pf.datasets.Dataset | None = None,
    models: type | str | None = None,
    extra: Mapping[tuple[str, str], type] | None = None,
    **options: Any,  # noqa: ANN401 - the options of a run
) -> pf.backends.Plan:
    """A plan with toy data and models; ``options`` as `protofl.backends.Plan.make` takes them.

    Args:
        method: A method's name.
        folder: Where decoded data are cached.
        data: The data; four clients and classes by default.
        models: A model group's class, or the name of an installed one; toy models by default.
        extra: Further plugins that are not installed, {(kind, name): class}.
        **options: Options of the run.
    """
    data = data if data is not None else make_images(MIXED)
    run_options: dict[str, Any] = {
        "method": method,
        "models": models if isinstance(models, str) else "toy",
        "dataset": "toy",
        "data_dir": folder,
        "device": "cpu",
        "batch_size": 5,
        "lr": 0.05,
        "rounds": 3,
        "participation": 1.0,
        **options,
    }
    if data.split is None:
        run_options.setdefault("clients", 4)
    parts = {
        ("dataset", "toy"): dataset(data),
        ("model-group", "toy"): models if isinstance(models, type) else group(CNN, NORM),
        **(extra or {}),
    }
    return pf.backends.Plan.make(run_options, parts, report=lambda line: None)


class WatchedPool:
    """A host in this process that records every job and reply."""

    def __init__(self, plan: pf.backends.Plan, *, backwards: bool = False) -> None:
        self.host = pf.backends.Host(plan)
        self.backwards = backwards
        self.report: Callable[[str], None]
        self.trained: list[tuple[Train, TrainReply]] = []

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Reply]]:
        """Do one job after the other, in order or backwards."""
        for job, reply in self.host.run(jobs[::-1] if self.backwards else jobs):
            if isinstance(job, Train) and isinstance(reply, TrainReply):
                self.trained.append((job, reply))
            yield job, reply

    def broadcast(self, job: pf.backends.Job) -> None:
        """Do a job."""
        self.host.handle(job)

    def close(self) -> None:
        """Nothing to end."""

    def client(self, number: int) -> ClientState:
        """A client's state, kept as if it had trained, so that what a test sets on it stays."""
        return self.host.client(number, keep=True)

    def uploads(self, round: int) -> dict[int, bytes]:
        """Return {client: bytes of its upload} of a round."""
        sent = [(j, r) for j, r in self._of(round) if j.when == "before_upload"]
        return {job.client: reply.blob for job, reply in sent}

    def downloads(self, round: int) -> dict[int, bytes]:
        """Return {client: bytes of its last download} of a round, also after the server's step.

        What such a phase brought is not sent again, so one of the two is empty.
        """
        result: dict[int, bytes] = {}
        for job, _ in self._of(round):
            assert not (result.get(job.client) and job.blob)
            result[job.client] = result.get(job.client) or job.blob
        return result

    def _of(self, round: int) -> list[tuple[Train, TrainReply]]:
        return [(j, r) for j, r in self.trained if j.round == round]


class Toy:
    """A federation and its pool.

    Attributes:
        lines: The record of its rounds.
        given: What each client's `prepare` has given the losses.
    """

    def __init__(self, plan: pf.backends.Plan, *, trial: int = 0, backwards: bool = False) -> None:
        self.plan = plan
        self.pool = WatchedPool(plan, backwards=backwards)
        self.federation = Federation(plan, self.pool)
        self.federation.start_trial(trial)
        self.lines: list[dict[str, Any]] = []
        self.given: dict[int, Mapping[str, pf.LossData]] = {}

    def rounds(self, count: int) -> list[dict[str, Any]]:
        """Run rounds; their lines without what may differ between equal runs."""
        for number in range(len(self.lines), len(self.lines) + count):
            line = dict(self.federation.round(number)[0])
            del line["seconds"]
            self.lines.append({**line, "clients": dict(self.federation.client_accuracy)})
        return self.lines

    @property
    def server(self) -> ServerState:
        """The server's state."""
        return self.federation.server

    def client(self, number: int) -> ClientState:
        """A client's state; what is set on it stays."""
        return self.pool.client(number)

    def views(self, number: int = 0) -> tuple[pf.Client, pf.Server]:
        """The main method's views of a client and the server."""
        main = self.plan.composition.main
        return Client(self.client(number), main), Server(self.server, main)

    def call(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call one of the six hooks of a round, through pluggy; a dict of tensors is a payload."""
        answer = self.plan.composition.call(hook, **arguments)
        return pf.Payload(answer) if hook.endswith("_payload") and type(answer) is dict else answer

    def lifecycle(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call a lifecycle hook."""
        return self.plan.composition.lifecycle(hook, **arguments)

    def prepare(
        self, number: int = 0, received: Mapping[str, Tensor] | None = None, *, double: bool = True
    ) -> ClientState:
        """A client at the start of a phase of training with what it received."""
        state = self.client(number)
        if double:
            state.model.double()
        state.scratch = {}
        state.received = pf.Payload(received or {})
        view = Client(state, self.plan.composition.main)
        self.lifecycle("receive", client=view)
        with torch.no_grad():
            self.given[number] = self.lifecycle("before_training", client=view)
        return state

    def terms(self, state: ClientState, features: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """The loss terms of a batch with these features; scores are the head's."""
        batch = pf.Batch(torch.empty(len(labels), 0), labels, torch.arange(len(labels)))
        output = pf.Output(features, state.model.head(features))
        client = Client(state, self.plan.composition.main)
        loss = self.plan.composition.loss(client, self.given.get(state.id, {}), pf.Phase())
        return loss(batch, output, 0)


def fingerprint(toy: Toy) -> Any:  # noqa: ANN401 - a nested value
    """Everything that a run leaves, of the server and all clients."""
    clients = [client_state(toy.client(i)) for i in range(toy.plan.info.num_clients)]
    return toy.lines, server_state(toy.server), clients


def client_state(state: ClientState) -> Any:  # noqa: ANN401 - a nested value
    """All that a client keeps, as one nested value that later changes don't reach."""
    modules = {name: slot.module.state_dict() for name, slot in state.slots()}
    kept = (state.model.state_dict(), modules, state.state, dict(state.received), state.round)
    scratch = {owner: values for owner, values in state.scratch.items() if values}
    return copy.deepcopy((*kept, scratch))


def own_state(state: ClientState) -> Any:  # noqa: ANN401 - a nested value
    """Return a client's state between jobs: all but its download and its frozen modules."""
    modules = {name: slot.module.state_dict() for name, slot in state.slots() if slot.train}
    return copy.deepcopy((state.model.state_dict(), modules, state.state))


def server_state(state: ServerState) -> Any:  # noqa: ANN401 - a nested value
    """All that the server keeps."""
    modules = {
        f"{owner}/{name}": module.state_dict()
        for owner, owner_modules in state.modules.items()
        for name, module in owner_modules.items()
    }
    kept = {owner: values for owner, values in state.state.items() if values}
    return copy.deepcopy((dict(state.global_state), modules, kept, state.round))


def same(a: Any, b: Any) -> bool:  # noqa: ANN401 - nested values
    """Return True if two nested values are equal, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(_bits(a), _bits(b))
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) or (a != a and b != b)


def _bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor; NumPy lacks some of its types, such as bfloat16."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def header(blob: bytes) -> dict[str, Any]:
    """The header of safetensors bytes, read by hand: {name: {dtype, shape, …}}."""
    if not blob:
        return {}
    (length,) = struct.unpack("<Q", blob[:8])
    result: dict[str, Any] = json.loads(blob[8 : 8 + length])
    result.pop("__metadata__", None)
    return result


def count_floats(blob: bytes) -> int:
    """Elements of floating-point tensors that are not buffers, counted in the header."""
    total = 0
    for name, entry in header(blob).items():
        if entry["dtype"] in ("F64", "F32", "F16", "BF16") and "/buffer/" not in name:
            elements = 1
            for size in entry["shape"]:
                elements *= size
            total += elements
    return total
