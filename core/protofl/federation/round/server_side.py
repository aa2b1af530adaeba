"""The server's part of a round: its hooks, its downloads, and the check of uploads."""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from protofl import functional
from protofl.data.batches import Samples
from protofl.errors import error_context
from protofl.federation.clients.evaluation import figures_of_server
from protofl.federation.jobs.jobs import TrainReply
from protofl.federation.plan.plan import Plan
from protofl.federation.round.known_sizes import KnownSizes
from protofl.federation.round.round_stages import Stages
from protofl.federation.round.round_totals import Totals
from protofl.hooks.models.optimisers import Groups, make_optimizer
from protofl.hooks.transport.payload_validation import UploadValidation
from protofl.hooks.transport.rules import (
    Fault,
    diverged,
    expect_finite,
    refused_upload,
    skipped_upload,
)
from protofl.hooks.views.server import Server
from protofl.hooks.views.server_state import ServerState
from protofl.hooks.wire.payload import Payload
from protofl.system.clocks import UNPROFILED, NoProfile
from protofl.system.device import compute_threads
from protofl.system.files.tables import finite
from protofl.system.machine import time_limit
from protofl.system.options.settings import Settings
from protofl.system.randomness import global_stream
from protofl.system.transfers import as_floats, has_streams, keep_apart

AHEAD = 256 << 20
"""Bytes of different downloads that are prepared for an evaluation before it begins."""


