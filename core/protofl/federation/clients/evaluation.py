"""Evaluation of clients: accuracy or score, counts of metrics, and figures of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from protofl.errors import RunFailure, error_context
from protofl.federation.jobs.jobs import Evaluate, EvaluateReply
from protofl.federation.plan.plan import Plan
from protofl.functional.precision import has_float64
from protofl.hooks.plugin.members import Choice
from protofl.hooks.transport.rules import Fault
from protofl.hooks.views.client import Client
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.wire.payload import Payload
from protofl.system.device import autocast
from protofl.system.files.tables import finite, rounded
from protofl.system.files.tensors import shown_name
from protofl.system.transfers import to_host

CORRECT = "(correct)"
"""The key of rightly predicted samples among the counts of metrics, on their way from a device."""


def counted(metrics: Sequence[Choice], scores: Tensor, labels: Tensor) -> Payload:
    """Return the counts of the metrics for some samples, {metric: float64 tensor in host memory}.

    Args:
        metrics: The run's metrics.
        scores: Class scores [n, C] of samples, one at least; decoded ones (`Task.decoded`).
        labels: Their labels [n], or decoded ones [n, C].

    Raises:
        RunFailure: A metric failed, or counts in something else than a tensor.
    """
    return _wide(to_host(_counts(metrics, scores, labels)))


def _wide(counts: Mapping[str, Tensor]) -> Payload:
    return Payload({name: tensor.double() for name, tensor in counts.items()})


def _counts(metrics: Sequence[Choice], scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return `counted` as the metrics give it, where the scores are."""
    if not has_float64(scores.device):  # in which metrics count
        scores, labels = scores.cpu(), labels.cpu()
    counts_by_metric = {}
    for metric in metrics:
        with error_context(f"count of metric {metric.name}"):
            counts = metric.call("count", scores=scores, labels=labels)
        if not isinstance(counts, Tensor):
            raise RunFailure(
                f"count of metric {metric.name} returned a {type(counts).__name__}",
                do="return a tensor whose sum over clients means something",
            )
        counts_by_metric[metric.name] = counts.detach()
    return counts_by_metric


def figures_of(metrics: Sequence[Choice], clients: Mapping[int, Payload]) -> dict[str, Any]:
    """Return the metrics of a round over the evaluated clients.

    Args:
        metrics: The run's metrics.
        clients: {client: what it counts}.

    Returns:
        {figure: ``all`` over all test samples, ``mean`` and ``std`` over clients (of a figure with
        several numbers of each), and ``clients``, where it is one number}.

    Raises:
        RunFailure: A metric failed, or what it counts can't be summed.
    """
    metrics_by_name = {metric.name: metric for metric in metrics}
    names = dict.fromkeys(name for counts in clients.values() for name in counts.keys())
    return {
        name: _over_clients(
            metrics_by_name[name], {c: p[name] for c, p in clients.items() if name in p.keys()}
        )
        for name in names
    }


def counts_in(plan: Plan, job: Evaluate, reply: EvaluateReply) -> Payload:
    """Read what a client's test samples count, with features where they are wanted.

    Args:
        plan: The run.
        job: The evaluation.
        reply: Its reply.

    Raises:
        Fault: It holds something else.
    """
    if len(reply.blob) > plan.settings.upload_limit * 2**20:
        raise Fault("", "size", f"{len(reply.blob):,} bytes")
    try:
        result = Payload.from_bytes(reply.blob) if reply.blob else Payload()
    except RunFailure as error:
        detail = f"{len(reply.blob)} bytes that are not a payload ({error.what})"
        raise Fault("", "format", detail) from None
    metrics = {metric.name for metric in plan.metrics}
    for name in metrics & result.keys():
        if result[name].dtype != torch.float64:
            raise Fault(name, "dtype", f"as {result[name].dtype}, expected float64")
    if job.observe or job.predictions or not result.keys() <= metrics:
        from protofl.federation.clients.sample_outputs import check_outputs

        check_outputs(plan, job, reply, result, metrics)
    if reply.count and (missing := sorted(metrics - result.keys())):
        raise Fault("", "missing", f"nothing under {shown_name(missing[0])}")
    return result


def figures_of_server(
    metrics: Sequence[Choice], scores: Mapping[str, Tensor], labels: Tensor
) -> dict[str, Any]:
    """Return {metric: {``server``: {model: value}}} of global models on global test samples."""
    each = {model: counted(metrics, model_scores, labels) for model, model_scores in scores.items()}
    return {
        metric.name: {
            "server": {model: _plain(value_of(metric, c[metric.name])) for model, c in each.items()}
        }
        for metric in metrics
        if each
    }


