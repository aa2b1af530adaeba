"""A client at the end of a kept round, as a module from stored samples to class scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from protofl.data.arrays import joined_samples
from protofl.data.spec import SampleSpec
from protofl.errors import UsageError, error_context
from protofl.federation.host import build_client
from protofl.federation.plan import Plan
from protofl.federation.round_totals import Totals
from protofl.federation.server_side import ServerSide
from protofl.hooks.models.modules import CombinedModule
from protofl.hooks.transport.gates import DownloadGate
from protofl.hooks.views.client import Client
from protofl.hooks.views.records import ClientRecord
from protofl.hooks.views.snapshots import unpack_client, unpack_server
from protofl.records.reading import Reading
from protofl.records.result import kept_round
from protofl.system.device import autocast, compute_threads, deterministic_kernels
from protofl.system.files.tensors import read_tensors
from protofl.system.formatting import shape_text
from protofl.system.profile.run_profile import Sums


class Scorer(nn.Module):
    """A client with all that its method's inference needs, in eval mode.

    Args:
        plan: The run.
        record: The client, after its download.

    Attributes:
        whole: The client's model and the modules that methods gave it.
    """

    def __init__(self, plan: Plan, record: ClientRecord) -> None:
        super().__init__()
        self._plan, self._record = plan, record
        slots = {m: {n: s.module for n, s in own.items()} for m, own in record.modules.items()}
        self.whole = CombinedModule(record.model, slots)
        record.set_mode(False)

    @property
    def architecture(self) -> str:
        """The name of the client's architecture."""
        return self._record.architecture.name

    @property
    def received(self) -> dict[str, Tensor]:
        """The client's download by the names of the wire."""
        return dict(self._record.received)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores [B, C] of stored samples [B, …]."""
        plan, view = self._plan, Client(self._record, self._plan.composition.main)
        seen = plan.preparation(x, self._record.architecture.channels_last)
        with autocast(plan.settings.precision, plan.device):
            scores: Tensor = plan.composition.call("inference", client=view, x=seen)
        return scores

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """Return class scores [N, C], computed in the batches of an evaluation."""
        batches = torch.split(x, self._record.architecture.eval_batch)
        with compute_threads(1), deterministic_kernels(self._plan.settings.deterministic):
            with error_context(f"inference, client {self._record.id}"):
                found = [self(batch).float() for batch in batches]
        classes = self._plan.info.num_classes
        return torch.cat(found) if found else torch.empty(0, classes)


def scorer_of(plan: Plan, reading: Reading, client: int, which: str, trial: int) -> Scorer:
    """Restore the server and a client, and let the client download what it was evaluated with.

    Args:
        plan: The run.
        reading: Its record, or a part of it.
        client: The client.
        which: ``last`` or ``best``.
        trial: The trial.

    Raises:
        UsageError: The round is not kept.
    """
    own = reading.weights(which, trial, []).trial  # of a part of a run, the trial of the whole
    folder, found = kept_round(reading.folder, which, own, [client])
    number = found.values["round"]
    with compute_threads(plan.settings.server_threads):
        side = ServerSide(plan, trial, Sums())
        unpack_server(side.record, read_tensors(folder / found.values["server"]))
        side.begin(number)
        [(_, blob)] = side.downloads([client], Totals(), counted=False)
    record = build_client(plan, trial, client)
    if client in found.numbered:
        unpack_client(record, read_tensors(folder / found.numbered[client][0]))
    declared = plan.composition.declarations("download_payload")
    gate = DownloadGate(plan.info, declared, plan.composition.download, dry=False)
    view = Client(record, plan.composition.main)
    with error_context(f"download, client {client}"):
        record.received, record.round = gate(blob, view), number
        plan.composition.lifecycle("receive", client=view)
    return Scorer(plan, record)


def samples_like(x: Any, sample: SampleSpec) -> Tensor:  # noqa: ANN401 - NumPy takes it
    """Return samples [N, …] in the form in which a data set stores them.

    Args:
        x: Samples in a layout that `dataset_from_arrays` takes.
        sample: A sample of the data set.

    Raises:
        UsageError: Their kind, shape or values differ from the data set's.
    """
    found = torch.from_numpy(joined_samples([(np.asarray(x), "samples")], sample.kind))
    if tuple(found.shape[1:]) != sample.shape:
        raise UsageError(
            f"samples are {shape_text(found.shape[1:])}, the run's data are {sample}",
            do="give samples in the form of the data set, also if it is one sample: x[None]",
        )
    return found
