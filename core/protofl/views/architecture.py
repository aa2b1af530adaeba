"""What a model group is made of: architectures that split into features and a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from protofl.cores import compute_threads
from protofl.data.spec import SampleSpec


class SplitModel(nn.Module):
    """A client's model: a feature extractor f to K features and a classifier h on them.

    The extractor's output is flattened and, where its width is not K, brought to K by an
    adaptive average pool over the flat vector (FedTGP, section "Setup": "we add an average
    pooling layer after each feature extractor").

    Args:
        extractor: Maps samples B×… (`SampleSpec.shape`) to B×anything.
        head: Maps features B×K to class scores B×C.
        feature_dim: K.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.feature_dim = feature_dim

    def features(self, x: Tensor) -> Tensor:
        """Features f(x), B×K, of samples B×…."""
        z = torch.flatten(self.extractor(x), 1)
        if z.shape[1] != self.feature_dim:
            z = nn.functional.adaptive_avg_pool1d(z.unsqueeze(1), self.feature_dim).squeeze(1)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Class scores h(f(x)), B×C."""
        scores: Tensor = self.head(self.features(x))
        return scores


@dataclass(frozen=True)
class Architecture:
    """One architecture of a model group.

    Attributes:
        name: Its name, unique in the group (``resnet18``, ``resnet34+h2``).
        build: ``build(sample, num_classes, feature_dim) -> SplitModel`` for samples of a
            `SampleSpec`, with freshly drawn weights from torch's global generator, which the
            runtime seeds.
        channels_last: Whether convolutions over images run in channels-last layout (a fixed rule,
            measured once per architecture, never at run time); nothing to other samples.
        eval_batch: Samples per batch in evaluation (a fixed rule; rounding depends on it).
        head: What tells heads apart that can't be averaged with each other (its layer widths).
    """

    name: str
    build: Callable[[SampleSpec, int, int], SplitModel]
    channels_last: bool = True
    eval_batch: int = 256
    head: str = "linear"


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


def unset_model(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> SplitModel:
    """A model whose weights are whatever their memory holds; quick, and draws nothing."""
    with torch.random.fork_rng(devices=[]), _Unset():
        return architecture.build(sample, num_classes, feature_dim)


class _Unset(TorchFunctionMode):
    """Leaves parameters as their memory is: nothing is drawn, filled or written inside."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the function returns
        given = kwargs or {}
        target = args[0] if args else given.get("tensor")
        name = getattr(function, "__name__", "")
        if isinstance(target, nn.Parameter) and name.endswith("_") and not name.endswith("__"):
            if name != "requires_grad_":
                return target
        return function(*args, **given)
