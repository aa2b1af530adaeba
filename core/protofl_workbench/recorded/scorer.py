"""A client at the end of a kept round, as a module from raw samples to class scores; its export.

Formats of exported files: safetensors, torch.export (.pt2), ONNX.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from protofl.data.arrays import joined_samples
from protofl.data.preparation import Preparation
from protofl.data.spec import SampleSpec
from protofl.errors import UsageError, error_context
from protofl.federation.clients.host import build_client
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.run_data import fitting_of
from protofl.federation.round.round_totals import Totals
from protofl.federation.round.server_side import ServerSide
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.models.modules import CombinedModule
from protofl.hooks.transport.payload_validation import DownloadValidation
from protofl.hooks.views.client import Client
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.views.snapshots import unpack_client, unpack_server
from protofl.records.checkpoint import Commit
from protofl.records.reading import Reading
from protofl.records.weights import kept_round
from protofl.system.device import autocast, compute_threads
from protofl.system.files.atomic import write_file
from protofl.system.files.tensors import read_tensors, tensor_bytes
from protofl.system.formatting import shape_text
from protofl.system.torch_state import standard_torch


class Scorer(nn.Module):
    """A client with all that its method's inference needs, in eval mode.

    Args:
        plan: The run.
        client_state: The client, after its download.
        preparation: What the data set did to raw samples; None if it is not known, and samples have
            to be given as the data set stored them.

    Attributes:
        whole: The client's model and the modules that methods gave it.
    """

    def __init__(
        self, plan: Plan, client_state: ClientState, preparation: Preparation | None
    ) -> None:
        super().__init__()
        self._plan, self._client_state, self.preparation = plan, client_state, preparation
        slots = {
            m: {n: s.module for n, s in modules.items()}
            for m, modules in client_state.modules.items()
        }
        self.whole = CombinedModule(client_state.model, slots)
        client_state.set_mode(False)

    @property
    def architecture(self) -> str:
        """The name of the client's architecture."""
        return self._client_state.architecture.name

    @property
    def received(self) -> dict[str, Tensor]:
        """The client's download by the names of the wire."""
        return dict(self._client_state.received)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores [B, C] of raw samples [B, …] (`raw_samples`).

        Of a regression they are numbers [B, 1] in the unit of the target.
        """
        if torch.compiler.is_compiling():
            return self._scored(x)
        grad = torch.is_grad_enabled()
        with standard_torch(), torch.set_grad_enabled(grad):
            return self._scored(x)

    def _scored(self, x: Tensor) -> Tensor:
        plan, view = self._plan, Client(self._client_state, self._plan.composition.main)
        stored = x if self.preparation is None else self.preparation(x)
        seen = plan.model_input(stored, self._client_state.architecture.channels_last)
        with autocast(plan.settings.precision, plan.device):
            scores: Tensor = plan.composition.call("inference", client=view, x=seen)
        return plan.data.task.decoded(scores)

    @standard_torch()
    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """Return class scores [N, C], computed in the batches of an evaluation."""
        batches = torch.split(x, self._client_state.architecture.eval_batch)
        with compute_threads(1), self._plan.computing():
            with error_context(f"inference, client {self._client_state.id}"):
                batch_scores = [self(batch).float() for batch in batches]
        classes = self._plan.info.num_classes
        return torch.cat(batch_scores) if batch_scores else torch.empty(0, classes)


def scorer_of(
    plan: Plan,
    reading: Reading,
    client: int,
    which: str | int,
    trial: int,
    preparation: Preparation | None,
) -> Scorer:
    """Restore one client; see `scorers_of`."""
    [(_, result)] = scorers_of(plan, reading, [client], which, trial, preparation)
    return result


def scorers_of(
    plan: Plan,
    reading: Reading,
    clients: Sequence[int],
    which: str | int,
    trial: int,
    preparation: Preparation | None,
) -> Iterator[tuple[int, Scorer]]:
    """Restore the server and clients, which download what they were evaluated with.

    Args:
        plan: The run.
        reading: Its record, or a part of it.
        clients: The clients.
        which: ``last``, ``best``, or the number of a round, from 0.
        trial: The trial.
        preparation: See `Scorer`.

    Raises:
        UsageError: The round is not kept.
    """
    folder, commit, blobs = downloads_of(plan, reading, clients, which, trial)
    number, whole_trial = commit.round, commit.trial
    for client, blob in blobs:
        file = folder / commit.client_files[client][0] if client in commit.client_files else None
        known = None if preparation is None else preparation.of_client(client, whole_trial)
        yield client, scorer_with(plan, trial, client, file, number, blob, known)


def downloads_of(
    plan: Plan, reading: Reading, clients: Sequence[int], which: str | int, trial: int
) -> tuple[Path, Commit, list[tuple[int, bytes]]]:
    """Restore the server of a kept round; see `scorers_of`.

    Returns:
        The folder and the files of the round, and the encoded download of each client.
    """
    # Of a part of a run, the trial of the whole run.
    whole_trial = reading.weights(which, trial, []).trial
    folder, commit = kept_round(reading.folder, which, whole_trial, [*clients])
    with standard_torch(), compute_threads(plan.settings.server_threads):
        side = ServerSide(plan, trial)
        unpack_server(side.state, read_tensors(folder / commit.server))
        side.begin(commit.round)
        return folder, commit, [*side.downloads(clients, Totals(), counted=False)]


@standard_torch()
def scorer_with(
    plan: Plan,
    trial: int,
    client: int,
    file: Path | None,
    number: int,
    blob: bytes,
    preparation: Preparation | None,
) -> Scorer:
    """Restore a client from its file, with the download of an evaluation.

    Args:
        plan: The run.
        trial: The trial.
        client: The client.
        file: Its file; None if it never trained.
        number: The round of the evaluation.
        blob: The encoded download.
        preparation: See `Scorer`.
    """
    client_state = build_client(plan, trial, client)
    if file is not None:
        unpack_client(client_state, read_tensors(file))
    declared = plan.composition.declarations("download_payload")
    validation = DownloadValidation(plan.info, declared, plan.composition.download, dry=False)
    view = Client(client_state, plan.composition.main)
    with error_context(f"download, client {client}"):
        client_state.received, client_state.round = validation(blob, view), number
        plan.composition.lifecycle("receive", client=view)
    return Scorer(plan, client_state, preparation)


def raw_samples(
    x: Any,  # noqa: ANN401 - NumPy takes it
    sample: SampleSpec,
    dtype: torch.dtype,
    preparation: Preparation | None,
    source: str = "samples",
    registry: Registry | None = None,
) -> Tensor:
    """Return raw samples [N, …] as a `Scorer` takes them.

    Args:
        x: Samples in a layout that `dataset_from_arrays` takes; texts, if the data set numbers
            words; or, if its plugin reads them (`Fitting.read`), a data frame or the path of a
            file.
        sample: A sample as the data set stores it.
        dtype: The type in which it is stored.
        preparation: The data set's preparation, if it is known.
        source: What they are, for errors.
        registry: Where plugins are found; None for the installed ones.

    Raises:
        UsageError: Their kind, type, shape or values differ from the data set's.
    """
    if preparation is not None and (fitted := preparation.fitted):
        if isinstance(x, (str, Path)) or hasattr(x, "keys"):
            return fitting_of(fitted, registry).read(x)[0]
    array = np.asarray(x)
    if array.dtype.kind in "UO" and array.ndim == 1 and all(isinstance(v, str) for v in array):
        if preparation is None or preparation.words is None:
            raise UsageError(
                f"{source} are texts, the data set has {sample}",
                "its record has no list of words" if sample.kind == "tokens" else "",
                "give token ids" if sample.kind == "tokens" else "give samples of this form",
            )
        vocabulary = preparation.words
        return torch.from_numpy(vocabulary.ids(vocabulary.split(text) for text in array))
    result = torch.from_numpy(joined_samples([(array, source)], sample.kind))
    if tuple(result.shape[1:]) != sample.shape:
        raise UsageError(
            f"{source} are {shape_text(result.shape[1:])}, the data set has {sample}",
            do="give samples in the form of the data set, also if it is one sample: x[None]",
        )
    if result.dtype != dtype:
        stored, has = (str(each).removeprefix("torch.") for each in (dtype, array.dtype))
        pixels = " with pixels from 0 to 255" if dtype == torch.uint8 else ""
        raise UsageError(
            f"{source} are {has}, the data set has {stored}{pixels}",
            "other numbers would be read as pixels that are normalised already",
            f"convert them to the range of the data set: {stored}",
        )
    if sample.vocabulary and result.numel():
        least, most = (int(bound) for bound in result.aminmax())
        if least < 0 or most >= sample.vocabulary:
            known = f"the data set's go from 0 to {sample.vocabulary - 1}"
            raise UsageError(f"{source}: token ids from {least} to {most}", known)
    return result


ENDINGS = (".safetensors", ".pt2", ".onnx")


def _two_samples(plan: Plan) -> Tensor:
    """Return two samples as the data set stores them, drawn ones if none are here."""
    if plan.data.x.is_meta:
        from protofl.data.remote_data import drawn

        return drawn(plan.data, 2).x
    return plan.data.x[:2].clone()


def _torch_export(program: torch.export.ExportedProgram, about: dict[str, str]) -> bytes:
    """Return the content of a .pt2 file."""
    file = io.BytesIO()
    with warnings.catch_warnings():  # weights may share memory: they are saved whole
        warnings.filterwarnings("ignore", "No complete tensor", UserWarning)
        torch.export.save(program, file, extra_files=about)
    return file.getvalue()


@standard_torch()
def export(scorer: Scorer, plan: Plan, path: Path, warning: str = "") -> Path:
    """Write a client to ``path``; its ending chooses the format.

    Args:
        scorer: The client.
        plan: The run.
        path: The file.
        warning: A line that the file tells whoever scores with it.

    Raises:
        UsageError: The ending is another, a package is missing, the file cannot be written, or
            the method's inference cannot be exported.
    """
    if path.suffix not in ENDINGS:
        raise UsageError(
            f"{path}: unknown ending {path.suffix!r}", f"possible: {', '.join(ENDINGS)}"
        )
    about = {"classes": json.dumps(plan.data.output_names), "sample": str(plan.data.sample)}
    about |= {"architecture": scorer.architecture, "warning": warning}
    form = asdict(plan.data.sample)
    if plan.data.task.has_classes:  # files of classification are as other versions read them
        del form["task"]
    about["form"] = json.dumps(form)
    about["dtype"] = str(plan.data.x.dtype).removeprefix("torch.")
    known = scorer.preparation
    about["preparation"] = json.dumps(None if known is None else known.as_json())
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        tensors = {f"weights/{k}": v for k, v in scorer.whole.state_dict().items()}
        tensors |= {f"received/{k}": v for k, v in scorer.received.items()}
        write_file(path, tensor_bytes(tensors, about))
        return path
    if path.suffix == ".onnx":
        try:
            import onnxscript  # noqa: F401
        except ImportError:
            raise UsageError(
                "ONNX files need the packages onnx and onnxscript",
                do="pip install 'protofl[onnx]', or write FILE.pt2 (read by protofl score "
                "--trust-pickle)",
            ) from None
    x, batch = _two_samples(plan), torch.export.Dim("batch")
    try:
        with torch.no_grad():
            program = torch.export.export(
                scorer, (x,), dynamic_shapes={"x": {0: batch}}, strict=False
            )
            if path.suffix == ".pt2":
                content = _torch_export(program, about)
            else:
                exported = torch.onnx.export(
                    program, input_names=["samples"], output_names=["scores"], verbose=False
                )
                assert exported is not None
                exported.model.metadata_props.update(about)
                content = exported.model_proto.SerializeToString()
    except Exception as error:  # torch has an error for each thing that cannot be traced
        line = str(error).strip().splitlines()[0]
        raise UsageError(
            f"{plan.settings.method}: its inference cannot be exported: {line}",
            do="use FILE.safetensors, or Run.predict; --debug shows the whole traceback",
        ) from error
    write_file(path, content)
    return path
