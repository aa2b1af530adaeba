"""Prototypes with differential privacy, for frozen extractors.

A client's prototype of class c is a sum over its own samples, so the Gaussian mechanism applies
(Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, App. A):

    z̄   = f(x) · min(1, C / ‖f(x)‖)                                clipped feature
    S^c = Σ_{x of class c} z̄ + N(0, σ_s² C² I)                      noisy sum
    n^c = |D^c| + N(0, σ_c²)                                        noisy count
    P^c = S^c / max(n^c, 1)                                         sent if n^c ≥ a threshold

Sums and counts of **all** classes get noise, also of classes that the client does not have, and
only the noisy count decides which classes are sent. So the classes reveal no more than the counts.
Neighbours differ in one sample that is added to or removed from one client. `accountant` has ε.

A client counts a release for every round so far (`protofl_privacy.budget`). So ε is exact for full
participation, and an upper bound otherwise. A client whose budget is spent sends no rows.

**Frozen extractors only** (``models.frozen`` or ``models.keep_features``). A trained extractor
depends on all samples in every step, so features of other samples change with a sample, and the
sum's sensitivity is not bounded by C: no noise on the prototypes alone gives a guarantee.

**Not covered**: what a run reveals beside the upload. Every client reports its loss, its numbers of
samples and its accuracy. **A simulation's noise protects no client**: it is drawn from the seed, so
that runs can be repeated. In a deployment it comes from the node's secret
(`pf.Client.secret_stream`). It lies on a grid, so the last bits of a sum tell nothing (`grid`).
Features are float32 and are computed in batches: their rounding may depend on other samples, about
10⁻⁷ of C, which the sensitivity leaves out.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import torch
from torch import Tensor

import protofl as pf
from protofl_privacy import accountant, grid
from protofl_privacy.budget import BudgetConfig, Budgeted, View

COVERED = {"prototypes", "classes", "counts", "prototypes.classes", "counts.classes"}
"""Keys that the noisy release replaces."""


WITHOUT_NOISE = {
    "mixture_": "it has no bound for what one sample changes in a fitted mixture",
    "ridge": "it has no bound for what one sample changes in a regression",
    "feature_sums": "moments with noise may be those of no covariance, and then the head means "
    "nothing, so noise on them is not offered",
}
"""Reasons why keys get no noise, by the start of the key."""

COUNT_SHARE = 0.2
"""Part of the budget for counts; the rest is for sums."""


class DPPrototypes(Budgeted):
    """Prototypes as noisy sums with ε and δ per client, for frozen extractors (dp-prototypes)."""

    name = "dp-prototypes"
    draws_secretly = True
    check_options: ClassVar[dict[str, float]] = {"noise": 1.0, "least": 1.0}
    changes_counts = True
    replaces_uploads = True
    hides_samples_later = (
        "it would change the noisy upload by what is exact, so the upload would have no guarantee"
    )

    class Config(BudgetConfig):
        """Options."""

        clip: float = pf.Field(1.0, gt=0, description="C, largest norm of a feature")
        least: float = pf.Field(
            None,
            ge=0,
            description="smallest noisy count of a class that is sent. None: twice the deviation "
            "of its noise",
        )

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Frozen extractors with kept features, one class per sample, and a budget."""
        reasons = []
        if trained := [a.name for a in run.architectures if a.precomputed is None]:
            way = "freeze it: --set models.frozen=FILE, written by protofl export for such a net"
            way += " that public samples have trained"
            if run.group.startswith(("torchvision:", "hf-text:")):
                way = "freeze it: --set models.freeze=all --set models.keep_features=true"
                way += " --set models.projection=false"
            elif ":" in run.group:
                way = way.replace("freeze it:", "freeze another net: --models cnn4")
            reasons.append(
                f"the extractor of {trained[0]} is trained, so features depend on all samples in "
                f"every step, and noise on the prototypes alone guarantees nothing; {way}"
            )
        if run.sample.task.name != "classification":
            reasons.append("a sample must have one class; with several it changes several sums")
        return reasons + self.without_budget(run, config)

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client: pf.Client[Config]) -> Generator[None, pf.Payload, pf.Payload]:
        """Replace prototypes and counts by a noisy release."""
        payload = yield
        _check(client, payload)
        if self.is_spent(client, client.round + 1):
            # Only in the dry run, or if a server goes on where the trial should have ended.
            none = torch.zeros(client.num_classes, dtype=torch.bool, device=client.device)
            rows = torch.zeros(client.num_classes, client.feature_dim, device=client.device)
            sent = pf.class_rows(none, prototypes=rows, counts=none.long())
        else:
            z, y = client.train_features()
            sent = release(z, y, client, self.noise_multiplier(client))
        if "counts" not in payload.keys():
            del sent["counts"]
        return sent

    def cost(self, view: View, noise: float, rounds: int) -> float:
        """Return ε of a client after a release in each of some rounds."""
        return accountant.epsilon_of(noise, rounds, view.config.delta)

    def calibrated(self, view: View) -> float:
        """Return the noise multiplier with which the last round spends the budget exactly."""
        return accountant.noise_for(view.config.epsilon, view.rounds, view.config.delta)


