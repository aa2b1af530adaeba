"""Batches: index slices of a seeded permutation, normalised on the device.

There is no DataLoader and no per-sample work: a client's samples are rows of one mapped tensor
of all; an epoch gathers them in the order of a permutation, a block of batches at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from math import ceil

import torch
from torch import Tensor

from protofl.data.spec import AsStored, ModelInput
from protofl.system.randomness import random_stream
from protofl.system.transfers import has_streams, pinned

BLOCK = 512
"""Samples that are gathered and normalised together."""

REACH = 4
"""Pixels by which augmentation shifts an image at most."""

LEAST = 4
"""The smallest batch on which BatchNorm is trained.

Below it BatchNorm over a 1×1 map divides by the difference of two or three samples in every
layer: at 32 px the gradient of a ResNet152 has norm 1e4 for 10 samples, 2e5 for 4, 1e7 for 3 and
1e10 for 2, and one such step ends training (docs/how-to/set-training.md, "Last batch").
"""


class Samples:
    """Rows of a tensor of samples, as a model sees them.

    Args:
        x: All samples N×…, on the device; or in host memory if they are too many for it.
        y: All labels [N] or [N, L] (`Dataset.labels`), on the device; None for unlabelled samples.
        rows: The rows that belong here, [n].
        prepare: Prepares stored samples for a model.
        channels_last: The layout of images.
        device: The device; that of ``x`` if not given.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor | None,
        rows: Tensor,
        prepare: ModelInput,
        channels_last: bool,
        device: torch.device | None = None,
    ) -> None:
        self._x, self._rows = x, rows.to(x.device)
        self._device = x.device if device is None else device
        self._prepare, self._channels_last = prepare, channels_last
        self._read = prepare
        none = torch.empty(0, dtype=torch.int64, device=self._device)
        self.y = none if y is None else y[self._rows.to(y.device)]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def memory(self) -> list[Tensor]:
        """All stored samples N×…, and the rows that belong here."""
        return [self._x, self._rows]

    def first(self, count: int) -> Samples:
        """The first ``count`` of these samples."""
        return self.at(slice(count))

    def at(self, index: Tensor | slice) -> Samples:
        """The samples at ``index``."""
        selection = object.__new__(Samples)
        selection._x, selection._rows = self._x, self._rows[_there(index, self._rows)]
        selection._device = self._device
        selection.y = self.y[_there(index, self.y)] if len(self.y) else self.y
        selection._prepare, selection._channels_last = self._prepare, self._channels_last
        selection._read = self._read
        return selection

    def as_features(self, features: Tensor) -> Samples:
        """Return these samples with features n×K′ in place of their inputs."""
        samples = self.at(slice(None))
        samples._x, samples._read = features, AsStored()
        samples._rows = torch.arange(len(features), device=features.device)
        return samples

    def inputs(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Return the prepared samples at ``index``, n×… (`SampleSpec.shape`), or features."""
        rows = self._rows[_there(index, self._rows)]
        if self.on_device:
            return self._read(self._x.index_select(0, rows), self._channels_last)
        shape = len(rows), *self._x.shape[1:]
        chosen = pinned(torch.empty(shape, dtype=self._x.dtype, device="meta"), self._device)
        torch.index_select(self._x, 0, rows, out=chosen)
        return self._read(chosen.to(self._device, non_blocking=True), self._channels_last)

    @property
    def on_device(self) -> bool:
        """False for samples in host memory, which are copied to the device batch by batch."""
        return self._x.device.type == self._device.type

    def table(self, index: Tensor) -> Table | None:
        """Return the samples at ``index`` as rows of the stored samples.

        Returns:
            The table; None for features, which each client has of its own, for samples in host
            memory, and for labels that are not classes.
        """
        if self._read is not self._prepare or not self.on_device or self.y.is_floating_point():
            return None
        columns = [self._rows[index], index, *([self.y[index]] if len(self.y) else [])]
        read = partial(self._prepare, channels_last=self._channels_last)
        return Table(self._x, read, torch.stack(columns))

    def prepare(self, x: Tensor) -> Tensor:
        """Other samples of the data's shape and range, prepared as these are."""
        return self._prepare(x, self._channels_last)

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Yield all prepared samples in order, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self.inputs(slice(start, start + size))


def _there(index: Tensor | slice, tensor: Tensor) -> Tensor | slice:
    """Return an index where a tensor lies."""
    return index.to(tensor.device) if isinstance(index, Tensor) else index


@dataclass(frozen=True)
class Table:
    """All mini-batches of a phase as rows of the stored samples, for an engine that reads them.

    Attributes:
        data: Stored samples N×… on the device, the same tensor for all clients of a data set.
        read: Prepares stored samples for a model.
        picks: Row in ``data``, row in the phase's samples and label of each sample of all
            mini-batches, one after the other, [3, total] int64; without labels [2, total].
    """

    data: Tensor
    read: Callable[[Tensor], Tensor]
    picks: Tensor


def batch_bounds(count: int, batch_size: int, drop_last: bool) -> list[tuple[int, int]]:
    """First and last-plus-one position of every mini-batch of an epoch.

    The last, smaller batch is kept unless ``drop_last``; one of fewer than `LEAST` samples joins
    the batch before it. A client with fewer samples than a batch has one batch even with
    ``drop_last``, or it would never train.
    """
    starts = range(0, count, batch_size)
    bounds = [(start, min(start + batch_size, count)) for start in starts]
    if len(bounds) > 1 and bounds[-1][1] - bounds[-1][0] < batch_size:
        if drop_last:
            bounds.pop()
        elif bounds[-1][1] - bounds[-1][0] < LEAST:
            bounds[-2:] = [(bounds[-2][0], count)]
    return bounds


@lru_cache
def bounds_by_epoch(
    count: int, batch_size: int, drop_last: bool, epochs: float
) -> list[list[tuple[int, int]]]:
    """Return the `batch_bounds` of each epoch; of a fraction, the first batches, rounded up."""
    bounds = batch_bounds(count, batch_size, drop_last)
    total = ceil(Fraction(str(epochs)) * len(bounds))  # as typed: 1.1 of 10 batches are 11
    return [bounds[: total - done] for done in range(0, total, len(bounds) or 1)]


def training_batches(
    samples: Samples,
    *,
    epochs: float,
    batch_size: int,
    drop_last: bool,
    seed: int,
    keys: tuple[str | int, ...],
    augment: bool = False,
    shuffle: bool = True,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, labels and row numbers of every mini-batch of all epochs.

    Args:
        samples: The phase's data.
        epochs: Passes over them.
        batch_size: Samples per mini-batch.
        drop_last: See `bounds_by_epoch`.
        seed: The run's effective seed.
        keys: Keys of the order in addition to the seed and the epoch (round, client).
        augment: True to shift and flip images at random (`shifted_and_flipped`).
        shuffle: True for another order in each pass.
    """
    count = len(samples)
    group = max(1, BLOCK // batch_size)
    for epoch, bounds in enumerate(bounds_by_epoch(count, batch_size, drop_last, epochs)):
        here = _order(count, epoch, seed, keys, shuffle)
        order = onto(samples.y.device, here)
        moves = None
        if augment:
            moves = draw_moves(count, random_stream(seed, "augment", *keys, epoch))
            moves = onto(samples.y.device, moves)
        for first in range(0, len(bounds), group):
            block = bounds[first : first + group]
            start = block[0][0]
            index = order[start : block[-1][1]]
            # Samples in host memory are chosen there, without waiting for an index from the device.
            stop = block[-1][1]
            x = samples.inputs(index if samples.on_device else here[start:stop])
            if moves is not None:
                x = shifted_and_flipped(x, moves[:, start : start + len(x)])
            labels = samples.y[index] if len(samples.y) else samples.y
            for a, b in block:
                within = slice(a - start, b - start)
                yield x[within], labels[within], index[within]


def training_table(
    samples: Samples,
    *,
    epochs: float,
    batch_size: int,
    drop_last: bool,
    seed: int,
    keys: tuple[str | int, ...],
    augment: bool = False,
    shuffle: bool = True,
) -> Table | None:
    """Return the mini-batches of `training_batches` as a table, copied to the device in one piece.

    Returns:
        The table; None if the samples of a batch are not rows of stored samples.
    """
    if augment:
        return None
    count = len(samples)
    orders = [
        _order(count, epoch, seed, keys, shuffle)[: bounds[-1][1]]
        for epoch, bounds in enumerate(bounds_by_epoch(count, batch_size, drop_last, epochs))
    ]
    return samples.table(onto(samples.y.device, torch.cat(orders)))


def _order(count: int, epoch: int, seed: int, keys: tuple[str | int, ...], shuffle: bool) -> Tensor:
    """Return the order of a client's samples in an epoch, [count] on the CPU."""
    drawn = random_stream(seed, "order", *keys, epoch)
    return torch.randperm(count, generator=drawn) if shuffle else torch.arange(count)


def onto(device: torch.device, tensor: Tensor) -> Tensor:
    """Copy a CPU tensor to a device, without waiting for a device with streams."""
    if not has_streams(device):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def draw_moves(count: int, generator: torch.Generator) -> Tensor:
    """Draw the shift down and right, and the flip, of each of ``count`` images.

    Args:
        count: Images B.
        generator: A CPU generator.

    Returns:
        [3, B] int64: two shifts in 0…2·REACH, and 0 or 1.
    """
    shifts = torch.randint(0, 2 * REACH + 1, (2, count), generator=generator)
    return torch.cat([shifts, torch.randint(0, 2, (1, count), generator=generator)])


def shifted_and_flipped(images: Tensor, moves: Tensor) -> Tensor:
    """Images shifted by up to `REACH` pixels each way and flipped horizontally.

    The usual augmentation of CIFAR: padding by four pixels, a random crop, a random horizontal
    flip (He et al., "Deep Residual Learning for Image Recognition", Sec. 4.2).

    Args:
        images: B×channels×H×W; a padded pixel is grey (0 after normalisation).
        moves: As `draw_moves` returns them.
    """
    _, _, height, width = images.shape
    moves = moves.to(images.device)
    rows = moves[0].unsqueeze(1) + torch.arange(height, device=images.device)
    columns = moves[1].unsqueeze(1) + torch.arange(width, device=images.device)
    columns = torch.where(moves[2].unsqueeze(1) > 0, columns.flip(1), columns)
    padded = torch.nn.functional.pad(images, [REACH] * 4)
    which = torch.arange(len(images), device=images.device)[:, None, None]
    picked = padded[which, :, rows[:, :, None], columns[:, None, :]]  # B×H×W×channels
    moved = picked.permute(0, 3, 1, 2)
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return moved.contiguous(memory_format=layout)
