"""What a round costs, without training: traffic by the run's own hooks, FLOPs by its models.

The hooks of a run are called in two rounds in which every client has one sample of each of its
classes; what they send is counted as in any round. Who holds which classes follows from the data's
labels. Where the data are not at hand, the sizes of their classes are, for data sets that say them
(``outline``), and with partitioners that draw from these alone nothing else is needed.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from protofl.data.cache import cache_file
from protofl.data.dataset import Dataset
from protofl.data.generators import ImageSource
from protofl.data.split import Split
from protofl.data.splitting import make_split
from protofl.discovery.registry import Registry
from protofl.errors import UsageError
from protofl.hookspecs.markers import hookimpl
from protofl.hosts.host import Host
from protofl.hosts.train_job import TrainJob
from protofl.models.cost import training_flops
from protofl.options.declared import Config
from protofl.participation.flops import forward_flops
from protofl.plan.plan import Plan
from protofl.plugin.choice import Choice, choose
from protofl.request.request import Request
from protofl.rounds.federation import Federation
from protofl.studies.study import Values
from protofl.views.batch import Output

STAND_IN = "stand-in"
FAR = 1_000_000
"""Rounds of an account, so that none of the two is the last, nor evaluated."""


@dataclass(frozen=True)
class Outline:
    """What is known of a data set without having it.

    Attributes:
        shape: Of a sample, as it is stored.
        train: Samples of each class in its training part.
        test: Samples of each class in its test part.
        even: Whether only their sums are known, and taken to be even.
    """

    shape: tuple[int, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    even: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Outline:
        """From what a data set's class says in ``outline``."""
        train, test = tuple(values["train"]), tuple(values.get("test", ()))
        return cls(tuple(values["shape"]), train, test, bool(values.get("even")))

    def dataset(self) -> Dataset:
        """Data with these labels, in the order of classes, and noise for images."""
        parts = [torch.tensor(part) for part in (self.train, self.test) if part]
        y = torch.cat([torch.repeat_interleave(torch.arange(len(p)), p) for p in parts])
        # Windows on one strip, each a number further: images that differ, in no more memory than
        # labels. Equal ones would make of BatchNorm a division by nothing.
        steps = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        size = len(y) + math.prod(self.shape)
        strip = torch.randint(256, (size,), generator=torch.Generator().manual_seed(0))
        x = strip.to(torch.uint8).as_strided((len(y), *self.shape), (1, *steps))
        names = [str(number) for number in range(len(self.train))]
        return Dataset(x, y, int(sum(self.train)), names)

    def few(self) -> Dataset:
        """A sample of each class."""
        y = torch.arange(len(self.train))
        x = torch.zeros(len(y), *self.shape, dtype=torch.uint8)
        return Dataset(x, y, len(y), [str(number) for number in range(len(y))])


def data_choice(options: Values, registry: Registry) -> Choice:
    """The data set that options of a run choose."""
    text = str(options.get("dataset", "digits"))
    return choose(registry, "dataset", text, options.get("options", {}).get("dataset"))


def outline_of(choice: Choice, data_dir: Path) -> Outline | None:
    """What is known of a data set that would have to be downloaded; None where it is at hand."""
    values = getattr(choice.plugin, "outline", None)
    if values is None:
        return None
    key = choice.call("cache_key", data_dir=data_dir)
    return None if cache_file(key, data_dir).exists() else Outline.of(values)


def plan_of(request: Request, note: Callable[[str], None] = lambda line: None) -> Plan:
    """The plan of a run, with data of known sizes where its own are not at hand.

    Raises:
        UsageError: Something asked for can't be done.
    """
    from protofl.options.table import build

    options = request.options
    settings = build({k: v for k, v in options.items() if v is not None})
    outline = outline_of(data_choice(options, request.registry), settings.data_dir)
    if outline is None:
        return with_sizes(Plan.make(options, request.extra, note, said=request.said))
    extra = {**request.extra, ("dataset", STAND_IN): _stand_in(outline)}
    own = {k: v for k, v in options.get("options", {}).items() if k != "dataset"}
    given = {**options, "dataset": STAND_IN, "options": own}
    with tempfile.TemporaryDirectory(prefix="protofl-") as folder:
        plan = Plan.make({**given, "data_dir": folder}, extra, lambda line: None, said=request.said)
    data = outline.dataset()
    return with_sizes(replace(plan, data=data, splits=_splits(plan, data)))


