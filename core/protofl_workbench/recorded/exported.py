"""Exported clients: class scores of samples in files, without the run (`protofl score`)."""

from __future__ import annotations

import json
import logging
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.array_files import open_arrays
from protofl.data.preparation import Preparation
from protofl.data.spec import SampleSpec
from protofl.data.tasks import Task
from protofl.errors import UsageError
from protofl.federation.plan.run_data import fitting_of
from protofl.hooks.discovery.registry import TABLES, Registry
from protofl.system.files.atomic import regular_file
from protofl.system.files.home import missing_path
from protofl.system.torch_state import standard_torch
from protofl_workbench.recorded.scorer import raw_samples

BATCH = 256
"""Samples that are scored at once."""

UNREADABLE = (OSError, ValueError, EOFError, SyntaxError, zipfile.BadZipFile, zlib.error)
"""Errors of NumPy and Pillow for damaged files."""


@dataclass(frozen=True)
class Exported:
    """A client from a file that `protofl.Run.export` wrote.

    Attributes:
        classes: Names of the C classes, of labels, or of the number.
        sample: A sample as the data set stored it, and the task.
        dtype: The type of its numbers.
        program: Maps raw samples [N, …] to class scores [N, C].
        preparation: What the program does to raw samples first, as far as the numbers of a batch
            allow (words are numbered before); None if the file lacks the preparation.
        warning: A line about a client that is not better than its majority guess; else empty.
    """

    classes: list[str]
    sample: SampleSpec
    dtype: torch.dtype
    program: Callable[[Tensor], Tensor]
    preparation: Preparation | None = None
    warning: str = ""

    @property
    def lacks(self) -> str:
        """A line for a file that may need prepared samples; empty for one that takes raw ones."""
        if self.preparation is not None or self.sample.kind == "image":
            return ""
        return (
            "the file lacks the preparation of its data set: samples must be given as the data "
            "set stored them (standardised, if it was)"
        )

    @standard_torch()
    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """Return class scores [N, C] of samples [N, …] from `samples_in`."""
        batch_scores = [self.program(batch) for batch in torch.split(x, BATCH)]
        return torch.cat(batch_scores) if batch_scores else torch.empty(0, len(self.classes))

    def samples_in(self, path: Path) -> Tensor:
        """Read raw samples [N, …].

        Args:
            path: An image; a text (.txt); an array of samples (.npy); .npz with an array ``x`` or
                ``x_test``; or a file that the data set of the client reads (`Fitting.read`), such
                as a table with named columns (.csv, .tsv, .parquet).

        Raises:
            UsageError: The file cannot be read, or its samples have another form.
        """
        if not path.exists():
            raise missing_path(path, "give the path of a file with samples")
        try:
            regular_file(path)
            if self.preparation and (fitted := self.preparation.fitted):
                if path.suffix not in (".npy", ".npz"):
                    return fitting_of(fitted).read(path)[0]
            elif path.suffix.lower() in TABLES:
                raise UsageError(
                    f"{path} is a table with named columns, and the client's data have no columns",
                    f"the client's data are {self.sample}",
                    "give them as an array: .npy, or .npz with x",
                )
            array = self._content(path)
        except UNREADABLE as error:
            raise UsageError(
                f"{path} cannot be read: {error}",
                "samples are images, .txt, .npy, .npz, .csv or .parquet files",
            ) from error
        arguments = array, self.sample, self.dtype, self.preparation
        return raw_samples(*arguments, f"{path}: samples")

    def _content(self, path: Path) -> np.ndarray:
        if path.suffix in (".npy", ".npz"):
            return _array(path)
        if path.suffix == ".txt":
            return np.array([path.read_text(encoding="utf-8", errors="replace")])
        images: Any = Registry().load("dataset", "folder")
        files = self.preparation.images if self.preparation else None
        return np.asarray(images.read_image(path, self.sample, files))


ABOUT = ("classes", "form", "dtype", "preparation", "warning")
"""Texts of an exported client that say what its scores are."""


@standard_torch()
def read_exported(path: Path, *, trust_pickle: bool = False) -> Exported:
    """Read an exported client.

    Args:
        path: FILE.onnx or FILE.pt2.
        trust_pickle: Read .pt2, which can contain pickled objects and so run code.

    Raises:
        UsageError: The file is another, damaged, or needs consent or a package.
    """
    if path.suffix not in (".onnx", ".pt2"):
        raise UsageError(
            f"{path}: unknown ending {path.suffix!r}",
            "possible: .onnx, .pt2; a .safetensors file has weights and no program",
            "write it with: protofl export RUN FILE.onnx",
        )
    if not path.exists():
        raise missing_path(path, "write it with: protofl export RUN FILE.onnx")
    if path.suffix == ".pt2" and not trust_pickle:
        raise UsageError(
            f"{path} can contain pickled objects, which can run code",
            do="if you trust where it comes from: --trust-pickle; or export FILE.onnx",
        )
    read = _onnx if path.suffix == ".onnx" else _torch_export
    try:
        program, about = read(regular_file(path))
        sample = json.loads(about["form"])
        task = Task(**sample.pop("task", {}))
        spec = SampleSpec(**(sample | {"shape": tuple(sample["shape"])}), task=task)
        dtype, recorded = getattr(torch, about["dtype"]), json.loads(about["preparation"] or "null")
        known = None if recorded is None else Preparation.of_json(recorded, str(path))
        warning = about.get("warning", "")
        return Exported(json.loads(about["classes"]), spec, dtype, program, known, warning)
    except UsageError:
        raise
    except Exception as error:  # each library has its own errors for damaged files
        line = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{path} cannot be read as an exported client: {type(error).__name__}: {line}",
            do=f"write it again: protofl export RUN {path} --force",
        ) from error


def _onnx(path: Path) -> tuple[Callable[[Tensor], Tensor], dict[str, str]]:
    try:
        import onnxruntime
    except ImportError:
        raise UsageError(
            "ONNX files need the package onnxruntime", do="pip install 'protofl[onnx]'"
        ) from None
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(path, options)

    def program(x: Tensor) -> Tensor:
        [scores] = session.run(None, {"samples": x.numpy()})
        return torch.from_numpy(scores)

    return program, {"preparation": "", **session.get_modelmeta().custom_metadata_map}


def _torch_export(path: Path) -> tuple[Callable[[Tensor], Tensor], dict[str, str]]:
    about: dict[str, Any] = dict.fromkeys(ABOUT, "")
    with zipfile.ZipFile(path) as archive:  # torch compares no checksums
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"its member {damaged!r} was changed")
    log = logging.getLogger("torch.export")
    was, log.disabled = log.disabled, True  # torch prints a traceback, and then raises
    try:
        with warnings.catch_warnings():  # torch 2.11 reads weights that it does not write
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            return torch.export.load(path, extra_files=about).module(), about
    except RuntimeError as error:
        raise ValueError("not a program that this version of torch.export reads") from error
    finally:
        log.disabled = was


def _array(path: Path) -> np.ndarray:
    """Read an array of samples.

    Raises:
        UsageError: The file has no such array.
    """
    with path.open("rb") as file:
        result = open_arrays(file, path)
        if isinstance(result, np.ndarray):
            return result
        for name in ("x", "x_test"):
            if name in result:
                return np.asarray(result[name])
        raise UsageError(
            f"{path} has no array x or x_test", f"its arrays: {', '.join(sorted(result))}"
        )
