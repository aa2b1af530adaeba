"""Local training with differential privacy: DP-SGD.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1, on each client:

    B_t  = each sample of the client with probability q                  Poisson sampling
    g_i  = ∇_w ℓ(w_t; x_i, y_i)                                          of one sample alone
    ḡ_i  = g_i · min(1, C / ‖g_i‖)                                       clipped
    g̃_t  = (Σ_{i in B_t} ḡ_i + N(0, σ² C² I)) / B                        noisy mean
    w    ← one step of the run's optimiser with g̃_t

Neighbours differ in one sample that is added to or removed from one client. Everything that the
server may see of n, the client's number of samples, must be noisy or public. So q is an option, a
round has epochs · round(1/q) steps, rounded up, whatever n is, and B is ``--batch-size`` and not
q·n. Momentum, weight decay, Adam, ``--clip`` and schedules of learning rates work on g̃, and cost
nothing. All parameters of a phase, also those of a method's own modules, are clipped together.
`accountant` has ε after T steps.

**Covered** is everything that is computed from weights, from downloads and from public data:
``model/*``, ``head/*``, ``extractor/*``, adapters, updates of them, and scores of public samples.
The transform hides the samples from all other plugins (``hides_samples``). So a method that reads
them elsewhere than in its loss (prototypes, class counts, margins) stops before training with an
error that names what it reads. ``samples`` is 1 in all uploads, and means of clients are uniform.

**Per-sample gradients** are computed by `torch.func`: the gradient of a batch of one sample, mapped
over samples. So no sample can have an influence on the gradient of another. BatchNorm is refused:
its statistics are those of a batch. If torch cannot map a net, samples go one by one.

**Not covered**: what a run reveals beside the upload, and simulations (see
`protofl_privacy.dp_prototypes`); rounding of a sample's float32 gradient that depends on the other
samples of its chunk, about 10⁻⁶ of C; initial weights, which must not come from the same samples;
and several runs or trials, whose ε add up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

import protofl as pf
from protofl_privacy import accountant, grid
from protofl_privacy.budget import BudgetConfig, Budgeted, View

Gradients: TypeAlias = tuple[dict[str, Tensor], dict[str, Tensor]]
"""{name of a parameter: gradients [b, …]} of b samples, and {label of a loss term: values [b]}."""


class DPSGD(Budgeted):
    """Local training with ε and δ per client: clipped gradients and noise (dp-sgd)."""

    name = "dp-sgd"
    draws_secretly = True
    check_options: ClassVar[dict[str, float]] = {"noise": 1.0, "rate": 0.5}
    hides_samples = (
        "what comes of it gets no noise, so the upload would have no guarantee; methods that send "
        "weights alone have one (lg-fedavg, fedavg, fedper)"
    )

    class Config(BudgetConfig):
        """Options."""

        rate: float = pf.Field(
            0.1,
            gt=0,
            le=1,
            description="q, probability of a sample to be in a step; an epoch has 1/q steps",
        )
        clip: float = pf.Field(1.0, gt=0, description="C, largest norm of a sample's gradient")
        chunk: int = pf.Field(
            16, ge=1, description="samples whose gradients are in memory at the same time"
        )

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """A budget, and samples that are prepared one by one."""
        return self.without_budget(run, config)

    @pf.hookimpl
    def train(
        self, client: pf.Client[Config], job: pf.backends.TrainJob
    ) -> dict[str, float] | None:
        """Take the noisy steps of a phase on private samples."""
        if job.phase.data == "public":
            return None
        _check(job)
        if not job.checks and self.is_spent(client, client.round + 1):
            return {}  # a server goes on where the trial should have ended: the weights stay
        config, samples, whole = client.config, client.train, job.whole()
        for module in (job.model, *whole.slots.children()):  # also with few samples: n is private
            module.train(any(p.requires_grad for p in module.parameters()))
        _check_layers(whole)
        gradients, optimizer = PerSample(job), job.torch_optimizer()
        chance, noise = (
            client.secret_stream(f"{job.phase.name}/{of}") for of in ("batch", "noise")
        )
        deviation = self.noise_multiplier(client) * config.clip
        losses, count = dict[str, Tensor](), 0
        for _ in range(1 if job.checks else steps_of(config.rate, job.epochs)):
            rows = poisson_sample(len(samples), config.rate, chance.uniform)
            if job.checks:  # the dry run: a step with two samples
                rows = torch.arange(min(2, len(samples)))
            job.lap("data")
            sums = {
                name: pf.functional.in_float64(torch.zeros_like(p))
                for name, p in gradients.trained.items()
            }
            for chunk in torch.split(rows, config.chunk) if len(rows) else ():
                index = chunk.to(samples.y.device)
                each, terms = gradients.of(samples.inputs(chunk), samples.y[index], index)
                for name, total in clipped_sums(each, config.clip, deviation).items():
                    sums[name] += total
                for label, values in terms.items():
                    losses[label] = losses.get(label, 0) + values.sum()
            count += len(rows)
            job.lap("backward")
            for name, parameter in gradients.trained.items():
                noisy = grid.with_noise(sums[name], deviation, noise.normal)
                parameter.grad = (noisy / job.batch_size).to(parameter)
            for group, _ in job.groups if job.clip else ():
                nn.utils.clip_grad_norm_(group, job.clip)
            optimizer.step()
            optimizer.zero_grad()
            job.lap("update")
        job.notes += [UNIFORM, *gradients.notes]
        return {label: float(s) / count * sum(job.sizes) for label, s in losses.items()}

    def cost(self, view: View, noise: float, rounds: int) -> float:
        """Return ε of a client after the steps of some rounds."""
        config, steps = view.config, rounds * _steps_of_round(view)
        return accountant.epsilon_of_steps(noise, config.rate, steps, config.delta)

    def calibrated(self, view: View) -> float:
        """Return the smallest noise multiplier with which all rounds cost at most the budget."""
        config, steps = view.config, view.rounds * _steps_of_round(view)
        return accountant.noise_for_steps(config.epsilon, config.rate, steps, config.delta)


UNIFORM = (
    "dp-sgd: numbers of samples are private, so all clients have the same weight in means, and the "
    "length of a step does not depend on them"
)


def steps_of(rate: float, epochs: float) -> int:
    """Return the steps of some epochs, rounded up; one epoch has 1/q steps, rounded."""
    return ceil(Fraction(str(epochs)) * max(1, round(1 / rate)))


def _steps_of_round(view: View) -> int:
    rate, phases = view.config.rate, (p for p in view.phases if p.data == "private")
    return sum(steps_of(rate, phase.epochs or 0) for phase in phases)


# --- what is refused ------------------------------------------------------------------------------


def _check(job: pf.backends.TrainJob) -> None:
    """Refuse what gives other plugins access to samples, or changes samples.

    Raises:
        UsageError: With the reason, and what to do.
    """
    methods = " and ".join(dict.fromkeys(method for method, _ in job.loss.kind))
    if job.after_batch is not None:
        raise pf.UsageError(
            f"dp-sgd: {methods} collects values of batches during training (after_batch)",
            DPSGD.hides_samples,
            "leave --with dp-sgd out, or take another method",
        )
    if job.phase.rows is not None:
        raise pf.UsageError(
            f"dp-sgd: the phase {job.phase.name!r} of {methods} trains on chosen samples",
            "the choice gets no noise",
            "leave --with dp-sgd out, or take another method",
        )
    if job.augment:
        raise pf.UsageError(
            "dp-sgd does not shift and flip images (--augment)", do="leave --augment out"
        )


def _check_layers(whole: nn.Module) -> None:
    """Refuse layers that mix samples.

    Raises:
        UsageError: Names the layer, and what to choose instead.
    """
    for name, layer in whole.named_modules():
        keeps = isinstance(layer, _NormBase) and layer.track_running_stats
        if layer.training and (keeps or isinstance(layer, _BatchNorm)):
            raise pf.UsageError(
                f"dp-sgd: {name.removeprefix('model.')} is a {type(layer).__name__}",
                "its statistics are those of a batch, so a sample changes the gradients of others",
                "take nets without BatchNorm (--models cnn4, htcnn8, mlp), or pre-trained nets "
                "that are frozen (--set models.freeze=all)",
            )


# --- a step ---------------------------------------------------------------------------------------


def poisson_sample(count: int, rate: float, uniform: Callable[[int], Tensor]) -> Tensor:
    """Return the rows that are drawn, each of ``count`` rows with probability ``rate``; ascending.

    Args:
        count: n.
        rate: q.
        uniform: Draws numbers [count] in [0, 1).
    """
    return (uniform(count) < rate).nonzero().flatten()


def clipped_sums(
    gradients: Mapping[str, Tensor], clip: float, deviation: float
) -> dict[str, Tensor]:
    """Return the sums over samples of clipped gradients, for noise; as float64.

    A gradient that is not finite counts as 0.

    Args:
        gradients: {name of a parameter: gradients [b, …] of b samples}.
        clip: C, the largest norm of a sample's gradient over all parameters together.
        deviation: Deviation σ·C of the noise, whose grid the sums have.
    """
    wide = {name: pf.functional.in_float64(each) for name, each in gradients.items()}
    norms = torch.stack([each.flatten(1).norm(dim=1) for each in wide.values()]).norm(dim=0)
    finite = norms.isfinite()
    return {
        name: grid.shares(each[finite], norms[finite], clip, deviation).sum(0)
        for name, each in wide.items()
    }


class PerSample:
    """Gradients of single samples.

    Args:
        job: The client; its modules are in the right mode.

    Attributes:
        trained: {name: parameter} that are trained.
        notes: Lines for the user.
    """

    def __init__(self, job: pf.backends.TrainJob) -> None:
        self._job, self._whole = job, job.whole()
        self._terms, self._constants = job.loss_on(self._whole).terms, job.loss.constants(0)
        groups = {id(p) for group, _ in job.groups for p in group}
        self.trained = {n: p for n, p in self._whole.named_parameters() if id(p) in groups}
        self.notes: list[str] = []
        # The dry run looks into losses, which a map hides.
        self._mapped = not job.checks

    def of(self, x: Tensor, y: Tensor, index: Tensor) -> Gradients:
        """Return gradients and loss terms.

        Args:
            x: Inputs [b, …].
            y: Labels [b, …].
            index: Rows [b] of the samples.
        """
        weights = {name: p.detach() for name, p in self.trained.items()}
        if self._mapped:
            try:
                return self._map(weights, x, y, index)
            except Exception as error:  # one that is the method's own comes again
                self._mapped = False
                why = (str(error).strip() or type(error).__name__).splitlines()[0]
                self.notes.append(
                    f"dp-sgd: {self._job.architecture} is trained sample by sample: {why[:160]}"
                )
        return self._one_by_one(weights, x, y, index)

    def _map(self, weights: dict[str, Tensor], x: Tensor, y: Tensor, index: Tensor) -> Gradients:
        of_one: Callable[..., Any] = grad(self._loss, has_aux=True)
        with warnings.catch_warnings():
            # Operations without a batching rule are carried out one by one: slow and right.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            mapped = vmap(of_one, in_dims=(None, 0, 0, 0), randomness="different")
            result: Gradients = mapped(weights, x, y, index)
        return result

    def _one_by_one(
        self, weights: dict[str, Tensor], x: Tensor, y: Tensor, index: Tensor
    ) -> Gradients:
        """Return the same without `torch.func`, by a backward pass for each sample."""
        rows: list[Sequence[Tensor]] = []
        values: dict[str, list[Tensor]] = {}
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        for one in zip(x, y, index, strict=True):
            loss, terms = self._loss(leaves, *one)
            found = torch.autograd.grad(loss, [*leaves.values()], materialize_grads=True)
            rows.append([gradient.detach() for gradient in found])
            for label, value in terms.items():
                values.setdefault(label, []).append(value.detach())
        stacked = map(torch.stack, zip(*rows, strict=True))
        gradients = dict(zip(leaves, stacked, strict=True))
        return gradients, {label: torch.stack(each) for label, each in values.items()}

    def _loss(
        self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor, index: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of one sample, and its terms. Buffers stay what they are."""
        model, job = self._whole.model, self._job
        batch = pf.Batch(x[None], y[None], index[None], job.phase.name)

        def inside() -> tuple[Tensor, dict[str, Tensor]]:
            with job.autocast():
                z = model.features(batch.x)
                scores = model.head(z)
            wide = [t if t.dtype == torch.float64 else t.float() for t in (z, scores)]
            terms = self._terms(batch, pf.Output(*wide), self._constants)
            return torch.stack([*terms.values()]).sum(), terms

        buffers = {name: buffer.clone() for name, buffer in self._whole.named_buffers()}
        found: Any = functional_call(self._whole, {**buffers, **weights}, (inside,))
        loss, terms = found
        return loss, {label: value.detach() for label, value in terms.items()}
