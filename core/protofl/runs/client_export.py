"""Files of a client for other programs: safetensors, torch.export (.pt2), ONNX."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch

from protofl.errors import UsageError
from protofl.federation.plan import Plan
from protofl.runs.scorer import Scorer
from protofl.system.files.atomic import write_file
from protofl.system.files.tensors import tensor_bytes

ENDINGS = (".safetensors", ".pt2", ".onnx")


def export(scorer: Scorer, plan: Plan, path: Path) -> Path:
    """Write a client to ``path``; its ending chooses the format.

    Args:
        scorer: The client.
        plan: The run.
        path: The file.

    Raises:
        UsageError: The ending is another, a package is missing, the file cannot be written, or
            the method's inference cannot be exported.
    """
    if path.suffix not in ENDINGS:
        raise UsageError(
            f"{path}: unknown ending {path.suffix!r}", f"possible: {', '.join(ENDINGS)}"
        )
    about = {"classes": json.dumps(plan.data.classes), "sample": str(plan.data.sample)}
    about["architecture"] = scorer.architecture
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
                do="pip install 'protofl[onnx]', or write FILE.pt2",
            ) from None
    x, batch = plan.data.x[:2].clone(), torch.export.Dim("batch")
    try:
        with torch.no_grad():
            program = torch.export.export(
                scorer, (x,), dynamic_shapes={"x": {0: batch}}, strict=False
            )
            if path.suffix == ".pt2":
                file = io.BytesIO()
                torch.export.save(program, file, extra_files=about)
                content = file.getvalue()
            else:
                found = torch.onnx.export(
                    program, input_names=["samples"], output_names=["scores"], verbose=False
                )
                assert found is not None
                found.model.metadata_props.update(about)
                content = found.model_proto.SerializeToString()
    except Exception as error:  # torch has an error for each thing that cannot be traced
        line = str(error).strip().splitlines()[0]
        raise UsageError(
            f"{plan.settings.method}: its inference cannot be exported: {line}",
            do="use FILE.safetensors, or Run.predict; --debug shows the whole traceback",
        ) from error
    write_file(path, content)
    return path
