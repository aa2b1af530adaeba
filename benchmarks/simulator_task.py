"""The other simulators' task: a file of images and the 4-layer CNN. Needs only numpy and torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn


class CNN4(nn.Sequential):
    """protofl's ``cnn4`` at 28×28 with one channel: 5×5 convolutions without padding."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
        )  # fmt: skip


@dataclass
class Task:
    """Images and labels of each client and of the test set."""

    clients: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]
    batch_size: int
    lr: float


@lru_cache(maxsize=1)
def read_task(path: str) -> Task:
    """Read the file that `other_simulators` wrote."""
    with np.load(path, allow_pickle=False) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
        x_test, y_test = torch.from_numpy(file["x_test"]), torch.from_numpy(file["y_test"])
        batch_size, lr = int(file["batch_size"]), float(file["lr"])
    clients = [(a.contiguous(), b.contiguous()) for a, b in zip(x, y, strict=True)]
    return Task(clients, (x_test, y_test), batch_size, lr)
