"""torch.compile: each architecture's forward pass and its gradient compiled once, for long runs.

The compiled code takes a model as it takes the samples, so it serves all clients of an
architecture. Batches of the usual size run compiled, an epoch's smaller last batch as PyTorch runs
it. Losses of methods, heads, and modules beside the models are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import protofl as pf
import torch
from torch import Tensor

from protofl_plugins.engines.eager import Fallback, train_by
from protofl_plugins.engines.layers import FastLayers
from protofl_plugins.engines.stepping import tensors_of


class Compiled:
    """Models compiled by torch.compile, once for each architecture."""

    class Config(pf.Config):
        """Options."""

        backend: str = pf.Field(
            "inductor", description="torch.compile's backend; inductor needs a C++ compiler"
        )

    # What inductor makes of a graph is its own; the way in and out of the graph is ours.
    check_options = {"backend": "aot_eager"}

    def __init__(self) -> None:
        self._features: dict[str, Callable[[pf.SplitModel, Tensor], Tensor]] = {}
        self._fallback = Fallback("compiled")

    @pf.hookimpl
    def train(self, job: pf.TrainJob, config: Config) -> dict[str, float]:
        """One client, by its architecture's compiled code."""
        return self._fallback.train([job], partial(self._train, config))[0]

    def _train(self, config: Config, jobs: list[pf.TrainJob]) -> list[dict[str, float]]:
        (job,) = jobs
        if job.architecture not in self._features:
            self._features[job.architecture] = _compiled(config.backend)
        model: pf.SplitModel = job.model
        compiled = self._features[job.architecture]

        def features(x: Tensor) -> Tensor:
            return compiled(model, x) if len(x) == job.batch_size else model.features(x)

        tensors = list(tensors_of(job.whole()).values())
        before = [tensor.clone() for tensor in tensors]
        try:
            return [train_by(features, job, FastLayers(job))]
        except Exception:
            torch._foreach_copy_(tensors, before)
            raise


def _compiled(backend: str) -> Callable[[pf.SplitModel, Tensor], Tensor]:
    """A model's features, compiled at the first call; for one architecture and shape of batches."""
    # torch.compile counts recompilations by a function's code, and gives up after eight: each
    # architecture needs code that it doesn't share.
    plain: Any = pf.SplitModel.features
    own = FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
    # Random numbers (dropout) as PyTorch draws them; one shape, so nothing is left dynamic.
    options: dict[str, Any] = {"fallback_random": True} if backend == "inductor" else {}
    return torch.compile(own, backend=backend, dynamic=False, options=options or None)
