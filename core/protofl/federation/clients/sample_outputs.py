"""Features and predicted classes of test samples (``--observe``, ``--record-predictions``).

An evaluation sends them among the counts of metrics.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import Tensor

from protofl.federation.jobs.jobs import Evaluate, EvaluateReply
from protofl.federation.plan.plan import Plan
from protofl.hooks.transport.rules import Fault
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.wire.payload import Payload
from protofl.system.device import autocast
from protofl.system.randomness import random_stream

FEATURES, LABELS = "(features)", "(labels)"
"""Keys of features and labels among the counts of metrics, which have no such names."""

PREDICTED, TRUE = "(predicted)", "(true)"
"""Keys of predicted and true classes."""


def outputs_of(
    plan: Plan, state: ClientState, job: Evaluate, predicted: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the features and the predicted classes that are wanted of a client's test samples.

    Args:
        plan: The run.
        state: The client, in evaluation, with what it would download next.
        job: What is wanted.
        predicted: The predicted classes, in parts.
    """
    outputs = test_features(plan, state, job.observe) if job.observe else {}
    if job.predictions:
        kind = class_type(plan.info.num_classes)
        classes = torch.cat([*predicted]) if predicted else state.test.y[:0]
        outputs |= {PREDICTED: classes.to(kind), TRUE: state.test.y.to(kind)}
    return outputs


@torch.no_grad()
def test_features(plan: Plan, state: ClientState, most: int) -> dict[str, Tensor]:
    """Return features of some of a client's test samples, the same in every round.

    Args:
        plan: The run.
        state: The client, in evaluation, with what it would download next.
        most: Samples at most; which they are is drawn by the trial's seed and the client.

    Returns:
        ``(features)`` [n, K] float32 and ``(labels)`` [n].
    """
    drawn = random_stream(state.seed, "observed-samples", state.id)
    rows = torch.randperm(len(state.test), generator=drawn)[:most].sort().values
    chosen = state.test.at(rows.to(state.test.y.device))
    features = [torch.zeros(0, state.model.feature_dim)]
    for x in chosen.chunks(state.architecture.eval_batch):
        with autocast(plan.settings.precision, plan.device):
            features.append(state.model.features(x).float())
    return {FEATURES: torch.cat(features[1:] or features), LABELS: chosen.y}


def check_outputs(
    plan: Plan, job: Evaluate, reply: EvaluateReply, result: Payload, metrics: Container[str]
) -> None:
    """Check what a reply has beside the counts of metrics.

    Args:
        plan: The run.
        job: The evaluation.
        reply: Its reply.
        result: The content of its blob.
        metrics: Names of the run's metrics.

    Raises:
        Fault: It has something that is not wanted, or lacks what is.
    """
    for name in result.keys():
        if name not in metrics and name not in (FEATURES, LABELS, PREDICTED, TRUE):
            raise Fault(name, "names", "which the run does not count")
    features = [key in result for key in (FEATURES, LABELS)]
    if features != [bool(job.observe)] * 2:
        detail = "lacks features of test samples" if job.observe else "has features, not asked for"
        raise Fault("", "names", f"counts whose payload {detail}")
    if job.observe:
        _check_features(plan, result[FEATURES], result[LABELS], job.observe)
    predictions = [key in result for key in (PREDICTED, TRUE)]
    if predictions != [job.predictions] * 2:
        detail = "lacks predictions" if job.predictions else "has predictions, not asked for"
        raise Fault("", "names", f"counts whose payload {detail}")
    if job.predictions:
        _check_predictions(plan, result[PREDICTED], result[TRUE], reply)


def class_type(num_classes: int) -> torch.dtype:
    """Return the type in which predictions of C classes are sent and stored: uint8 or int32."""
    return torch.uint8 if num_classes <= 256 else torch.int32


def _check_predictions(plan: Plan, predicted: Tensor, true: Tensor, reply: EvaluateReply) -> None:
    """Check predicted and true classes, [n] each, of all test samples of a client.

    Raises:
        Fault: They have another form, or other hits than the reply counts.
    """
    most, expected = plan.info.num_classes, class_type(plan.info.num_classes)
    for name, classes in ((PREDICTED, predicted), (TRUE, true)):
        if classes.dtype != expected or classes.shape != (reply.count,):
            detail = f"as {classes.dtype} {list(classes.shape)}, expected {expected} [n]"
            raise Fault(name, "shape", detail)
        if not ((classes >= 0) & (classes < most)).all():
            raise Fault(name, "classes", f"out of 0 to {most - 1}")
    if int((predicted == true).sum()) != reply.correct:
        raise Fault(PREDICTED, "figures", "with other correct predictions than are counted")


def _check_features(plan: Plan, features: Tensor, labels: Tensor, most: int) -> None:
    """Check features [n, K] and labels [n] of at most so many test samples.

    Raises:
        Fault: They have another form.
    """
    fits = features.dim() == 2 and features.dtype == torch.float32 and len(features) <= most
    if not fits:
        detail = f"as {features.dtype} {list(features.shape)}, expected float32 [n, K]"
        raise Fault(FEATURES, "shape", detail)
    whole = labels.dtype == torch.int64 and labels.shape == features.shape[:1]
    if not whole or not ((labels >= 0) & (labels < plan.info.num_classes)).all():
        raise Fault(LABELS, "classes", f"as {labels.dtype} {list(labels.shape)}, or out of range")
