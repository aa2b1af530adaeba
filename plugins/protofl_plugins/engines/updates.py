"""The optimisers of all engines: SGD, with or without momentum, and Adam.

They do the arithmetic of `torch.optim` (see the tests), whose first optimiser costs a process most
of a second and 150 MB, in a few operations for all parameters. Their whole state can be tensors, so
that a captured step can be replayed and one update serves a stack of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import protofl as pf
import torch
from torch import Tensor
from torch.linalg import vector_norm

Groups = Sequence[tuple[Sequence[Tensor], float]]


class Update:
    """w ← w − η·g, or with momentum v ← m·v + g, w ← w − η·v, or Adam, in place.

    Adam has β = (0.9, 0.999) and ε = 1e-8 (Kingma and Ba, Algorithm 1).

    Args:
        job: Names the optimiser, its momentum, and the largest norm of each group's gradient.
        groups: Parameters with a learning rate for each group, the job's or copies of them; with
            ``clients`` they have a leading axis over clients.
        fixed: Count Adam's steps on the device, so that a captured step can be replayed.
        clients: Clients along the leading axis, each at a step of its own; 0 for no such axis.
    """

    def __init__(
        self, job: pf.TrainJob, groups: Groups, *, fixed: bool = False, clients: int = 0
    ) -> None:
        self._parameters = [p.detach() for own, _ in groups for p in own]
        self._lr = [lr for own, lr in groups for _ in own]
        self._group = [number for number, (own, _) in enumerate(groups) for _ in own]
        self._adam, self._momentum, self._clip = job.optimizer == "adam", job.momentum, job.clip
        self._clients, count = clients, len(self._parameters)
        kept = 2 if self._adam else int(job.momentum != 0)
        self._moments = [[torch.zeros_like(p) for p in self._parameters] for _ in range(kept)]
        self._counts: list[int] | Tensor = [0] * count
        if self._adam and (fixed or clients):
            shape = (count, clients) if clients else (count,)
            self._counts = torch.zeros(shape, dtype=torch.float64, device=job.device)

    @property
    def state(self) -> list[Tensor]:
        """Moments, and counters that are on the device; zero at the start."""
        counts = [self._counts] if isinstance(self._counts, Tensor) else []
        return [tensor for moment in self._moments for tensor in moment] + counts

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor | None], clients: slice | None = None) -> None:
        """One step, of these clients alone; a parameter without a gradient stays as it is."""
        used = [i for i, g in enumerate(gradients) if g is not None]
        found = [g for g in gradients if g is not None]
        if not used:
            return
        if self._clip:
            found = self._clipped(used, found)
        parameters, *moments = (
            [each[i] if clients is None else each[i][clients] for i in used]
            for each in (self._parameters, *self._moments)
        )
        if self._adam:
            first, second = moments
            torch._foreach_lerp_(first, found, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, found, found, 0.001)
            scale = torch._foreach_sqrt(second)
            roots, factors = self._corrections(used, clients)
            torch._foreach_div_(scale, roots)
            torch._foreach_add_(scale, 1e-8)
            if isinstance(self._counts, list):
                torch._foreach_addcdiv_(parameters, first, scale, factors)
            else:
                step = torch._foreach_div(first, scale)
                torch._foreach_mul_(step, factors)
                torch._foreach_add_(parameters, step)
            return
        if self._momentum:
            (velocity,) = moments
            torch._foreach_mul_(velocity, self._momentum)
            torch._foreach_add_(velocity, found)
            found = velocity
        rates = [self._lr[i] for i in used]
        for lr in dict.fromkeys(rates):
            own = [n for n, rate in enumerate(rates) if rate == lr]
            torch._foreach_add_([parameters[n] for n in own], [found[n] for n in own], alpha=-lr)

    def _corrections(self, used: list[int], clients: slice | None) -> tuple[list[Any], list[Any]]:
        """√(1 − 0.999ᵗ) and −η/(1 − 0.9ᵗ) for each parameter, which is now at its step t."""
        if isinstance(self._counts, list):
            for i in used:
                self._counts[i] += 1
            roots = [(1 - 0.999 ** self._counts[i]) ** 0.5 for i in used]
            return roots, [-self._lr[i] / (1 - 0.9 ** self._counts[i]) for i in used]
        counts = self._counts if clients is None else self._counts[:, clients]
        torch._foreach_add_([counts[i] for i in used], 1.0)
        squares, shares = (1 - torch.pow(0.999, counts)).sqrt(), 1 / (1 - torch.pow(0.9, counts))
        factors = [self._like(shares[i] * -self._lr[i], i) for i in used]
        return [self._like(squares[i], i) for i in used], factors

    def _clipped(self, used: list[int], found: list[Tensor]) -> list[Tensor]:
        """Each group's gradients scaled down to the norm ``clip`` where theirs is larger."""
        clipped = list(found)
        for group in dict.fromkeys(self._group[i] for i in used):
            own = [n for n, i in enumerate(used) if self._group[i] == group]
            if self._clients:
                norms = [vector_norm(found[n].flatten(1), dim=1) for n in own]
            else:
                norms = [*torch._foreach_norm([found[n] for n in own])]
            # No look at the norm: nothing waits for the device.
            scale = (self._clip / (vector_norm(torch.stack(norms), dim=0) + 1e-6)).clamp(max=1)
            for n in own:
                clipped[n] = found[n] * self._like(scale, used[n])
        return clipped

    def _like(self, number: Tensor, i: int) -> Tensor:
        """A number, or one for each client, to multiply a parameter with."""
        parameter = self._parameters[i]
        number = number.to(parameter.dtype)
        return number.view(-1, *[1] * (parameter.dim() - 1)) if self._clients else number
