"""Totals of a round, and its line of the record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protofl.federation.jobs.jobs import EvaluateReply, TrainReply
from protofl.hooks.wire.payload import Payload
from protofl.system.files.tables import finite, rounded

STAGES = ("setup", "train", "prototypes", "payload", "server", "evaluate", "checkpoint", "total")

MOST = 1000
"""Clients whose accuracies are in a line of the record, at most."""

VALIDATION, TUNED_VALIDATION = "validation_accuracy", "fine_tuned_validation_accuracy"

LOST = ("absent", "unfollowed", "unscored", "failures")

TRAFFIC = ("upload_floats", "upload_bytes", "download_floats", "download_bytes")


@dataclass
class Totals:
    """The totals of a round, from which its line of the record is made.

    Attributes:
        participants: Clients that take part, and answer.
        answered: Which, where these are not those that were drawn.
        absent: {client: why} of those that do not answer; no figure has them.
        unfollowed: {client: why} of those without the phases after the server's step.
        unscored: {client: why} of those that are not evaluated.
        failures: {client: error of a hook} of absent clients that failed.
        samples: Samples seen in local training.
        sums: Sums of the loss terms over them.
        traffic: {client: floats and bytes of its downloads and uploads}.
        seconds: Seconds by stage, those of clients summed over hosts.
        scores: {client: rightly predicted test samples (of another task their points), and all} of
            the evaluation.
        trained: {client: samples seen} of the clients that trained.
        train_scores: As ``scores``, of training samples, where they are measured.
        apart: {figure: as ``scores``} of what is scored beside the test samples of the clients
            that train: their validation samples, and unseen clients.
        counts: {client: what its test samples count in the run's metrics}.
        metrics: Figures of metrics and methods.
        measures: Further figures on request.
        malicious: Clients that are malicious.
    """

    participants: int = 0
    answered: list[int] | None = None
    absent: dict[int, str] = field(default_factory=dict)
    unfollowed: dict[int, str] = field(default_factory=dict)
    unscored: dict[int, str] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    traffic: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    scores: dict[int, tuple[float, int]] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)
    train_scores: dict[int, tuple[float, int]] = field(default_factory=dict)
    balanced_scores: dict[int, tuple[float, int]] = field(default_factory=dict)
    samples_per_class: int = 0
    apart: dict[str, dict[int, tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    counts: dict[int, Payload] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    measures: dict[str, Any] = field(default_factory=dict)
    malicious: frozenset[int] = frozenset()

    def spend(self, seconds: Mapping[str, float]) -> None:
        """Add seconds by stage."""
        for stage, value in seconds.items():
            self.seconds[stage] += value

    def leave_out(self, client: int, reason: str, error: str = "", stage: str = "train") -> None:
        """Mark a client as absent, so it counts as if it had not been asked; or as unscored."""
        if error:
            self.failures[client] = error
        if stage == "evaluate":
            self.unscored[client] = reason
            self.counts.pop(client, None)
            scores = (self.scores, self.train_scores, self.balanced_scores)
            for figure in (*scores, *self.apart.values()):
                figure.pop(client, None)
            return
        self.absent[client] = reason
        self.traffic.pop(client, None)
        self.trained.pop(client, None)

    def add_phases(self, later: Totals) -> None:
        """Add the totals of the phases after the server's step, except losses."""
        self.unfollowed = later.absent
        self.failures |= later.failures
        self.spend(later.seconds)
        for client, samples in later.trained.items():
            self.trained[client] = self.trained.get(client, 0) + samples
        for client, sent in later.traffic.items():
            self.traffic[client].update(sent)

    def add_losses(self, reply: TrainReply) -> None:
        """Add a client's local training; one that withholds its losses is not in the mean."""
        self.samples += reply.samples if reply.sums else 0
        for label, value in reply.sums.items():
            self.sums[label] = self.sums.get(label, 0.0) + value

    def add_score(self, client: int, reply: EvaluateReply, counts: Payload) -> None:
        """Add a client's evaluation, with what its blob counts."""
        self.scores[client] = reply.correct, reply.count
        if reply.train is not None:
            self.train_scores[client] = reply.train
        if reply.balanced is not None:
            self.balanced_scores[client] = reply.balanced
        if reply.validation is not None:
            self.apart[VALIDATION][client] = reply.validation
        if counts:
            self.counts[client] = counts

    def add_metrics(self, figures: Mapping[str, dict[str, Any]]) -> None:
        """Add metrics of clients or of the server."""
        for name, values in figures.items():
            self.metrics[name] = self.metrics.get(name, {}) | values

    def add_domains(self, domains: Sequence[str]) -> None:
        """Add the accuracy over the test samples of each domain's clients.

        Args:
            domains: The domain of each client; none for data without domains.
        """
        sums: dict[str, list[float]] = {}
        for client, pair in self.scores.items() if domains else ():
            domain_sums = sums.setdefault(domains[client], [0, 0])
            domain_sums[0], domain_sums[1] = domain_sums[0] + pair[0], domain_sums[1] + pair[1]
        if accuracies := {name: c / n for name, (c, n) in sorted(sums.items()) if n}:
            self.measures["domain_accuracy"] = accuracies

    @property
    def accuracy(self) -> dict[int, float]:
        """Accuracy of every evaluated client that has test samples, {client: accuracy}."""
        scored = sorted(self.scores.items())
        return {client: correct / count for client, (correct, count) in scored if count}

    def line(self, extra: Mapping[str, float | None]) -> dict[str, Any]:
        """Return the round's line of ``metrics.jsonl`` without trial and round."""
        measures = self.measures
        if self.balanced_scores:
            measures = {"global_samples_per_class": self.samples_per_class} | measures
            measures = _accuracy(self.balanced_scores, "global_accuracy") | measures
        if self.train_scores:
            measures = _accuracy(self.train_scores, "train_accuracy") | measures
        # Losses are means over the samples of the round.
        terms = {label: value / max(self.samples, 1) for label, value in self.sums.items()}
        each = by_client(self.accuracy)
        absent = {
            **{name: by_client(getattr(self, name)) for name in LOST},
            "skipped_uploads": sorted(c for c, why in self.absent.items() if why == "skipped"),
        }
        honest = {c: score for c, score in self.scores.items() if c not in self.malicious}
        return {
            **_accuracy(self.scores, "test_accuracy"),
            **self._apart_line(),
            "train_loss": finite(sum(terms.values())),
            "loss_terms": {label: finite(terms[label]) for label in sorted(terms)},
            **{name: sum(sent[name] for sent in self.traffic.values()) for name in TRAFFIC},
            "participants": self.participants,
            "evaluated": len(self.scores),
            **({"client_accuracies": each} if 0 < len(each) <= MOST else {}),
            **({} if self.answered is None else {"answered": self.answered}),
            **{key: value for key, value in absent.items() if value},
            **({"malicious": sorted(self.malicious)} if self.malicious else {}),
            **(_accuracy(honest, "honest_accuracy") if self.malicious else {}),
            "extra": dict(extra),
            **({"metrics": self.metrics} if self.metrics else {}),
            **({"measures": measures} if measures else {}),
            "seconds": {stage: rounded(self.seconds[stage]) for stage in STAGES},
        }

    def _apart_line(self) -> dict[str, Any]:
        """Return further accuracies, and the accuracy of each unseen client."""
        line: dict[str, Any] = {}
        for name, scores in self.apart.items():
            line |= _accuracy(scores, name)
            if name not in (VALIDATION, TUNED_VALIDATION) and len(scores) <= MOST:
                each = {c: correct / count for c, (correct, count) in scores.items()}
                line[f"client_{name.replace('accuracy', 'accuracies')}"] = by_client(each)
        return line


def by_client(values: Mapping[int, Any]) -> dict[str, Any]:
    """Return values by client as JSON has them, clients ascending."""
    return {str(client): value for client, value in sorted(values.items())}


def accuracy_over_clients(scores: Sequence[tuple[float, int]]) -> tuple[float, float, float] | None:
    """Return the accuracy over the samples of all clients, and its mean and spread over clients.

    Args:
        scores: Of each client the test samples that it predicts correctly, and all.

    Returns:
        The accuracy over all samples; the mean of the clients' accuracies; and their population
        standard deviation. Clients without samples don't count; None if no client has any.
    """
    shares = [correct / count for correct, count in scores if count]
    if not shares:
        return None
    correct, count = (sum(each) for each in zip(*scores, strict=True))
    mean = sum(shares) / len(shares)
    deviation = (sum((share - mean) ** 2 for share in shares) / len(shares)) ** 0.5
    return correct / count, mean, deviation


def _accuracy(scores: Mapping[int, tuple[float, int]], name: str) -> dict[str, Any]:
    """Return the accuracy over all samples, its mean over clients and its deviation."""
    accuracies = accuracy_over_clients([scores[client] for client in sorted(scores)])
    names = (name, f"client_{name}", f"{name}_std")
    return dict(zip(names, accuracies or (None, None, None), strict=True))
