"""What a model costs: its parameters, and the work of a forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """Parameters, and forward FLOPs of one sample, by torch's counter; no memory is taken.

    A multiplication with an addition counts as two FLOPs.
    """
    with torch.device("meta"):
        model = architecture.build(sample, num_classes, feature_dim).eval()
        x = sample.zeros(1)
    with flop_counter() as counter, torch.no_grad():
        model(x)
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


def flop_counter() -> FlopCounterMode:
    """Torch's counter: inside it matrix products, convolutions and attention are counted."""
    from torch.utils.flop_counter import FlopCounterMode  # takes a second to import

    return FlopCounterMode(display=False)


@dataclass
class ClientFlops:
    """What a client of one architecture computes.

    Attributes:
        forward: A forward pass of one sample through all models that it trains.
        counted: Local training, by torch's counter.
        samples: The samples that it saw in that.
    """

    forward: int = 0
    counted: int = 0
    samples: int = 0


def training_flops(forward: Iterable[float]) -> float:
    """FLOPs of a training step on one sample by each of some clients: four times the forward ones.

    By this factor FedTGP's Table 12 follows from its Table 8: of the twenty clients' forward FLOPs,
    24.692 billion, 98.77 are four times as many. The text beside it says "tripled", a forward pass
    and a backward one of twice its cost.

    Args:
        forward: Forward FLOPs of one sample, of each client.
    """
    return 4 * sum(forward)


def flops_of_round(flops: Sequence[ClientFlops], trained: Mapping[int, int]) -> dict[str, float]:
    """What the clients of a round compute.

    Args:
        flops: Of each architecture; client i has architecture i mod X.
        trained: {client: samples seen} of the clients that trained.

    Returns:
        ``forward``: a forward pass of one sample by each; ``training``: `training_flops` of that;
        ``counted``: by torch's counter, of all samples.
    """
    own = {client: flops[client % len(flops)] for client in trained}
    counted = sum(found.counted / found.samples * trained[c] for c, found in own.items())
    return {
        "forward": sum(found.forward for found in own.values()),
        "training": training_flops(found.forward for found in own.values()),
        "counted": round(counted),
    }


@lru_cache(maxsize=256)
def cost(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> float:
    """Multiplications of one sample's forward pass in the layers that multiply matrices.

    What `profile` counts but for attention and the like, to order work by. `profile` computes on
    tensors without values, whose first use imports torch's compiler and takes over a second; this
    runs one sample through a net with unset weights.
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
    return float(sum(counts))
