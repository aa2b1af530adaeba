"""Checks of ``--keep-weights``."""

from __future__ import annotations

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.system.formatting import count


def check_kept_weights(plan: Plan) -> None:
    """Check that a run has the rounds that ``--keep-weights`` names, and saves them.

    Raises:
        UsageError: It does not.
    """
    settings = plan.settings
    kind, _, text = settings.keep_weights.partition(":")
    asked, rounds = f"--keep-weights {settings.keep_weights}", settings.rounds
    if settings.checkpoint_every == 0:
        raise UsageError(
            f"{asked}: this run saves no round (--checkpoint-every off)",
            do="leave one of them out",
        )
    largest = int(text.split(",")[-1])
    if kind == "rounds" and largest > rounds:
        raise UsageError(
            f"{asked}: this run has no round {largest}",
            f"it has {count(rounds, 'round')}",
            f"name rounds up to {rounds}, or take more --rounds",
        )
    if kind == "every" and largest > rounds:
        raise UsageError(
            f"{asked}: this run has only {count(rounds, 'round')}, so nothing would be kept",
            do=f"take every:{rounds} or less, or more --rounds",
        )


def elsewhere(plan: Plan) -> UsageError:
    """Return the error of a run whose hosts keep the clients' files."""
    return UsageError(
        f"--keep-weights {plan.settings.keep_weights}: with --backend {plan.settings.backend} "
        "the clients' weights stay on the clients' own machines",
        "only the server's weights are in the run folder",
        "leave it out; a node can export its client as it was evaluated last: protofl node export",
    )
