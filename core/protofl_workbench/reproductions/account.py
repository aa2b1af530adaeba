"""Traffic and FLOPs of a round, without training.

Traffic comes from two rounds of the run's own hooks, in which every client has one sample of each
of its classes and no step is taken. If the data are not here, the class sizes that the data set
declares (``outline``) are enough.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from protofl.data.cache import cache_file
from protofl.data.dataset import Dataset
from protofl.data.generators import ImageSource
from protofl.data.split import Split
from protofl.errors import UsageError
from protofl.federation.clients.host import Host
from protofl.federation.clients.train_job import TrainJob
from protofl.federation.plan.plan import Plan
from protofl.federation.round.federation import Federation
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.hookspecs import hookimpl
from protofl.hooks.models.flops import training_flops
from protofl.hooks.plugin.members import Choice, choose
from protofl.hooks.views.batch import Output
from protofl.records.row import Row
from protofl.runs.request.planning import plan_run
from protofl.runs.request.request import Request
from protofl.system.options.plugin_options import Config
from protofl_workbench.reproductions.reproduction import Values

FAR = 1_000_000
"""Number of rounds of the counted run: the two counted ones are not the last, nor evaluated."""


def data_choice(options: Values, registry: Registry) -> Choice:
    """Return the data set that options of a run choose."""
    text = str(options.get("dataset", "digits"))
    return choose(registry, "dataset", text, options.get("options", {}).get("dataset"))


def outline_of(choice: Choice, data_dir: Path) -> Values | None:
    """Return the declared sizes of a data set that would have to be downloaded; else None.

    Returns:
        ``shape`` of a stored sample, ``train`` and ``test``: samples of each class, and ``even``:
        True if only the totals are known and the classes are assumed to be equal.
    """
    outline: Values | None = getattr(choice.plugin, "outline", None)
    if outline is None:
        return None
    is_here = cache_file(choice.call("cache_key", data_dir=data_dir), data_dir).exists()
    return None if is_here else outline


def noise_data(outline: Values) -> Dataset:
    """Return noise images with the labels of an `outline_of`, in the order of classes."""
    shape, train = tuple(outline["shape"]), tuple(outline["train"])
    parts = [
        torch.tensor(class_counts)
        for class_counts in (train, outline.get("test", ()))
        if len(class_counts)
    ]
    y = torch.cat([torch.repeat_interleave(torch.arange(len(p)), p) for p in parts])
    # Overlapping windows on one strip: images that differ, in little memory. With equal images
    # BatchNorm would divide by a variance of zero.
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    size = len(y) + math.prod(shape)
    strip = torch.randint(256, (size,), generator=torch.Generator().manual_seed(0))
    x = strip.to(torch.uint8).as_strided((len(y), *shape), (1, *steps))
    return Dataset(x, y, sum(train), [str(c) for c in range(len(train))])


def plan_of(request: Request) -> Plan:
    """Plan a run; data or a generator that are not here are replaced by their declared sizes.

    Raises:
        UsageError: An option is unknown, out of range, or does not fit the others.
    """
    choice = data_choice(request.options, request.registry)
    outline = outline_of(choice, request.settings.data_dir)
    data = None if outline is None else noise_data(outline)
    return _with_declared_sizes(plan_run(request, lambda line: None, data))


def _with_declared_sizes(plan: Plan) -> Plan:
    """Replace a generator that is not here by the sizes that its plugin declares (``sizes``).

    Raises:
        UsageError: The generator is not here, and its plugin declares no sizes.
    """
    choice = plan.choices.get("generator")
    if choice is None:
        return plan
    try:
        choice.call("outline", data_dir=plan.settings.data_dir)
    except UsageError:
        sizes = getattr(choice.plugin, "sizes", None)
        if sizes is None:
            raise
        images = ImageSource(choice.name, lambda: sizes, lambda: None, plan.data, plan.device)
        return replace(plan, images=images)
    return plan


class NoTraining:
    """Engine without training steps: it only passes outputs to methods that collect them."""

    @hookimpl
    def train(self, job: TrainJob) -> dict[str, float]:
        """Run forward passes if the method asks for outputs."""
        if job.after_batch is not None:
            with torch.no_grad():
                for batch in job.batches():
                    z = job.model.features(batch.x)
                    job.after_batch(batch, Output(z, job.model.head(z)))
        return {}


def traffic(request: Request) -> list[Row]:
    """Return the records of two rounds without training; their traffic is that of a run.

    Raises:
        UsageError: An option is unknown, out of range, or does not fit the others.
    """
    return traffic_of(plan_of(request))


def traffic_of(plan: Plan) -> list[Row]:
    """Return the records of the first two rounds of a plan without training.

    Rounds from the second on have the traffic of the second: all payloads have been sent once.
    """
    changes = {"rounds": FAR, "eval_every": FAR, "measure": [], "trials": 1, "lr": 0.0}
    split = one_of_each(plan.split(0), plan.data.y)
    short = replace(
        plan,
        splits=lambda seed: split,
        images=plan.images and plan.images.unopened(),
        choices={**plan.choices, "engine": Choice("engine", "no-training", NoTraining, Config())},
        settings=plan.settings.model_copy(update=changes),
        info=replace(plan.info, local_epochs=1),
    )
    federation = Federation(short, Host(short))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        federation.start_trial(0)
        return [federation.round(number)[0] for number in (0, 1)]


def flops(request: Request) -> list[Row]:
    """Return a record with FLOPs of a round (``flops``) and of a sample (``architectures``).

    Raises:
        UsageError: An option is unknown, out of range, or does not fit the others.
    """
    plan = plan_of(request)
    host = Host(plan)
    forward = [host.client(i).forward_flops() for i in plan.info.examples]
    client_flops = [forward[plan.info.place_of(client)] for client in range(plan.info.participants)]
    names = [architecture.name for architecture in plan.info.architectures]
    measures = {
        "flops": {"forward": sum(client_flops), "training": training_flops(client_flops)},
        "architectures": dict(zip(names, forward, strict=True)),
    }
    return [Row({"trial": 0, "round": 0, "measures": measures})]


def one_of_each(split: Split, labels: torch.Tensor) -> Split:
    """Reduce a split to the first training row of each class and the first test row of a client."""
    parts = []
    for client in range(split.num_clients):
        train = split.train(client)
        _, first = np.unique(labels[train].numpy(), return_index=True)
        parts += [train[torch.from_numpy(first)], split.test(client)[:1]]
    offsets = torch.tensor([0, *map(len, parts)]).cumsum(0)
    return replace(split, rows=torch.cat(parts), offsets=offsets)
