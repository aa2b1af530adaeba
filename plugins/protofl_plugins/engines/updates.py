"""The optimisers of all engines: SGD, with or without momentum, and Adam; and torch's others.

The first two do the arithmetic of `torch.optim` (see the tests), whose first optimiser costs a
process most of a second and 150 MB, in a few operations for all parameters; on a GPU in one kernel
for all parameters with one learning rate (torch's ``fused=True``). Their whole state can be
tensors, so that a captured step can be replayed and one update serves a stack of clients. Other
optimisers are torch's own (`TorchUpdate`), for engines that train one client after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

import protofl as pf

Groups = Sequence[tuple[Sequence[Tensor], float]]

Norms = Mapping[int, Sequence[Tensor]]
"""Norms [] by group of gradients outside the group that count in its clipping."""


class Update:
    """w ← w − η·g, or with momentum v ← m·v + g, w ← w − η·v, or Adam, in place.

    Adam has β = (0.9, 0.999) and ε = 1e-8 (Kingma and Ba, Algorithm 1). Weight decay λ adds λ·w to
    the gradient, after clipping.

    Args:
        job: Names the optimiser, its momentum and weight decay, and the largest norm of each
            group's gradient.
        groups: Parameters with a learning rate for each group, the job's or copies of them; with
            ``clients`` they have a leading axis over clients.
        fixed: Count Adam's steps on the device, so that a captured step can be replayed; and where
            learning rates are others in other rounds, have them there (`set_rates`).
        clients: Clients along the leading axis, each at a step of its own; 0 for no such axis.
    """

    def __init__(
        self, job: pf.backends.TrainJob, groups: Groups, *, fixed: bool = False, clients: int = 0
    ) -> None:
        self._parameters = [p.detach() for parameters, _ in groups for p in parameters]
        self._rates: Tensor | None = None
        rates: Sequence[Any] = [lr for _, lr in groups]
        if fixed and job.scheduled:
            self._rates = torch.tensor(rates, dtype=torch.float64, device=job.device)
            rates = self._rates.unbind()
        self._lr = [
            lr for (parameters, _), lr in zip(groups, rates, strict=True) for _ in parameters
        ]
        self._decay = job.weight_decay or 0.0
        self._group = [number for number, (parameters, _) in enumerate(groups) for _ in parameters]
        self._adam, self._momentum, self._clip = job.optimizer == "adam", job.momentum, job.clip
        self._clients, count = clients, len(self._parameters)
        # A learning rate on the device would be read as float32, whatever the parameters are.
        self._fused = fuses(job.device) and not clients and self._rates is None
        kept = 2 if self._adam else int(job.momentum != 0)
        self._moments = [[torch.zeros_like(p) for p in self._parameters] for _ in range(kept)]
        self._counts: list[int] | Tensor = [0] * count
        if self._adam and (fixed or clients or self._fused):
            shape = (count, clients) if clients else (count,)
            dtype = torch.float32 if self._fused else torch.float64  # as torch's kernel reads it
            self._counts = torch.zeros(shape, dtype=dtype, device=job.device)

    def set_rates(self, rates: Sequence[float]) -> None:
        """Take other learning rates, one a group, where they are on the device."""
        if self._rates is not None:
            self._rates.copy_(torch.tensor(rates, dtype=torch.float64))

    @property
    def state(self) -> list[Tensor]:
        """Moments, and counters that are on the device; zero at the start."""
        counts = [self._counts] if isinstance(self._counts, Tensor) else []
        return [tensor for moment in self._moments for tensor in moment] + counts

    @property
    def memory(self) -> list[Tensor]:
        """All tensors besides parameters and gradients that a step reads."""
        return self.state + ([] if self._rates is None else [self._rates])

    @torch.no_grad()
    def __call__(
        self,
        gradients: Sequence[Tensor | None],
        clients: slice | None = None,
        norms: Norms = MappingProxyType({}),
    ) -> dict[int, Tensor]:
        """One step, of these clients alone; a parameter without a gradient stays as it is.

        Returns:
            What clipping left of each group's gradients, in 0…1; nothing without clipping.
        """
        used = [i for i, g in enumerate(gradients) if g is not None]
        present = [g for g in gradients if g is not None]
        shares: dict[int, Tensor] = {}
        if self._clip:
            present, shares = self._clipped(used, present, norms)
        if used and self._fused:
            self._fused_step(used, present)
        elif used:
            self._step(used, present, clients)
        return shares

    def _fused_step(self, used: list[int], gradients: list[Tensor]) -> None:
        """The same step in one kernel for all parameters of one learning rate and type."""
        alike: dict[Any, list[tuple[int, Tensor]]] = {}
        for i, gradient in zip(used, gradients, strict=True):
            parameter = self._parameters[i]
            if gradient.stride() != parameter.stride():  # which torch's kernels refuse
                gradient = torch.empty_like(parameter).copy_(gradient)
            alike.setdefault((self._lr[i], parameter.dtype), []).append((i, gradient))
        if isinstance(self._counts, Tensor):
            torch._foreach_add_([self._counts[i] for i in used], 1.0)
        for (lr, _), members in alike.items():
            parameters, *moments = (
                [each[i] for i, _ in members] for each in (self._parameters, *self._moments)
            )
            present = [gradient for _, gradient in members]
            if isinstance(self._counts, Tensor):
                first, second = moments
                torch._fused_adam_(
                    parameters,
                    present,
                    first,
                    second,
                    [],
                    [self._counts[i] for i, _ in members],
                    lr=lr,
                    beta1=0.9,
                    beta2=0.999,
                    eps=1e-8,
                    weight_decay=self._decay,
                    amsgrad=False,
                    maximize=False,
                )
            else:
                torch._fused_sgd_(
                    parameters,
                    present,
                    moments[0] if moments else [],
                    lr=lr,
                    momentum=self._momentum,
                    weight_decay=self._decay,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                    is_first_step=False,  # the momentum is 0 then: 0·m + g is g
                )

    def _step(self, used: list[int], gradients: list[Tensor], clients: slice | None) -> None:
        """The step of those parameters that have a gradient."""
        parameters, *moments = (
            [each[i] if clients is None else each[i][clients] for i in used]
            for each in (self._parameters, *self._moments)
        )
        if self._decay:
            gradients = [*torch._foreach_add(gradients, parameters, alpha=self._decay)]
        if self._adam:
            first, second = moments
            torch._foreach_lerp_(first, gradients, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, gradients, gradients, 0.001)
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
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        if self._rates is not None:
            steps = [g * self._lr[i].to(g.dtype) for i, g in zip(used, gradients, strict=True)]
            torch._foreach_sub_(parameters, steps)
            return
        rates = [self._lr[i] for i in used]
        for lr in dict.fromkeys(rates):
            same_rate = [n for n, rate in enumerate(rates) if rate == lr]
            torch._foreach_add_(
                [parameters[n] for n in same_rate], [gradients[n] for n in same_rate], alpha=-lr
            )

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

    def _clipped(
        self, used: list[int], gradients: list[Tensor], further: Norms
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Each group's gradients scaled down to the norm ``clip`` where theirs is larger."""
        clipped, shares = list(gradients), dict[int, Tensor]()
        for group in dict.fromkeys([*(self._group[i] for i in used), *further]):
            in_group = [n for n, i in enumerate(used) if self._group[i] == group]
            if self._clients:
                norms = [vector_norm(gradients[n].flatten(1), dim=1) for n in in_group]
            else:
                norms = [*torch._foreach_norm([gradients[n] for n in in_group])] if in_group else []
            norms += further.get(group, [])
            # No look at the norm: nothing waits for the device.
            scale = (self._clip / (vector_norm(torch.stack(norms), dim=0) + 1e-6)).clamp(max=1)
            shares[group] = scale
            for n in in_group:
                clipped[n] = gradients[n] * self._like(scale, used[n])
        return clipped, shares

    def _like(self, number: Tensor, i: int) -> Tensor:
        """A number, or one for each client, to multiply a parameter with."""
        parameter = self._parameters[i]
        number = number.to(parameter.dtype)
        return number.view(-1, *[1] * (parameter.dim() - 1)) if self._clients else number


def fuses(device: torch.device) -> bool:
    """Return True for a device on which one kernel updates all parameters."""
    return pf.backends.has_streams(device) and device.type in _get_fused_kernels_supported_devices()


class TorchUpdate:
    """One of torch's own optimisers, over a client's parameters.

    Args:
        job: Names the optimiser and its options, and the largest norm of each group's gradient.
    """

    def __init__(self, job: pf.backends.TrainJob) -> None:
        self._groups = [[*parameters] for parameters, _ in job.groups]
        self._optimizer, self._clip = job.torch_optimizer(), job.clip

    def __call__(
        self, gradients: Sequence[Tensor | None], *, norms: Norms = MappingProxyType({})
    ) -> dict[int, Tensor]:
        """One step; a parameter without a gradient stays as it is."""
        assert not norms, "no layer is updated beside one of torch's own optimisers"
        parameters = [p for group in self._groups for p in group]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self._groups if self._clip else ():
            torch.nn.utils.clip_grad_norm_(group, self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {}


def update_of(job: pf.backends.TrainJob) -> Update | TorchUpdate:
    """Return the update rule of a client that is trained alone."""
    return Update(job, job.groups) if job.plain else TorchUpdate(job)
