"""Toys for tests of batches and sweeps: methods with options, and runs of them."""

from __future__ import annotations

from runtime_toys import GIVEN, request_of_program, without_times
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.runs.request.request import Request
from protofl.system.options.parsing import parse_options
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun

BATCHES: list[int] = []
"""Sizes of the mini-batches that were trained."""


def is_round(event):
    return isinstance(event, events.OfRun) and isinstance(event.event, pf.events.RoundDone)


class Halted(BaseException):
    """Stands for ^C."""


class Halting:
    """Follows a batch and interrupts it after the n-th trained round."""

    def __init__(self, rounds):
        self.left = rounds

    def __call__(self, event):
        if is_round(event):
            self.left -= 1
            if self.left == 0:
                raise Halted


class Scaled:
    """Cross-entropy times an option; another option sets a round in which the server fails."""

    class Config(pf.Config):
        scale: float = pf.Field(1.0, ge=0, description="factor of the loss")
        fails: int = pf.Field(-1, description="the round in which the server fails")

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        BATCHES.append(len(batch.y))
        return {"ce": client.config.scale * cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        if server.round == server.config.fails:
            raise ValueError("so it was asked for")
        return {}


def request_of(method=Scaled, **options):
    """Return the request for a toy run."""
    options = {**GIVEN, "dry_run": False, **options}
    if isinstance(method, str):
        return request_of_program({**options, "method": method})
    # `request_of_program` does the same, but searches all installed plugins.
    given = parse_options({**options, "method": "scaled"})
    return Request(given, extra={("method", "scaled"): method})


def wanted(name, method=Scaled, **options):
    return BatchRun(name, request_of(method, **options))


def records(outcomes):
    """Return the records of runs without the fields that differ between identical runs."""
    return [without_times(outcome.run.rows) for outcome in outcomes]
