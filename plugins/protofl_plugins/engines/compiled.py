"""torch.compile: each architecture's forward pass and its gradient compiled once, for long runs.

Clients of an architecture are trained on one set of modules, into which their weights are copied:
compiled code is bound to its modules, so every client would be compiled anew otherwise. Batches of
the usual size run compiled, an epoch's smaller last batch as PyTorch runs it. Losses of methods,
and modules beside the models, are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import protofl as pf
import torch
from torch import Tensor
from torch.nn import Module

from protofl_plugins.engines.recorder import Plain
from protofl_plugins.engines.stage import Stage
from protofl_plugins.engines.stepping import by_eager, given_up, or_by_eager


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
        self._stages: dict[str, Stage] = {}
        self._failed: dict[str, str] = {}

    @pf.hookimpl
    def train(self, job: pf.TrainJob, config: Config) -> dict[str, float]:
        """One client, on its architecture's modules."""
        name = job.architecture
        if name in self._failed:
            return by_eager([job], given_up("compiled", job, self._failed[name]))[0]
        train = partial(self._on_stage, job, config)
        (sums,), why = or_by_eager("compiled", [job], train)
        if why:
            self._failed[name] = why
            self._stages.pop(name, None)
        return sums

    def _on_stage(self, job: pf.TrainJob, config: Config) -> list[dict[str, float]]:
        stage = self._stages.get(job.architecture)
        if stage is None or not stage.fits(job):
            prepare = partial(_compile, size=job.batch_size, config=config)
            stage = Stage(job, lambda step, size: Plain(step), prepare)
            self._stages[job.architecture] = stage
        stage.begin(job)
        with job.stream():
            for number, batch in enumerate(job.batches()):
                stage.step(job, batch, number)
        labels, sums = stage.end(job)
        return [dict(zip(labels, sums.tolist(), strict=True))]


def _compile(module: Module, size: int, config: Any) -> None:  # noqa: ANN401 - Compiled.Config
    """Compile the features of a model for batches of ``size``; other modules stay as they are."""
    if not isinstance(module, pf.SplitModel):
        return
    plain: Callable[[Tensor], Tensor] = MethodType(_own_code(pf.SplitModel.features), module)
    # Random numbers (dropout) as PyTorch draws them; one shape, so nothing is left dynamic.
    options: dict[str, Any] = {"fallback_random": True} if config.backend == "inductor" else {}
    compiled: Callable[[Tensor], Tensor] = torch.compile(
        plain, backend=config.backend, dynamic=False, options=options or None
    )

    def features(x: Tensor) -> Tensor:
        return (compiled if len(x) == size else plain)(x)

    module.features = features  # type: ignore[method-assign]


def _own_code(function: Any) -> FunctionType:  # noqa: ANN401 - a Python function
    """A copy of a function with code of its own.

    torch.compile counts recompilations by a function's code, and gives up after eight: each
    architecture needs code that it doesn't share.
    """
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
