"""Frozen blocks of nets, their weights files, and images as pretrained weights want them.

A frozen block is not a submodule, so optimisers, checkpoints, payloads and copies have only what is
trained. All clients of a process share one frozen block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.torchvision_import import import_torchvision


def blocks_of(net: nn.Module) -> list[str]:
    """Return the paths of a net's blocks with weights, in order.

    A block is a child of the net, or of a sequence of children.
    """
    import_torchvision()
    from torchvision.models.vision_transformer import Encoder  # only nets of torchvision have one

    result = []
    for name, child in net.named_children():
        if type(child) in (nn.Sequential, Encoder):
            result += [f"{name}.{path}" for path in blocks_of(child)]
        elif next(child.parameters(), None) is not None:
            result.append(name)
    return result


class Scaled(nn.Module):
    """Images of −1…1, which models of protofl get, as pretrained weights want them.

    Args:
        mean: Of each channel, of images in 0…1.
        deviation: Of each channel.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        middle, width = torch.tensor(mean), torch.tensor(deviation)
        self.register_buffer("factor", (0.5 / width).reshape(-1, 1, 1))
        self.register_buffer("shift", ((0.5 - middle) / width).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """B×channels×H×W → the same."""
        return x * self.factor + self.shift


class Frozen(nn.Module):
    """A module that is not trained, in eval mode; copies of this one share it.

    Args:
        module: The module.
        computed: True if rows B×K′ of floats are features that it has returned before, which pass
            unchanged.
        row: The shape of a sample, which is not such a row, if samples are rows of a table.
    """

    def __init__(
        self, module: nn.Module, *, computed: bool = False, row: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self._row = row
        self._shared = _Shared(module.eval().requires_grad_(False))
        self._computed = computed

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as nn.Module's
        """Return an attribute of the module, which the net around it may read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_shared"].any, name)

    def on(self, device: torch.device) -> nn.Module:
        """Return the module on a device."""
        return self._shared.on(device)

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's result."""
        if self._computed and x.ndim == 2 and x.is_floating_point() and x.shape[1:] != self._row:
            return x
        return cast(Tensor, self.on(x.device)(x))


class _Shared:
    """A module on each device that asks for it."""

    def __init__(self, module: nn.Module) -> None:
        first = next(chain(module.parameters(), module.buffers()), torch.empty(0))
        self._found = {first.device: module}

    @property
    def any(self) -> nn.Module:
        return next(iter(self._found.values()))

    def on(self, device: torch.device) -> nn.Module:
        if device not in self._found:
            self._found[device] = deepcopy(self.any).to(device)
        return self._found[device]

    def __deepcopy__(self, memo: object) -> _Shared:
        return self


# --- weights ----------------------------------------------------------------------------------


def absolute(value: Path | str | None) -> Path | str | None:
    """Return a path of an option as an absolute one, and other values unchanged."""
    return pf.expand_user(value).absolute() if isinstance(value, Path) else value


def file_of(net: str, names: Sequence[str], weights: Path | str | None) -> Path | None:
    """Return the weights file of a net, if it has one."""
    if not isinstance(weights, Path):
        return None
    if weights.is_dir():
        result = weights / f"{net}.safetensors"
        if not result.is_file():
            raise pf.UsageError(
                f"weights={weights} has no {result.name}",
                f"it has: {', '.join(sorted(f.name for f in weights.iterdir())[:10])}",
                "name each net's file NAME.safetensors",
            )
        return result
    if not weights.is_file():
        raise pf.UsageError(
            f"weights={weights} is not a file",
            do="give default, a safetensors file, or a folder with one of each net",
        )
    if len(names) > 1:
        raise pf.UsageError(
            f"weights={weights} is one file for {len(names)} nets",
            do="give a folder with NAME.safetensors of each net",
        )
    return weights


def read_weights(file: Path) -> Mapping[str, Tensor]:
    """Read a weights file.

    Raises:
        UsageError: It is damaged, or of another kind.
    """
    try:
        return cast(Mapping[str, Tensor], safetensors.torch.load_file(file))
    except (OSError, safetensors.SafetensorError) as error:
        raise pf.UsageError(
            f"weights={file} is not a safetensors file: {error}",
            do="write one of a .pth file: safetensors.torch.save_file(torch.load(PTH, "
            "weights_only=True), FILE)",
        ) from None


@torch.no_grad()
def load_weights(
    net: nn.Module, weights: Mapping[str, Tensor], left_out: tuple[str, ...], where: str
) -> None:
    """Copy pretrained weights into a net.

    Raises:
        UsageError: A tensor is missing, unknown, or has another shape.
    """
    targets = net.state_dict()  # no parameters: `unset_model` would leave those as they are
    kept = {name: w for name, w in weights.items() if not name.startswith(left_out)}
    missing = [n for n in targets if n not in kept and not n.endswith("num_batches_tracked")]
    unknown = [name for name in kept if name not in targets]
    if missing or unknown:
        what = f"{missing[0]} is missing" if missing else f"{unknown[0]} is unknown"
        longer = (name for name in unknown if missing and name.endswith(missing[0]))
        start = next(longer, "").removesuffix(missing[0] if missing else "")
        do = f"remove {start!r} from the names of the tensors" if start else ""
        raise pf.UsageError(f"{where}: {what}", do=do or "give the weights of this net")
    for name, tensor in kept.items():
        if tensor.shape != targets[name].shape:
            raise pf.UsageError(
                f"{where}: {name} has the shape {list(tensor.shape)}, "
                f"and the net has {list(targets[name].shape)}",
                do="give the weights of this net for such samples"
                + ": --set models.min_side=224 enlarges smaller images" * bool(left_out),
            )
        if not torch.isfinite(tensor).all():
            raise pf.UsageError(f"{where}: {name} has NaN or infinite values")
        targets[name].copy_(tensor)


# --- frozen extractors ------------------------------------------------------------------------


def frozen_part(model: pf.models.SplitModel) -> nn.Module:
    """Return what maps samples to features that are not trained."""
    extractor = model.extractor
    return extractor[0] if isinstance(extractor, nn.Sequential) else extractor


def check_kept(freeze: str | int) -> None:
    """Refuse ``keep_features`` of an extractor that is trained."""
    if freeze != "all":
        raise pf.UsageError(
            f"keep_features needs freeze=all, and freeze is {freeze}",
            do="give --set models.freeze=all, or leave keep_features out",
        )


def with_frozen_extractor(
    net: pf.models.Architecture, names: Sequence[str], weights: Path
) -> pf.models.Architecture:
    """Return the architecture with an extractor from a file, whose features are computed once."""
    file = file_of(net.name, names, weights)
    return replace(net, build=partial(_frozen_model, net, file), precomputed=frozen_part)


def _frozen_model(
    net: pf.models.Architecture,
    file: Path | None,
    sample: pf.datasets.SampleSpec,
    num_classes: int,
    feature_dim: int,
) -> pf.models.SplitModel:
    """Return a model with a freshly drawn head on the extractor of a file."""
    model = net.build(sample, num_classes, feature_dim)
    if torch.empty(0).device.type == "meta":  # only sizes are asked for
        return model
    assert file is not None
    found, start = read_weights(file), "weights/model.extractor."  # as protofl export names it
    weights = {k.removeprefix(start): t for k, t in found.items() if k.startswith(start)}
    load_weights(model.extractor, weights or found, (), f"weights={file} for {net.name}")
    with torch.no_grad():
        width = model.extractor.eval()(sample.zeros(1)).flatten(1).shape[1:]
    if width == sample.shape:
        raise pf.UsageError(
            f"frozen={file}: samples and features of {net.name} both are {width[0]} numbers",
            do="take a net with another number of features",
        )
    model.extractor = Frozen(model.extractor, computed=True, row=sample.shape)
    return model
