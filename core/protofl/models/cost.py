"""What a model costs: its parameters, and the work of a forward pass."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from protofl.cores import compute_threads
from protofl.data.spec import SampleSpec
from protofl.models.architecture import Architecture
from protofl.models.unset import unset_model


def profile(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> tuple[int, int]:
    """Parameters, and forward FLOPs of one sample, by torch's counter; no memory is taken.

    A multiplication with an addition counts as two FLOPs.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = architecture.build(sample, num_classes, feature_dim).eval()
        x = sample.zeros(1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


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
