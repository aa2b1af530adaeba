"""Warm-up: terms that guide clients start with weight 0 and grow to their own weight.

    L_i = E ℓ + a_t·λ·R_i    a_t = min(1, t/W) in round t, from 0

Casado-Diez et al., "Closing the Alignment-Maturity Gap in Federated Prototype Learning", 2026
(arXiv 2606.02172), find that early alignment to immature prototypes suppresses local structure, and
raise the weight of alignment over the first rounds (FedSAP). We could read the abstract alone: the
straight line is ours, and FedSAP's second loss is not part of it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import protofl as pf


class WarmUp:
    """Raises the weight of guiding loss terms over the first rounds (after FedSAP, 2026)."""

    class Config(pf.Config):
        """Options."""

        rounds: int = pf.Field(
            10, ge=0, description="W, the first round with the whole weight; 0 changes nothing"
        )
        terms: str = pf.Field(
            "*", description="loss terms, with * and ? and commas between; ce keeps its weight"
        )

    @pf.hookimpl
    def loss_factors(self, client: pf.Client[Config], terms: tuple[str, ...]) -> dict[str, float]:
        """a_t."""
        config = client.config
        patterns = [pattern.strip() for pattern in config.terms.split(",")]
        chosen = [
            term
            for term in terms
            if term.split(".")[-1] != "ce" and any(fnmatchcase(term, p) for p in patterns)
        ]
        if not chosen:
            raise pf.UsageError(
                f"warm-up: no loss term matches terms={config.terms!r}",
                f"the run has {', '.join(terms)}, and ce keeps its weight",
            )
        a = min(1.0, client.round / config.rounds) if config.rounds else 1.0
        return dict.fromkeys(chosen, a)
