"""The reference engine: one step after the other, as PyTorch runs them.

Parameters are updated group by group in a few operations. Fully connected layers can be updated
without their gradient being stored (`protofl_plugins.engines.fused`), and 1×1 convolutions of few
images are one product (`protofl_plugins.engines.pointwise`): the same sums, rounded differently in
the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import protofl as pf
import torch
from torch import Tensor

from protofl_plugins.engines.fused import FusedLinears
from protofl_plugins.engines.pointwise import PointwiseConvolutions

Gradients = Sequence[Tensor | None]


class Eager:
    """One step after the other, as PyTorch runs them; the reference for all other engines."""

    class Config(pf.Config):
        """Options."""

        fused: bool = pf.Field(
            True,
            description="update fully connected layers by the factors of their gradients, where "
            "the optimiser is plain SGD; false stores each gradient first, as losses need that "
            "take gradients themselves",
        )

    @pf.hookimpl
    def train(self, job: pf.TrainJob, config: Config) -> dict[str, float]:
        """Train on every mini-batch; gradients and updates without per-parameter Python."""
        model = job.model
        parameters = [p for group, _ in job.groups for p in group]
        update = make_update(job)
        history: dict[str, list[Tensor]] = {}
        sizes: dict[str, list[int]] = {}
        with FusedLinears(job if config.fused else None) as fused, PointwiseConvolutions(job):
            for step, batch in enumerate(job.batches()):
                job.lap("data")
                with job.autocast():
                    features = model.features(batch.x)
                    logits = model.head(features)
                output = pf.Output(wide(features), wide(logits))
                job.lap("forward")
                terms = job.loss(batch, output, step)
                total = reduce(add, terms.values())
                job.lap("loss")
                gradients = fused.gradients(total, parameters)
                job.lap("backward")
                if job.after_batch is not None:
                    job.after_batch(batch, output)
                with torch.no_grad():
                    update(gradients)
                fused.update()
                for label, term in terms.items():
                    history.setdefault(label, []).append(term.detach())
                    sizes.setdefault(label, []).append(len(batch.x))
                job.lap("update")
        if not history:
            return {}
        sums = [
            torch.stack(values).double() @ values[0].new_tensor(sizes[label]).double()
            for label, values in history.items()
        ]
        return dict(zip(history, torch.stack(sums).tolist(), strict=True))


def wide(x: Tensor) -> Tensor:
    """What autocast computed in 16 bits as float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def make_update(job: pf.TrainJob) -> Callable[[Gradients], None]:
    """The optimiser of a phase, fresh: all parameters of a group in a few fused operations.

    The first `torch.optim` optimiser of a process costs most of a second and 150 MB; these do
    the same arithmetic (see the tests) without.
    """
    kind = _Adam if job.optimizer == "adam" else _SGD
    steps = [kind(parameters, lr, job.momentum) for parameters, lr in job.groups]
    counts = [len(parameters) for parameters, _ in job.groups]

    def update(gradients: Gradients) -> None:
        start = 0
        for step, count in zip(steps, counts, strict=True):
            own = gradients[start : start + count]
            step(clipped(own, job.clip) if job.clip else own)
            start += count

    return update


def clipped(gradients: Gradients, most: float) -> Gradients:
    """Gradients scaled down to the Euclidean norm ``most`` where theirs together is larger."""
    found = [g for g in gradients if g is not None]
    if not found:
        return gradients
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(found)))
    scale = (most / (norm + 1e-6)).clamp(
        max=1
    )  # no look at the value: nothing waits for the device
    return [None if g is None else g * scale for g in gradients]


class _SGD:
    """w ← w − η·g, or with momentum v ← m·v + g, w ← w − η·v."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, momentum: float) -> None:
        self._parameters, self._lr, self._momentum = parameters, lr, momentum
        self._velocity: dict[int, Tensor] = {}

    def __call__(self, gradients: Gradients) -> None:
        used, found = _present(self._parameters, gradients)
        if not found:
            return
        if self._momentum:
            old = [self._velocity.get(id(p)) for p in used]
            seen = [v for v in old if v is not None]
            if seen:
                torch._foreach_mul_(seen, self._momentum)
                known = [g for g, v in zip(found, old, strict=True) if v is not None]
                torch._foreach_add_(seen, known)
            for p, g, v in zip(used, found, old, strict=True):
                if v is None:
                    self._velocity[id(p)] = g.clone()
            found = [self._velocity[id(p)] for p in used]
        torch._foreach_add_(used, found, alpha=-self._lr)


class _Adam:
    """Adam with β = (0.9, 0.999) and ε = 1e-8 (Kingma and Ba, Algorithm 1)."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, momentum: float) -> None:
        self._parameters, self._lr = parameters, lr
        self._moments: dict[int, tuple[Tensor, Tensor]] = {}
        self._steps: dict[int, int] = {}

    def __call__(self, gradients: Gradients) -> None:
        used, found = _present(self._parameters, gradients)
        if not found:
            return
        for p in used:
            if id(p) not in self._moments:
                self._moments[id(p)] = (torch.zeros_like(p), torch.zeros_like(p))
            self._steps[id(p)] = self._steps.get(id(p), 0) + 1
        first = [self._moments[id(p)][0] for p in used]
        second = [self._moments[id(p)][1] for p in used]
        torch._foreach_lerp_(first, found, 0.1)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, found, found, 0.001)
        steps = [self._steps[id(p)] for p in used]
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, [(1 - 0.999**t) ** 0.5 for t in steps])
        torch._foreach_add_(scale, 1e-8)
        torch._foreach_addcdiv_(used, first, scale, [-self._lr / (1 - 0.9**t) for t in steps])


def _present(
    parameters: Sequence[Tensor], gradients: Gradients
) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that the loss reaches, and their gradients."""
    pairs = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    return [p for p, _ in pairs], [g for _, g in pairs]
