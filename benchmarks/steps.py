"""Measure milliseconds per training step of each architecture: plain PyTorch and the engine.

    python benchmarks/steps.py                      # htfe8 on 3×32×32 and htcnn8 on 1×28×28
    python benchmarks/steps.py resnet34 --momentum 0.9 --clip 20

One thread, SGD. *plain* is the model as its group builds it (contiguous layout,
autograd, `torch.optim.SGD`). *engine* is ``eager`` of this checkout. Both take turns, and the
smallest CPU time of several repeats counts. *limit* is the larger of two times. The first is the
arithmetic of the step at the speed of a large matrix product on this core. The second is the
traffic of the weights at the speed of a large copy: the weights are read for the output and for the
input's gradient, and read and written by the update.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.hooks.models.flops import profile
from protofl.hooks.views.client_state import ClientState
from protofl_plugins.engines.eager import Eager
from protofl_plugins.models.htcnn8 import HtCNN8
from protofl_plugins.models.htfe import HtFE8

GROUPS = {"htfe8": (HtFE8, (3, 32, 32)), "htcnn8": (HtCNN8, (1, 28, 28))}
CLASSES, STEPS = 10, 6


class CrossEntropy:
    """The loss of a job: only cross-entropy."""

    kind = ()

    def __call__(self, batch: pf.Batch, output: pf.Output, step: int) -> dict[str, torch.Tensor]:
        """Return the loss term."""
        return {"ce": cross_entropy(output.logits, batch.y)}


def job_of(
    model: pf.models.SplitModel,
    architecture: pf.models.Architecture,
    batches: list[Any],
    *,
    batch: int = 10,
    **options: float,
) -> pf.backends.TrainJob:
    """Return a job of one client that trains on the batches in turn."""
    state: Any = object.__new__(ClientState)
    state.architecture, state.model, state.modules, state.steps = (
        architecture,
        model,
        {},
        len(batches),
    )
    return pf.backends.TrainJob(
        model=model,
        groups=[([*model.parameters()], 0.001)],
        loss=CrossEntropy(),  # type: ignore[arg-type]
        after_batch=None,
        optimizer="sgd",
        precision="fp32",
        device=torch.device("cpu"),
        phase=pf.Phase("private"),
        batch_size=batch,
        drawn=lambda: iter(batches),
        client_state=state,
        **options,  # type: ignore[arg-type]
    )


def sides(
    architecture: pf.models.Architecture, shape: tuple[int, ...], batch: int, **options: float
) -> dict[str, Callable[[], None]]:
    """Return functions that run one step of plain PyTorch and `STEPS` steps of the engine."""
    sample = pf.datasets.SampleSpec(shape)
    model = architecture.build(sample, CLASSES, 512).train()
    x, y = torch.randn(batch, *shape), torch.randint(CLASSES, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=options["momentum"])

    def plain() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if options["clip"]:
            nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()

    engine_model = (
        architecture.build(sample, CLASSES, 512).train().to(memory_format=architecture.layout)
    )
    images = x.contiguous(memory_format=architecture.layout)
    batches = [(images, y, torch.arange(batch))] * STEPS
    job = job_of(engine_model, architecture, batches, batch=batch, **options)
    return {"plain": plain, "engine": lambda: Eager().train(job)}


def seconds(function: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call."""
    start = time.thread_time()
    function()
    return time.thread_time() - start


def machine() -> tuple[float, float]:
    """Measure FLOP/s of a large matrix product and bytes/s of a large copy, with one thread."""
    a, b = torch.randn(2, 1536, 1536)
    big, other = torch.randn(2, 1 << 25)
    return (
        2 * 1536**3 / min(seconds(lambda: a @ b) for _ in range(5)),
        2 * big.nbytes / min(seconds(lambda: other.copy_(big)) for _ in range(5)),
    )


def main(arguments: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="architectures; all by default")
    parser.add_argument("--batch", type=int, default=10, help="images of a batch")
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--engine-only", action="store_true")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    flops_a_second, bytes_a_second = machine()
    print(
        f"{torch.backends.cpu.get_cpu_capability()}: {flops_a_second / 1e9:.0f} GFLOP/s, "
        f"{bytes_a_second / 1e9:.1f} GB/s"
    )
    print(f"{'':14}{'plain':>9}{'engine':>9}{'ratio':>7}{'limit':>8}{'share':>7}   ms a step")
    for group, shape in GROUPS.values():
        for architecture in group().architectures(getattr(group, "Config", pf.Config)()):
            if args.names and architecture.name not in args.names:
                continue
            count, flops = profile(architecture, pf.datasets.SampleSpec(shape), CLASSES, 512)
            options = {"momentum": args.momentum, "clip": args.clip}
            both = sides(architecture, shape, args.batch, **options)
            if args.engine_only:
                both.pop("plain")
            times: dict[str, list[float]] = {name: [] for name in both}
            for round_ in range(args.repeats + 1):
                for name, step in both.items():
                    spent = seconds(step) / (STEPS if name == "engine" else 1)
                    if round_:
                        times[name].append(spent)
            best = {name: 1e3 * min(each) for name, each in times.items()}
            limit = 1e3 * max(
                3 * args.batch * flops / flops_a_second, 4 * count * 4 / bytes_a_second
            )
            plain = best.get("plain", float("nan"))
            print(
                f"{architecture.name:14}{plain:9.2f}{best['engine']:9.2f}"
                f"{plain / best['engine']:7.2f}{limit:8.2f}{limit / best['engine']:7.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
