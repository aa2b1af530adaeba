"""A frozen net with low-rank adapters (LoRA; Hu et al., ICLR 2022).

A client's weights are the adapters alone: all clients of a process share one frozen net.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, linear

from protofl_plugins.models.frozen import Frozen
from protofl_plugins.models.low_rank import Factors
from protofl_plugins.models.masked import unmask

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Layers = Literal["linear", "all"]
Sizes = dict[str, tuple[int, int]]
"""{name of a weight: its rows and columns}."""


def matrices(net: nn.Module, layers: Layers, targets: Sequence[str] = ()) -> Sizes:
    """Return the weights of a net that get an adapter, with rows and columns.

    Args:
        net: The net.
        layers: ``linear``: linear layers and the inputs of attention; ``all``: convolutions too, as
            matrices out × (in·k·k).
        targets: Ends of the paths of layers, such as ``query``; other layers get none. ``all``: all
            layers. Empty: the ``usual_targets`` of a part of the net that has such, otherwise all.
    """
    result = {}
    usual = (getattr(module, "usual_targets", ()) for module in net.modules())
    ends = tuple(f".{target}" for target in targets or next(filter(None, usual), ()))
    takes_all = not ends or ".all" in ends
    for path, module in net.named_modules():
        name = ""
        if isinstance(module, nn.Linear) or (layers == "all" and isinstance(module, CONVOLUTIONS)):
            name = "weight"
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            name = "in_proj_weight"
        if name and (takes_all or f".{path}".endswith(ends)):
            weight = cast(Tensor, getattr(module, name))
            result[f"{path}.{name}".lstrip(".")] = (len(weight), weight[0].numel())
    return result


def thawed(net: nn.Module) -> nn.Module:
    """Return a net whose frozen blocks are ordinary modules again, so that they have names."""
    if isinstance(net, Frozen):
        return net.on(torch.empty(0).device)
    for path, module in [*net.named_modules()]:
        if isinstance(module, Frozen):
            net.set_submodule(path, module.on(torch.empty(0).device))
    return net


class Adapted(nn.Module):
    """A frozen net f whose weights W are W + s·(M + B·A).

    The net is in eval mode, so BatchNorm uses the statistics that it has.

    Args:
        net: The net; one with equal weights replaces it where there is one.
        sizes: Maps the net to the weights that get an adapter, see `matrices`.
        rank: r.
        scale: s.
        draw: ``draw(columns)`` returns the first A, [r, columns]; B begins at 0.
        merges: Has M, [rows, columns] of each weight; else M = 0.
        train_a: A is trained; else it stays as it was drawn.
    """

    def __init__(
        self,
        net: nn.Module,
        sizes: Callable[[nn.Module], Sizes],
        rank: int,
        scale: float,
        draw: Callable[[int], Tensor],
        *,
        merges: bool,
        train_a: bool = True,
    ) -> None:
        super().__init__()
        unmask(net)  # adapters learn beside the whole net
        net = _shared(thawed(net))
        self.frozen, self.scale, self.sizes = Frozen(net), scale, sizes(net)
        self.a, self.b = nn.ParameterList(), nn.ParameterList()
        for name, (rows, columns) in self.sizes.items():
            like = net.get_parameter(name)
            self.a.append(nn.Parameter(draw(columns).to(like), requires_grad=train_a))
            self.b.append(nn.Parameter(like.new_zeros(rows, rank)))
        self.has_merged = merges
        for place, (rows, columns) in enumerate(self.sizes.values() if merges else ()):
            self.register_buffer(f"merged_{place}", self.b[place].new_zeros(rows, columns))

    def adapters(self) -> dict[str, Factors]:
        """Return the parameters {name: B, A}, without copies."""
        return {name: Factors(b, a) for name, b, a in zip(self.sizes, self.b, self.a, strict=True)}

    def merged(self) -> dict[str, Tensor]:
        """Return {name: M}, without copies."""
        return {name: self.get_buffer(f"merged_{n}") for n, name in enumerate(self.sizes)}

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        net, changed = self.frozen.on(x.device), []
        M = self.merged() if self.has_merged else {}
        weights = {n: net.get_parameter(n) + self.scale * _like(M[n], net, n) for n in M}
        for name, adapter in self.adapters().items():
            layer = net.get_submodule(name.rpartition(".")[0])
            branch = _branch(layer, adapter, self.scale)
            if branch is None:
                W = weights.get(name, net.get_parameter(name))
                weights[name] = W + self.scale * _like(adapter.b @ adapter.a, net, name)
            else:
                vars(layer)["forward"] = branch
                changed.append(layer)
        try:
            return cast(Tensor, functional_call(net, weights, (x,)))
        finally:
            for layer in changed:
                del layer.forward


def _like(matrix: Tensor, net: nn.Module, name: str) -> Tensor:
    """Return a matrix in the shape of a weight."""
    return matrix.reshape(net.get_parameter(name).shape)


def _branch(layer: nn.Module, adapter: Factors, scale: float) -> Callable[[Tensor], Tensor] | None:
    """Return what a layer computes with an adapter, W·x + s·B·(A·x); None if it must be W + s·B·A.

    A convolution has A as its kernels to r channels, and B as 1 × 1 kernels from them.
    """
    if type(layer) is nn.Linear:
        return lambda x: (
            nn.Linear.forward(layer, x) + scale * linear(linear(x, adapter.a), adapter.b)
        )
    if type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
        kernels = adapter.a.reshape(adapter.rank, *layer.weight.shape[1:])

        def convolution(x: Tensor) -> Tensor:
            inner = conv2d(x, kernels, None, layer.stride, layer.padding, layer.dilation)
            change = conv2d(inner, adapter.b[:, :, None, None])
            return nn.Conv2d.forward(layer, x) + scale * change

        return convolution
    return None


_nets: WeakValueDictionary[str, nn.Module] = WeakValueDictionary()


def _shared(net: nn.Module) -> nn.Module:
    """Return the net of this process with these layers and weights; this one if it is the first."""
    if any(net is known for known in _nets.values()):  # a net that is frozen already
        return net
    digest = hashlib.sha256(repr(net).encode())
    for name, tensor in net.state_dict().items():
        about = f"{name} {tensor.dtype} {tensor.device} {[*tensor.shape]} {tensor.stride()}"
        digest.update(about.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return _nets.setdefault(digest.hexdigest(), net)