def _check(client: pf.Client[Any], payload: pf.Payload) -> None:
    """Refuse uploads with more than prototypes, and extractors that are trained."""
    if others := [key for key in payload.keys() if key not in COVERED]:
        only = "only prototypes and counts get noise, so the upload would have no guarantee"
        starts = [start for start in WITHOUT_NOISE if any(key.startswith(start) for key in others)]
        raise pf.UsageError(
            f"dp-prototypes: the upload has {', '.join(others[:3])}",
            "; ".join([only, *(WITHOUT_NOISE[start] for start in starts)]),
            "take a method that sends prototypes alone (fedproto, fedtgp)",
        )
    if "prototypes" not in payload.keys():
        raise pf.UsageError("dp-prototypes: the upload has no prototypes")
    extractor = client.module("extractor")
    if any(parameter.requires_grad for parameter in extractor.parameters()):
        raise pf.UsageError(
            "dp-prototypes: a layer after the frozen net is trained, so features depend on all "
            "samples",
            do="leave the projection out: --set models.projection=false",
        )


def release(
    features: Tensor, labels: Tensor, client: pf.Client[DPPrototypes.Config], noise: float
) -> pf.Payload:
    """Return a noisy release of a client.

    Args:
        features: f(x) [n, K] of its training samples.
        labels: Their classes [n].
        client: The client, for options and noise.
        noise: The noise multiplier σ.

    Returns:
        ``prototypes`` [m, K], ``classes`` [m] and ``counts`` [m] of the classes whose noisy count
        is large enough, perhaps none.
    """
    config, normal = client.config, client.secret_stream("release").normal
    noisy_sums, noisy_counts = noisy_sums_and_counts(
        features, labels, client.num_classes, noise, config.clip, COUNT_SHARE, normal
    )
    least = config.least
    if least is None:
        least = 2 * accountant.parts_of(noise, COUNT_SHARE)[1]
    known = (noisy_counts >= max(least, 1.0)).to(features.device)
    prototypes = noisy_sums / noisy_counts.clamp(min=1).unsqueeze(1)
    counts = noisy_counts.clamp(min=1).round().long().to(features.device)
    return pf.class_rows(known, prototypes=prototypes.to(features), counts=counts)


def noisy_sums_and_counts(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    noise: float,
    clip: float,
    count_share: float,
    normal: grid.Normal,
) -> tuple[Tensor, Tensor]:
    """Return the noisy sums [C, K] of clipped features and the noisy counts [C] of all classes.

    Both are float64, on the CPU if the device of the features has none.

    Args:
        features: f(x) [n, K].
        labels: Classes [n].
        num_classes: C.
        noise: The noise multiplier σ of both together.
        clip: Largest norm of a feature.
        count_share: Part of 1/σ² for the counts.
        normal: Draws the noise.
    """
    wide = pf.functional.in_float64(features)
    labels = labels.to(wide.device)
    of_sums, of_counts = accountant.parts_of(noise, count_share)
    clipped = grid.shares(wide, wide.norm(dim=1), clip, of_sums * clip)
    sums = wide.new_zeros(num_classes, wide.shape[1]).index_add_(0, labels, clipped)
    counts = torch.bincount(labels, minlength=num_classes).to(wide)
    return (
        grid.with_noise(sums, of_sums * clip, normal),
        grid.with_noise(counts, of_counts, normal),
    )