def _over_clients(metric: Choice, counts: Mapping[int, Tensor]) -> dict[str, Any]:
    ordered = {client: counts[client] for client in sorted(counts)}
    shapes = {tuple(client_counts.shape): client for client, client_counts in ordered.items()}
    if len(shapes) > 1:
        (one, first), (other, second) = list(shapes.items())[:2]
        raise RunFailure(
            f"metric {metric.name} counts in shape {list(one)} for client {first} and in shape "
            f"{list(other)} for client {second}: they cannot be summed",
            do="the shape of what count returns may depend on C and on options alone",
        )
    whole = torch.stack([*ordered.values()]).sum(0)
    each = torch.stack([value_of(metric, client_counts) for client_counts in ordered.values()])
    there = each.isfinite()
    count = there.sum(0)
    kept = torch.where(there, each, 0.0)
    mean = kept.sum(0) / count
    std = (torch.where(there, each - mean, 0.0).square().sum(0) / count).sqrt()
    result = {"all": _plain(value_of(metric, whole)), "mean": _plain(mean), "std": _plain(std)}
    if each.dim() == 1:
        values = {str(c): finite(rounded(v)) for c, v in zip(ordered, each.tolist(), strict=True)}
        result["clients"] = values
    return result


def value_of(metric: Choice, counts: Tensor) -> Tensor:
    """Return the value of a metric as a tensor of one or several numbers."""
    with error_context(f"value of metric {metric.name}"):
        value = metric.call("value", counts=counts)
    try:
        return torch.as_tensor(value, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise RunFailure(
            f"value of metric {metric.name} returned a {type(value).__name__}",
            do="return a number, or a tensor or list of numbers; NaN where there is none",
        ) from None


def _plain(figure: Tensor) -> Any:  # noqa: ANN401 - a number, None, or lists of them
    """Return a value for JSON; None for NaN."""
    if figure.dim():
        return [_plain(entry) for entry in figure]
    return finite(figure.item())


def score(
    plan: Plan,
    state: ClientState,
    download: Payload,
    job: Evaluate,
) -> tuple[dict[str, tuple[float, int]], Payload]:
    """Count the correct predictions of a client, or its points (`Task.points`).

    The client is not changed.

    Args:
        plan: The run.
        state: The client.
        download: What it would download next; one that was fine-tuned has received it.
        job: After which round it is scored, whether it was fine-tuned, how many features are
            wanted, and whether predictions are.

    Returns:
        Of its ``test`` samples, its ``validation`` samples where any are held out, and its
        ``train`` and the ``balanced`` samples where they are measured; and what the test samples'
        scores count in the run's metrics, with features and predictions that are wanted.
    """
    train = state.train if "train-accuracy" in plan.settings.measure else None
    more = {"validation": state.validation, "train": train, "balanced": state.balanced}
    scored = {"test": state.test, **{name: s for name, s in more.items() if s is not None}}
    composition, client = plan.composition, Client(state, plan.composition.main)
    place = f"client {state.id}, evaluation of round {job.round + 1}"
    kept, predicted = list[Tensor](), list[Tensor]()
    counts, outputs = dict[str, Tensor](), dict[str, Tensor]()
    task, variance = plan.data.task, state.variance
    with state.unchanged() if composition.has("receive") else state.same_download():
        state.received, state.round = download, job.round
        with error_context(f"receive, {place}"):
            if not job.epochs:
                composition.lifecycle("receive", client=client)
        state.set_mode(False)
        correct = task.no_points(len(scored), plan.device)
        size = state.architecture.eval_batch
        with torch.no_grad(), error_context(f"inference, {place}"):
            for number, (name, samples) in enumerate(scored.items()):
                points = correct[number]
                state.scores_all_classes = name == "balanced"
                pairs = zip(samples.chunks(size), torch.split(samples.y, size), strict=False)
                for x, y in pairs:
                    with autocast(plan.settings.precision, plan.device):
                        scores = composition.call("inference", client=client, x=x)
                    points.add_(task.points(scores, y, variance))
                    if job.predictions and number == 0:
                        predicted.append(scores.argmax(1))
                    if plan.metrics and number == 0:
                        kept.append(scores.float() if scores.element_size() < 4 else scores)
        if kept:
            with torch.no_grad(), error_context(place):
                test_scores, labels = task.decoded(torch.cat(kept)), task.decoded(state.test.y)
                counts = _counts(plan.metrics, test_scores, labels)
        if job.observe or job.predictions:
            from protofl.federation.clients.sample_outputs import outputs_of

            with error_context(f"features, {place}"):
                outputs = outputs_of(plan, state, job, predicted)
        here = to_host({CORRECT: correct, **counts, **outputs})  # the only wait
    state.forget_scratch()
    sizes = (len(samples) for samples in scored.values())
    right = zip(here[CORRECT].tolist(), sizes, strict=True)
    metric_counts = _wide({name: here[name] for name in counts})
    metric_counts |= {name: here[name] for name in outputs}
    return dict(zip(scored, right, strict=True)), metric_counts