def with_sizes(plan: Plan) -> Plan:
    """A plan whose generator has the sizes that its plugin says (``sizes``) where it is not here.

    Raises:
        UsageError: It is not here, and its plugin says none.
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


def _stand_in(outline: Outline) -> type:
    class StandIn:
        """Data of which the sizes are known."""

        @hookimpl
        def cache_key(self) -> str:
            return STAND_IN

        @hookimpl
        def decode(self) -> Dataset:
            return outline.few()

    return StandIn


def _splits(plan: Plan, data: Dataset) -> Callable[[int], Split]:
    s, partitioner = plan.settings, plan.choices["partitioner"]
    make = partial(
        make_split,
        data,
        partial(partitioner.call, "partition"),
        s.clients,
        s.batch_size,
        public=s.held_out,
        partitioner=partitioner.name,
        subset=s.subset,
    )
    return lru_cache(maxsize=2)(make)


class Still:
    """An engine that trains nothing; methods that collect outputs in training are given them."""

    @hookimpl
    def train(self, job: TrainJob) -> dict[str, float]:
        """No step at all."""
        if job.after_batch is not None:
            with torch.no_grad():
                for batch in job.batches():
                    z = job.model.features(batch.x)
                    job.after_batch(batch, Output(z, job.model.head(z)))
        return {}


# --- two rounds -----------------------------------------------------------------------------------


def traffic(request: Request) -> list[dict[str, Any]]:
    """The lines of two rounds in which nothing is learned, as far as they tell of what crosses.

    Args:
        request: The run.

    Raises:
        UsageError: Something asked for can't be done.
    """
    plan = plan_of(request)
    if public := plan.public_data:
        raise UsageError(
            f"an account has no use for the images of --public {plan.settings.public}",
            f"it has {len(public.y)} of them",
            "give a number of public samples",
        )
    still = Choice("engine", "still", Still, Config())
    changes = {"rounds": FAR, "eval_every": FAR, "measure": [], "trials": 1, "lr": 0.0}
    data, split = few_rows(plan.data, one_of_each(plan.split(0), plan.data.y))
    short = replace(
        plan,
        data=data,
        splits=lambda seed: split,
        images=plan.images and plan.images.unopened(),
        choices={**plan.choices, "engine": still},
        settings=plan.settings.model_copy(update=changes),
        info=replace(plan.info, local_epochs=1),
    )
    federation = Federation(short, Host(short))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        federation.start_trial(0)
        return [federation.round(number)[0] for number in (0, 1)]


def flops(request: Request) -> list[dict[str, Any]]:
    """A line with ``measures`` alone: ``flops`` of a round, and of a sample by ``architectures``.

    Args:
        request: The run.

    Raises:
        UsageError: Something asked for can't be done.
    """
    plan = plan_of(request)
    forward = forward_flops(plan)
    own = [forward[client % len(forward)] for client in range(plan.info.participants)]
    names = [architecture.name for architecture in plan.info.architectures]
    found = {
        "flops": {"forward": sum(own), "training": training_flops(own)},
        "architectures": dict(zip(names, forward, strict=True)),
    }
    return [{"trial": 0, "round": 0, "measures": found}]


def few_rows(data: Dataset, split: Split) -> tuple[Dataset, Split]:
    """The rows of a split alone."""
    used, rows = torch.unique(split.rows, return_inverse=True)
    parts = [p for p in (split.public, split.global_test) if p is not None]
    if parts:
        return data, split
    few = replace(data, x=data.x[used], y=data.y[used], num_train=len(used))
    return few, replace(split, rows=rows)


def one_of_each(split: Split, labels: torch.Tensor) -> Split:
    """A split in which clients have the first sample of each class that they have.

    Args:
        split: The split.
        labels: Labels [N] of the data.

    Returns:
        Of each client one training row a class and its first test row; public rows as they are.
    """
    rows, sizes = [], []
    for client in range(split.num_clients):
        train, seen = split.train(client), set[int]()
        first = [
            int(row)
            for row, label in zip(train, labels[train].tolist(), strict=True)
            if not (label in seen or seen.add(label))  # type: ignore[func-returns-value]
        ]
        test = split.test(client)[:1].tolist()
        rows += first + test
        sizes += [len(first), len(test)]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return replace(split, rows=torch.tensor(rows), offsets=offsets)
