"""Optimisers whose whole state is tensors in fixed memory.

They do what those of ``eager`` do, step counters included, so that a captured step can be replayed
and that one update serves a stack of clients, each at a step of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Groups = Sequence[tuple[Sequence[Tensor], float]]


class TensorUpdate:
    """SGD with or without momentum, or Adam, in place.

    Args:
        groups: Parameters with the learning rate of each group; with ``clients`` they have a
            leading axis over clients.
        optimizer: ``sgd`` or ``adam``.
        momentum: Momentum of SGD.
        clients: Clients along the leading axis; None where there is no such axis.
        clip: Largest norm of a group's gradient, of each client; 0 for any.

    Attributes:
        state: All that the optimiser remembers; zero at the start.
    """

    def __init__(
        self,
        groups: Groups,
        optimizer: str,
        momentum: float,
        clients: int | None = None,
        clip: float = 0.0,
    ) -> None:
        self._clip = clip
        self._group = [number for number, (parameters, _) in enumerate(groups) for _ in parameters]
        self._adam, self._momentum, self._stacked = optimizer == "adam", momentum, bool(clients)
        self._parameters = [p.detach() for parameters, _ in groups for p in parameters]
        self._lr = [lr for parameters, lr in groups for _ in parameters]
        kept = 2 if self._adam else int(momentum != 0)
        self._moments = [[torch.zeros_like(p) for p in self._parameters] for _ in range(kept)]
        self._counts: Tensor | None = None
        if self._adam and self._parameters:
            shape = (len(self._parameters), clients) if clients else (len(self._parameters),)
            self._counts = torch.zeros(
                shape, dtype=torch.float64, device=self._parameters[0].device
            )

    @property
    def state(self) -> list[Tensor]:
        """Moments and step counters."""
        counts = [] if self._counts is None else [self._counts]
        return [tensor for moment in self._moments for tensor in moment] + counts

    def at(self, start: int, stop: int) -> TensorUpdate:
        """The same optimiser for the clients from ``start`` to ``stop`` alone."""
        part = object.__new__(TensorUpdate)
        part._adam, part._momentum, part._stacked = self._adam, self._momentum, self._stacked
        part._lr, part._clip, part._group = self._lr, self._clip, self._group
        part._parameters = [p[start:stop] for p in self._parameters]
        part._moments = [[t[start:stop] for t in moment] for moment in self._moments]
        part._counts = None if self._counts is None else self._counts[:, start:stop]
        return part

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """One step; a parameter without a gradient stays as it is, and so does its state."""
        used = [i for i, g in enumerate(gradients) if g is not None]
        if not used:
            return
        found = [g for g in gradients if g is not None]
        parameters = [self._parameters[i] for i in used]
        if self._clip:
            found = self._clipped(used, found)
        if self._adam:
            self._step_adam(used, parameters, found)
            return
        if self._momentum:
            velocity = [self._moments[0][i] for i in used]
            torch._foreach_mul_(velocity, self._momentum)
            torch._foreach_add_(velocity, found)
            found = velocity
        rates = [self._lr[i] for i in used]
        for lr in dict.fromkeys(rates):
            own = [n for n, rate in enumerate(rates) if rate == lr]
            torch._foreach_add_([parameters[n] for n in own], [found[n] for n in own], alpha=-lr)

    def _step_adam(self, used: list[int], parameters: list[Tensor], found: list[Tensor]) -> None:
        assert self._counts is not None
        first = [self._moments[0][i] for i in used]
        second = [self._moments[1][i] for i in used]
        torch._foreach_lerp_(first, found, 0.1)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, found, found, 0.001)
        torch._foreach_add_([self._counts[i] for i in used], 1.0)
        # Bias corrections stay on the device, as the counters do: in float64, as Python has them.
        roots = (1 - torch.pow(0.999, self._counts)).sqrt()
        shares = 1 / (1 - torch.pow(0.9, self._counts))
        scale = torch._foreach_sqrt(second)
        pairs = list(zip(used, scale, strict=True))
        torch._foreach_div_(scale, [self._like(roots[i], p) for i, p in pairs])
        torch._foreach_add_(scale, 1e-8)
        step = torch._foreach_div(first, scale)
        factors = [self._like(shares[i] * -self._lr[i], p) for i, p in pairs]
        torch._foreach_mul_(step, factors)
        torch._foreach_add_(parameters, step)

    def _clipped(self, used: list[int], found: list[Tensor]) -> list[Tensor]:
        """Each group's gradients scaled down to the norm ``clip`` where theirs is larger."""
        clipped = list(found)
        for group in dict.fromkeys(self._group[i] for i in used):
            own = [n for n, i in enumerate(used) if self._group[i] == group]
            if self._stacked:
                squares = [found[n].square().flatten(1).sum(1) for n in own]
                norm = torch.stack(squares).sum(0).sqrt()
            else:
                parts = torch._foreach_norm([found[n] for n in own])
                norm = torch.linalg.vector_norm(torch.stack(parts))
            scale = (self._clip / (norm + 1e-6)).clamp(max=1)
            for n in own:
                clipped[n] = found[n] * self._like(scale, found[n])
        return clipped

    def _like(self, correction: Tensor, parameter: Tensor) -> Tensor:
        """A number, or one for each client, that a parameter can be multiplied with."""
        number = correction.to(parameter.dtype)
        return number.view(-1, *(1,) * (parameter.dim() - 1)) if self._stacked else number