class ServerSide:
    """The server of a trial, and the hooks that run there.

    Args:
        plan: The run.
        trial: The trial.
        profile: Takes where the time goes.

    Attributes:
        state: State of the server.
        validation: The validation of uploads.
        sizes: Checks the clients' numbers of samples.
    """

    validation: UploadValidation
    sizes: KnownSizes

    def __init__(self, plan: Plan, trial: int, profile: NoProfile = UNPROFILED) -> None:
        self._plan, self._trial = plan, trial
        self.state = _fresh(plan, trial, profile)
        threads = compute_threads(plan.settings.server_threads)
        stream = global_stream(self.state.seed, "setup-server")
        with threads, stream, self._within("setup_server"):
            started = plan.composition.lifecycle("setup_server", server=self.view)
        for owner, global_state in started.items():
            near, do = "nothing has been sent yet", "look at its set-up, and at its options"
            expect_finite(global_state or {}, f"setup_server of {owner}", near, do)
            # The main method comes first, and what it starts with stays: a donor's server_train
            # does not replace the global state before it has run.
            existing = self.state.global_state.keys()
            fresh = {
                k: v for k, v in (global_state or {}).items() if k == "classes" or k not in existing
            }
            if fresh.keys() - {"classes"}:
                self.state.global_state.merge(fresh)

    @contextmanager
    def _within(self, place: str) -> Iterator[None]:
        """Add the place to errors of a hook, and limit its time."""
        with time_limit(self._plan.settings.job_limit, place), error_context(place):
            yield

    def build_validation(self) -> None:
        """Build payload validation from what the server has learned about uploads."""
        state, settings = self.state, self._plan.settings
        declared = self._plan.composition.declarations("upload_payload")
        limits = settings.upload_limit, settings.upload_bound
        codec, dry = self._plan.composition.upload, state.dry
        inspect = partial(self._plan.composition.lifecycle, "check_upload")
        self.sizes = KnownSizes(self._plan, self._trial, state.learned)
        arguments = state.info, declared, state.learned, limits, codec, self.view
        self.validation = UploadValidation(
            *arguments, dry=dry, inspect=inspect, together=self._faults
        )

    def _faults(self, uploads: Mapping[int, Payload]) -> dict[int, Fault]:
        """Return the faults of uploads beside what is known of their clients, and each other.

        Norms are compared if bad uploads are left out. Simulated attacks are for the defences.
        """
        settings, result = self._plan.settings, self.sizes.faults(uploads)
        if settings.on_bad_upload == "skip" and not settings.malicious and not self.state.dry:
            from protofl.federation.round.outliers import unusual_norms

            result |= unusual_norms({c: u for c, u in uploads.items() if c not in result})
        return result

    @property
    def view(self) -> Server:
        """The server's view for the main method."""
        return Server(self.state, self._plan.composition.main)

    def begin(self, number: int) -> None:
        """Start a round."""
        state, settings = self.state, self._plan.settings
        state.round, state.lr = number, settings.lr * self._plan.rate(number)
        state.evaluates = self._plan.is_due(number, settings.eval_every)

    def downloads(
        self, clients: Iterable[int], totals: Totals, *, counted: bool = True
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the encoded downloads of a stage; equal tensors are encoded once.

        Args:
            clients: The clients; those of one architecture are adjacent, because they often
                receive the same payload.
            totals: Takes seconds and, where these downloads count, floats and bytes.
            counted: Whether they count as traffic; those for an evaluation don't.
        """
        codec, last, floats, blob = self._plan.composition.download, Payload(), 0, b""
        for client in sorted(clients, key=self._plan.info.place_of):
            start = time.perf_counter()
            payload = self.next_download(client)
            same = payload.keys() == last.keys() and all(payload[k] is last[k] for k in last)
            if not same or codec.each:
                place = f"encode_download, client {client}, round {self.state.round + 1}"
                with self._within(place):
                    floats, blob = codec.pack(payload, server=self.view, client_id=client)
                last = payload
            if counted:
                sent = totals.traffic[client]
                sent["download_floats"] += floats
                sent["download_bytes"] += len(blob)
            totals.spend({"payload": time.perf_counter() - start})
            yield client, blob

    @torch.no_grad()
    def next_download(self, client: int) -> Payload:
        """Return what a client would download now, as it is before it is encoded."""
        with self._within(f"download_payload, client {client}, round {self.state.round + 1}"):
            arguments = {"server": self.view, "client_id": client}
            return Payload(self._plan.composition.call("download_payload", **arguments))

    def portions(self, clients: Iterable[int], totals: Totals) -> Iterator[dict[int, bytes]]:
        """Yield {client: download} for an evaluation, a limited number of bytes at a time."""
        held, last, portion = 0, b"", dict[int, bytes]()
        for client, blob in self.downloads(clients, totals, counted=False):
            held += len(blob) if blob is not last else 0
            portion[client] = last = blob
            if held > AHEAD:
                yield portion
                held, portion = 0, {}
        if portion:
            yield portion

    def learn(self, uploads: Mapping[int, Payload]) -> dict[str, Any]:
        """Run aggregation and training on the server; return the figures of ``--measure``."""
        state, composition, view = self.state, self._plan.composition, self.view
        with global_stream(state.seed, "server", state.round):
            with self._within(f"receive_uploads, round {state.round + 1}"):
                hook, expect, sent = "receive_uploads", self.validation.replaced.check, uploads
                uploads = composition.pass_on(hook, "uploads", uploads, expect, server=view)
                for client, upload in uploads.items():
                    upload.version = sent[client].version
                    upload.staleness = sent[client].staleness
            if not uploads:
                return {}
            for hook in ("server_aggregate", "server_train"):
                place = self._within(f"{hook}, round {state.round + 1}")
                with state.profile.span(hook, "server"), place:
                    update = composition.call(hook, server=view, uploads=uploads)
                    expect_finite(update, f"{hook} of {' and '.join(composition.makers(hook))}")
                state.global_state.merge(update)
        keep_apart(state.state)
        if "public-logits" not in self._plan.settings.measure:
            return {}
        from protofl.federation.round.public_logits import measured

        return measured(self._plan, self._trial, uploads)

    @torch.no_grad()
    def end_round(self, totals: Totals) -> dict[str, float | None]:
        """Return further figures for the record: the prototype margin, and figures of the methods.

        Args:
            totals: Takes the metrics of the methods' global models.
        """
        global_state, extra = self.state.global_state, dict[str, float | None]()
        if global_state.is_table("prototypes"):
            table, known = global_state.table("prototypes", self._plan.info.num_classes)
            extra["prototype_margin"] = finite(float(functional.nearest_margin(table, known)))
        extra |= self._server_accuracy(totals)
        with self._within(f"end_round, round {self.state.round + 1}"):
            ended = self._plan.composition.lifecycle("end_round", server=self.view)
        for figures in ended.values():
            extra |= {key: finite(value) for key, value in as_floats(figures or {}).items()}
        return extra

    def end_trial(self) -> str:
        """Return why the trial ends after this round; empty if it goes on."""
        with self._within(f"end_trial, round {self.state.round + 1}"):
            reasons = self._plan.composition.lifecycle("end_trial", server=self.view)
        return "; ".join(f"{owner}: {reason}" for owner, reason in reasons.items() if reason)

    def _server_accuracy(self, totals: Totals) -> dict[str, float | None]:
        """Return the accuracy of the methods' global models on global test samples, if any."""
        test = self.state.test
        wanted = self.state.evaluates and self._plan.settings.eval_server
        if test is None or not wanted:
            return {}
        with self._within(f"global_models, round {self.state.round + 1}"):
            models_by_method = self._plan.composition.lifecycle("global_models", server=self.view)
            each = [models for models in models_by_method.values() if models]
            start = time.perf_counter()
            scores = {name: scores_of(model, test) for name, model in ChainMap(*each).items()}
            totals.spend({"evaluate": time.perf_counter() - start})
            task, variance = self._plan.data.task, self._plan.variance(self._trial)
            decoded = {name: task.decoded(each) for name, each in scores.items()}
            labels = task.decoded(test.y)
            totals.add_metrics(figures_of_server(self._plan.metrics, decoded, labels))
            points = {name: task.points(each, test.y, variance) for name, each in scores.items()}
            return {**mean_accuracy(points, len(test), "server_test_accuracy")}


def _fresh(plan: Plan, trial: int, profile: NoProfile) -> ServerState:
    """Return the state of the server before its set-up."""
    layout = plan.info.architectures[0].channels_last
    split = plan.split(trial)
    rows = split.global_test
    test = None if rows is None else plan.samples(rows, layout, trial)
    return ServerState(
        info=plan.info,
        seed=plan.seed(trial),
        device=plan.device,
        lr=plan.settings.lr,
        new_optimizer=_optimizer(plan.settings),
        configs=plan.composition.configs,
        public=plan.public_samples(trial, layout),
        test=test,
        images=plan.images,
        profile=profile,
        dry=plan.dry,
        replays=plan.choices["engine"].replays and has_streams(plan.device) and not plan.dry,
    )


def _optimizer(settings: Settings) -> Callable[[Groups], Optimizer]:
    """Return what makes optimisers as clients have them in each round."""
    return partial(
        make_optimizer,
        settings.optimizer,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        options={**settings.options.get("optimizer", {})},
    )


def admit_uploads(
    replies: Mapping[int, TrainReply],
    number: int,
    totals: Totals,
    side: ServerSide,
    plan: Plan,
    stages: Stages,
) -> dict[int, Payload]:
    """Return the accepted uploads; a bad upload makes its client absent or stops the run.

    If bad uploads are left out, so are losses that nothing can be compared with: NaN, infinity, and
    means far above those of the other clients.

    Args:
        replies: {client: what its training came to}.
        number: The round.
        totals: Takes traffic, losses and seconds, and who is absent.
        side: The server; it validates uploads.
        plan: The run.
        stages: Tells the user lines.

    Raises:
        RunFailure: An upload is not as it should be, and the run is to stop then.
    """
    start = time.perf_counter()
    blobs = {client: reply.blob for client, reply in replies.items()}
    uploads, faults = side.validation.admit(blobs, plan.device)
    faults |= side.sizes.first_faults({client: replies[client] for client in uploads})
    uploads = {client: upload for client, upload in uploads.items() if client not in faults}
    totals.spend({"payload": time.perf_counter() - start})
    for client, upload in uploads.items():
        upload.version = number
        reply, sent = replies[client], totals.traffic[client]
        sent["upload_bytes"], sent["upload_floats"] = len(reply.blob), reply.floats
    book_losses({client: replies[client] for client in uploads}, number, totals, plan, stages)
    for client, fault in faults.items():
        if plan.settings.on_bad_upload == "stop":
            raise refused_upload(client, number, fault)
        stages.note(skipped_upload(client, number, fault))
        totals.leave_out(client, "skipped")
    return uploads


def book_losses(
    replies: Mapping[int, TrainReply], number: int, totals: Totals, plan: Plan, stages: Stages
) -> None:
    """Add the losses of clients to the totals; if bad uploads are left out, without odd ones.

    Args:
        replies: {client: what its training came to}.
        number: The round.
        totals: Takes the losses.
        plan: The run.
        stages: Tells the user lines.
    """
    odd: dict[int, str] = {}
    if plan.settings.on_bad_upload == "skip":
        from protofl.federation.round.outliers import odd_losses

        odd = odd_losses(replies)
    for client, reply in replies.items():
        for term in diverged(reply.sums):
            stages.note(f"client {client}: its {term} loss is NaN or infinite")
        if client in odd:
            description = f"client {client} reports {odd[client]} in round {number + 1}"
            stages.note(f"{description}: train_loss is without it")
        else:
            totals.add_losses(reply)


CHUNK = 128
"""Samples that are scored together; rounding depends on it, so it is fixed."""


@torch.no_grad()
def scores_of(model: nn.Module, samples: Samples) -> Tensor:
    """Return a model's class scores [n, C] of one or more samples; sets eval mode."""
    model.eval()
    return torch.cat([model(x) for x in samples.chunks(CHUNK)])


def mean_accuracy(each: Mapping[str, Tensor], count: int, name: str) -> dict[str, float]:
    """Return the mean accuracy of models as ``NAME``, and of several each as ``NAME.MODEL``.

    Args:
        each: {model: its points on the test samples, `Task.points`}.
        count: Test samples.
        name: The name of the figure.
    """
    points = as_floats({f"{name}.{model}": total for model, total in each.items()})
    shares = {model: total / count for model, total in points.items()}
    if not shares:
        return {}
    return {name: sum(shares.values()) / len(shares), **(shares if len(shares) > 1 else {})}
