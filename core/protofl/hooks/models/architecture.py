"""Architectures of a model group: models that split into features and a head; unset copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from protofl.data.spec import SampleSpec
from protofl.errors import UsageError


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

    @property
    def layout(self) -> torch.memory_format:
        """The memory format of its convolutions' weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


def find_architecture(
    wanted: str | Architecture,
    own: Sequence[Architecture],
    others: Callable[[str], Sequence[Architecture]],
) -> Architecture:
    """The architecture that ``NAME``, or ``GROUP/NAME``, stands for.

    Args:
        wanted: The text; an architecture is returned as it is.
        own: Those of the run's group.
        others: Gives those of another group, by its name.

    Raises:
        UsageError: There is none of this name.
    """
    if isinstance(wanted, Architecture):
        return wanted
    group, _, name = wanted.rpartition("/")
    known = {a.name: a for a in (others(group) if group else own)}
    if name not in known:
        of = f" in {group}" if group else ""
        names = ", ".join(sorted(known))
        raise UsageError(f"there is no architecture {name!r}{of}", f"known: {names}")
    return known[name]


def unset_model(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> SplitModel:
    """A model whose weights are whatever their memory holds; quick, and draws nothing."""
    with torch.random.fork_rng(devices=[]), _SkipInit():
        return architecture.build(sample, num_classes, feature_dim)


class _SkipInit(TorchFunctionMode):
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
