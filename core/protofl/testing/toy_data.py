"""Data for tests: samples of any kind, in a split that is chosen or dealt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import protofl as pf

SIDE, CHANNELS = 6, 1

Counts = Sequence[Sequence[int]]
"""Numbers of samples, clients × classes."""


def make_images(
    train: Counts,
    test: Counts | None = None,
    *,
    seed: int = 0,
    side: int = SIDE,
    noise: float = 0.5,
    given_split: bool = True,
) -> pf.datasets.Dataset:
    """Square float images; see `make_data`."""
    sample = pf.datasets.SampleSpec((CHANNELS, side, side))
    return make_data(sample, train, test, seed=seed, noise=noise, given_split=given_split)


def make_data(
    sample: pf.datasets.SampleSpec,
    train: Counts,
    test: Counts | None = None,
    *,
    seed: int = 0,
    noise: float = 0.5,
    given_split: bool = True,
) -> pf.datasets.Dataset:
    """Samples of C patterns under noise.

    A pattern of tokens is a sequence of ids, of which noise changes some; every fourth sample is
    filled up from its middle on where there is a padding id.

    Args:
        sample: What a sample is.
        train: Per client its numbers of training samples of each class.
        test: The same of test samples; a third of the training samples, at least one, by default.
        seed: Seed of the patterns and the noise.
        noise: Its standard deviation; the patterns' is 1.
        given_split: Whether the data come split as said; else a partitioner splits them.
    """
    test = test or [[(n + 2) // 3 for n in counts] for counts in train]
    generator = torch.Generator().manual_seed(seed)
    num_classes = len(train[0])
    patterns = _patterns(sample, num_classes, generator)
    labels: list[int] = []
    split: list[tuple[Tensor, Tensor]] = []
    start = 0
    for pair in zip(train, test, strict=True):
        rows = []
        for counts in pair:
            client_labels = [c for c, n in enumerate(counts) for _ in range(n)]
            order = torch.randperm(len(client_labels), generator=generator).tolist()
            labels += [client_labels[i] for i in order]
            rows.append(torch.arange(start, start + len(client_labels)))
            start += len(client_labels)
        split.append((rows[0], rows[1]))
    y = torch.tensor(labels)
    return pf.datasets.Dataset(
        x=_with_noise(sample, patterns[y], noise, generator),
        y=y,
        num_train=len(y),
        classes=[f"class {c}" for c in range(num_classes)],
        split=split if given_split else None,
        vocabulary=sample.vocabulary,
        padding=sample.padding,
    )


def with_task(data: pf.datasets.Dataset, task: pf.datasets.Task) -> pf.datasets.Dataset:
    """Return data for another task: each sample has its class and the next one as labels.

    The number of a regression is the class.

    Args:
        data: Data of a classification.
        task: Multi-label, regression, or a language model: tokens at the places of the labels.
    """
    if task.has_classes:
        return data
    one_hot = torch.nn.functional.one_hot(data.y, data.num_classes)
    several = (one_hot + one_hot.roll(1, 1)).float()
    targets, outputs = (
        (several, data.classes) if task.name != "regression" else (data.y[:, None].float(), ["y"])
    )
    return replace(data, task=task, targets=targets, outputs=outputs)


def _patterns(sample: pf.datasets.SampleSpec, count: int, generator: torch.Generator) -> Tensor:
    if sample.kind == "tokens":
        return _ids(sample, count, generator)
    return torch.randn(count, *sample.shape, generator=generator)


def _ids(sample: pf.datasets.SampleSpec, count: int, generator: torch.Generator) -> Tensor:
    """Random ids, none of them the padding."""
    ids = torch.tensor([i for i in range(sample.vocabulary) if i != sample.padding])
    return ids[torch.randint(0, len(ids), (count, *sample.shape), generator=generator)]


def _with_noise(
    sample: pf.datasets.SampleSpec, x: Tensor, noise: float, generator: torch.Generator
) -> Tensor:
    if sample.kind != "tokens":
        return x + noise * torch.randn(x.shape, generator=generator)
    changed = torch.rand(x.shape, generator=generator) < noise / 2
    x = torch.where(changed, _ids(sample, len(x), generator), x)
    if sample.padding is not None:
        x[::4, sample.shape[0] // 2 :] = sample.padding
    return x


def random_batch(sample: pf.datasets.SampleSpec, count: int, seed: int = 0) -> Tensor:
    """Samples as a model sees them: normal numbers, or token ids."""
    return _patterns(sample, count, torch.Generator().manual_seed(seed))


def dataset(data: pf.datasets.Dataset) -> type:
    """A data set plugin with these samples."""

    class Toy:
        """Toy data."""

        @pf.hookimpl
        def cache_key(self, config: pf.Config, data_dir: Path) -> str:
            """Named by the data."""
            return "toy-" + data.compute_digest()[:20]

        @pf.hookimpl
        def decode(self, config: pf.Config, data_dir: Path) -> pf.datasets.Dataset:
            """The samples unchanged."""
            return data

    return Toy


MIXED = [[6, 5, 4, 0], [0, 7, 0, 6], [9, 0, 3, 2], [4, 4, 4, 4]]
"""Four clients, four classes, two of the clients without some."""


class Deal:
    """A partitioner that deals samples out one by one, after shuffling them."""

    @pf.hookimpl
    def partition(
        self, labels: np.ndarray, num_clients: int, generator: np.random.Generator
    ) -> list[np.ndarray]:
        """Every client the n-th of a permutation."""
        rows = generator.permutation(len(labels)).astype(np.int64)
        return [rows[first::num_clients] for first in range(num_clients)]
