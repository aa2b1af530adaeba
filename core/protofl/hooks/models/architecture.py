"""Architectures of a model group: models that split into features and a head; unset copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from protofl.data.spec import SampleSpec
from protofl.errors import UsageError, unknown


class SplitModel(nn.Module):
    """A client's model: a feature extractor f to K features and a classifier h on them.

    The extractor's output is flattened. If its width is not K, an adaptive average pool over the
    flat vector brings it to K (FedTGP, section "Setup": "we add an average pooling layer after
    each feature extractor").

    Args:
        extractor: Maps samples B×… (`SampleSpec.shape`) to B×anything.
        head: Maps features B×K to class scores B×C.
        feature_dim: K.

    With ``--feature-dim native`` K is the extractor's own width, so nothing is pooled.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.feature_dim = feature_dim

    def features(self, x: Tensor) -> Tensor:
        """Return features f(x), B×K, of samples B×…."""
        z = torch.flatten(self.extractor(x), 1)
        if z.shape[1] != self.feature_dim:
            z = nn.functional.adaptive_avg_pool1d(z.unsqueeze(1), self.feature_dim).squeeze(1)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores h(f(x)), B×C."""
        scores: Tensor = self.head(self.features(x))
        return scores


@dataclass(frozen=True)
class Architecture:
    """One architecture of a model group.

    Attributes:
        name: Its name, unique in the group (``resnet18``, ``resnet34+h2``).
        build: ``build(sample, num_classes, feature_dim) -> SplitModel`` for samples of a
            `SampleSpec`, with weights from torch's global generator, which the runtime seeds.
        channels_last: True if convolutions over images run in channels-last layout (measured once
            per architecture, never at run time). Not used for other samples.
        eval_batch: Samples per batch in evaluation (fixed, because rounding depends on it).
        head: The head's layer widths; only equal heads can be averaged.
        precomputed: Returns the frozen first part of a model, whose output B×K′ a host computes
            once for a client's samples, and which passes rows of K′ numbers unchanged. None:
            no part.
    """

    name: str
    build: Callable[[SampleSpec, int, int], SplitModel]
    channels_last: bool = True
    eval_batch: int = 256
    head: str = "linear"
    precomputed: Callable[[SplitModel], nn.Module] | None = None

    @property
    def layout(self) -> torch.memory_format:
        """The memory format of its convolutions' weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


def find_architecture(
    architecture: str | Architecture,
    architectures: Sequence[Architecture],
    others: Callable[[str], Sequence[Architecture]],
) -> Architecture:
    """Return the architecture ``NAME`` or ``GROUP/NAME``.

    Args:
        architecture: The name; an architecture is returned unchanged.
        architectures: The architectures of the run's group.
        others: Returns the architectures of another group, by its name.

    Raises:
        UsageError: The name is unknown.
    """
    if isinstance(architecture, Architecture):
        return architecture
    group, _, name = architecture.rpartition("/")
    known = {a.name: a for a in (others(group) if group else architectures)}
    if name not in known:
        raise unknown(f"architecture of {group}:" if group else "architecture", name, known)
    return known[name]


def places_of(
    architectures: Sequence[str], group: Sequence[Architecture], clients: int
) -> list[int]:
    """Return the number in the group of each client's architecture.

    Args:
        architectures: A name or number of the group for each client.
        group: The architectures of the group.
        clients: Clients M.

    Raises:
        UsageError: A name or number is unknown, or there are not M of them.
    """
    if len(architectures) != clients:
        raise UsageError(
            f"--architectures lists {len(architectures)}, and the run has {clients} clients",
            do=f"list {clients}, or give --clients {len(architectures)}",
        )
    names = [architecture.name for architecture in group]
    result = []
    for text in architectures:
        number = int(text) if text.isdecimal() and text not in names else -1
        if text not in names and not 0 <= number < len(names):
            listed = ", ".join(f"{n} {name}" for n, name in enumerate(names))
            error = unknown("architecture in --architectures:", text, names)
            raise UsageError(error.what, error.near, f"the group has: {listed}")
        result.append(names.index(text) if text in names else number)
    return result


def unset_model(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> SplitModel:
    """Build a model with uninitialised weights: fast, and without random draws."""
    with torch.random.fork_rng(devices=[]), _SkipInit():
        return architecture.build(sample, num_classes, feature_dim)


@lru_cache(maxsize=256)
def native_width(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> int:
    """Return the number of features that an extractor returns before any pooling.

    An extractor that ends in a layer to K features is built for ``feature_dim``.
    """
    model = unset_model(architecture, sample, num_classes, feature_dim).eval()
    with torch.no_grad():
        return torch.flatten(model.extractor(sample.zeros(1)), 1).shape[1]


@lru_cache(maxsize=256)
def has_batch_norm(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> bool:
    """Return True if a net has BatchNorm layers."""
    model = unset_model(architecture, sample, num_classes, feature_dim)
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def with_group_norm(architecture: Architecture) -> Architecture:
    """Return an architecture with `torch.nn.GroupNorm` in place of all BatchNorm layers.

    A layer of c channels has as many groups as the largest divisor of c that is at most 32, the
    default of Wu and He ("Group Normalization", ECCV 2018), and at most c/2: a map of one pixel
    has one number for each channel, and a group of one number is normalised to 0. All initial
    weights stay, γ and β too.
    """
    return replace(architecture, build=partial(_with_group_norm, architecture.build))


def _with_group_norm(
    build: Callable[[SampleSpec, int, int], SplitModel],
    sample: SampleSpec,
    num_classes: int,
    feature_dim: int,
) -> SplitModel:
    model = build(sample, num_classes, feature_dim)
    for parent in [*model.modules()]:
        for name, layer in parent.named_children():
            if isinstance(layer, _BatchNorm):
                channels = layer.num_features
                most = max(1, min(32, channels // 2))
                groups = max(n for n in range(1, most + 1) if channels % n == 0)
                norm = nn.GroupNorm(groups, channels, layer.eps, layer.affine)
                norm.weight, norm.bias = layer.weight, layer.bias
                setattr(parent, name, norm)
    return model


class _SkipInit(TorchFunctionMode):
    """Skips all in-place functions on parameters, so that they stay uninitialised."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the function returns
        keywords = kwargs or {}
        target = args[0] if args else keywords.get("tensor")
        name = getattr(function, "__name__", "")
        if isinstance(target, nn.Parameter) and name.endswith("_") and not name.endswith("__"):
            if name != "requires_grad_":
                return target
        return function(*args, **keywords)
