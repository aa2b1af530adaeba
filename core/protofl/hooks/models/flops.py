"""FLOPs of models: a forward pass, training, and all clients of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from protofl.data.spec import SampleSpec
from protofl.hooks.models.architecture import Architecture, unset_model
from protofl.system.device import compute_threads

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


def profile(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> tuple[int, int]:
    """Return the parameters of a model, and the forward FLOPs of one sample; takes no memory.

    A multiplication with an addition counts as two FLOPs.
    """
    with torch.device("meta"):
        model = architecture.build(sample, num_classes, feature_dim)
        x = sample.zeros(1)
    return sum(p.numel() for p in model.parameters()), forward_flops([model], x)


def forward_flops(models: Iterable[nn.Module], x: Tensor) -> int:
    """Return the FLOPs of a forward pass of samples B×… through models in eval mode."""
    with flop_counter() as counter, torch.no_grad():
        for model in models:
            model.eval()(x)
    return int(counter.get_total_flops())


def flop_counter() -> FlopCounterMode:
    """Return torch's counter of matrix products, convolutions and attention."""
    from torch.utils.flop_counter import FlopCounterMode  # takes a second to import

    return FlopCounterMode(display=False)


@dataclass
class ClientFlops:
    """FLOPs of a client of one architecture.

    Attributes:
        forward: FLOPs of one sample's forward pass through all models that the client trains.
        counted: FLOPs of local training, by torch's counter.
        samples: Samples of the counted training.
    """

    forward: int = 0
    counted: int = 0
    samples: int = 0


def training_flops(forward: Iterable[float]) -> float:
    """Return the FLOPs of a training step on one sample by each client: 4 times the forward FLOPs.

    With this factor FedTGP's Table 12 follows from its Table 8: the twenty clients' forward FLOPs
    are 24.692 billion, and 98.77 billion are four times as many. The text of the paper says
    "tripled": a forward pass, and a backward pass of twice its cost.

    Args:
        forward: Forward FLOPs of one sample, of each client.
    """
    return 4 * sum(forward)


def flops_of_round(
    flops: Sequence[ClientFlops], trained: Mapping[int, int], place_of: Callable[[int], int]
) -> dict[str, float]:
    """Return the FLOPs of the clients of a round.

    Args:
        flops: FLOPs by architecture.
        trained: {client: samples seen} of the clients that trained.
        place_of: Returns the place of a client's architecture in ``flops``.

    Returns:
        ``forward``: the sum over clients of one sample's forward pass; ``training``:
        `training_flops` of the same; ``counted``: all samples, by torch's counter.
    """
    by_client = {client: flops[place_of(client)] for client in trained}
    counted = sum(
        measured.counted / measured.samples * trained[c] for c, measured in by_client.items()
    )
    return {
        "forward": sum(measured.forward for measured in by_client.values()),
        "training": training_flops(measured.forward for measured in by_client.values()),
        "counted": round(counted),
    }


def cost(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> float:
    """Return the multiplications of one sample's forward pass in layers that multiply matrices.

    An estimate without attention, by which work is ordered.
    """
    return _sizes(architecture, sample, num_classes, feature_dim)[0]


SPEED, MEMORY, CALLS = 40e9, 10e9, 1e-3
"""Multiplications and bytes a second of one core, and seconds of a step's calls: rough numbers."""


def seconds_of_step(
    architecture: Architecture,
    sample: SampleSpec,
    num_classes: int,
    feature_dim: int,
    batch_size: int,
) -> float:
    """Estimate the seconds of a training step on one core before anything has been trained.

    A step takes three forward passes' multiplications, and reads or writes each parameter six
    times (forward, backward, gradient, update). The estimate may be wrong by a factor of three.
    """
    multiplications, parameters = _sizes(architecture, sample, num_classes, feature_dim)
    return CALLS + 3 * batch_size * multiplications / SPEED + 6 * 4 * parameters / MEMORY


@lru_cache(maxsize=256)
def _sizes(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> tuple[float, int]:
    """Return the multiplications of `cost`, and the parameters.

    It runs one sample through a net with unset weights: the meta tensors of `profile` import
    torch's compiler, which takes a second.
    """
    model = unset_model(architecture, sample, num_classes, feature_dim).eval()
    counts: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts.append(output.numel() * layer.weight[0].numel())  # type: ignore[index]

    def count_steps(layer: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        steps = inputs[0].numel() // inputs[0].shape[-1]
        counts.append(steps * sum(p.numel() for p in layer.parameters() if p.dim() == 2))

    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            layer.register_forward_hook(count)
        elif isinstance(layer, nn.RNNBase):
            layer.register_forward_hook(count_steps)
    with compute_threads(1), torch.no_grad():  # starting more takes longer than this
        model(sample.zeros(1))
    return float(sum(counts)), sum(p.numel() for p in model.parameters())
