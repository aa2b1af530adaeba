"""Trial of an engine before a run on a GPU: is it equal to ``eager``, and how long does it take?

A few clients of the run train for four short rounds on throw-away copies: one client of each
architecture at least, with the batch shapes of their own samples, several at the same time if the
engine trains groups. The rounds are the first two, one in the middle and the last one, so that
payloads have been sent and factors that depend on the round have changed. The results are compared
round by round; the seconds are those of the later rounds, and what the earlier ones took longer is
the engine's preparation.

**Rounding.** Training amplifies rounding. In a fresh ResNet with BatchNorm and batches of ten, a
change of the weights in the seventh digit changes the loss by 1 to 15 % within five steps at a rate
of 0.01, whatever the engine. So learning rates are small here (`RATE`), and how much rounding
changes a client's losses and updates is measured: ``eager`` trains a second time, with weights that
are rounded a little differently (`Rounded`). An engine may differ `MARGIN` times as much.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from protofl.data.batches import batch_bounds
from protofl.data.split import Split
from protofl.federation.clients.host import Host, chunks
from protofl.federation.clients.train_job import TrainJob
from protofl.federation.jobs.jobs import Job, Reply, Train, TrainReply
from protofl.federation.jobs.pool_interface import Presence
from protofl.federation.plan.plan import Plan
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.hooks.plugin.members import Choice
from protofl.runs.dry_run.short_rounds import for_dry_rounds

CLIENTS = 8
"""Clients of a trial, if the run has so many participants and no more architectures: as many as
train at the same time with the largest number of streams that gained anything."""

BATCHES = 4
"""Whole mini-batches of each client in a round of a trial; the client's own last one follows."""

SUM = 2.0**-14
"""Rounding of a float32 sum of a million terms in any order: √(2²⁰) · 2⁻²⁴.

The sums of weight gradients are the longest: over the places and samples of a batch. With n terms
the errors of the order of summation grow like √n (Higham and Mary, "A New Approach to Probabilistic
Rounding Error Analysis", SIAM J. Sci. Comput. 41, 2019).
"""

ROUNDING = {"float32": 2.0**-24, "tf32": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff of factors: half the distance of 1 to the next number with 23, 10 or 7 bits."""

RATE = 2.0**-13
"""Factor of learning rates in a trial: small enough that twenty steps don't multiply rounding (in a
ResNet-50, a step at a rate of 0.01 multiplies it by 1,600, and at this factor by 1.2), and large
enough that updates, some 1e-5 of the weights, are seen in float32."""

NOISE = 2.0**-18
"""Relative change of weights for the second trial of ``eager``: the error of a float32 sum of 4,096
terms, √(2¹²) · 2⁻²⁴, such as the outputs and gradients of a layer are."""

MARGIN = 6.0
"""How many times as much as rounding changed the trial of ``eager``, an engine may change it. Both
differences are single draws of about the same size: with the nets of `htfe8` on a CPU, sums in
another order changed a client's losses up to 2.5 times as much, and a tensor's update 2.1 times."""


def tolerance(steps: int, factors: str) -> float:
    """Return the relative difference that rounding causes after some steps, in a net that is tame.

    It is the least difference that is allowed; `Spread` has what was measured.

    Each step multiplies factors that are rounded to u (`ROUNDING`) and adds the products in float32
    (`SUM`), so a result has a relative error of at most max(u, `SUM`). Two engines round
    independently: √2 of it. The errors of k steps are independent too and add up like a random
    walk: √k. Together √(2k) · max(u, `SUM`).

    The margin is in u: it bounds the error of a factor, whose mean square is u²/3, and a loss is a
    mean over many. On an H200 (cnn4, TF32 in convolutions, 68 steps), equal engines differed by up
    to 0.0015 in a round's loss, wrong ones by at least 0.0075; this gives 0.0057.

    Args:
        steps: k, mini-batches on which the client has trained.
        factors: The coarsest type of factors, a key of `ROUNDING`.
    """
    return math.sqrt(2 * max(1, steps)) * max(ROUNDING[factors], SUM)


@dataclass(frozen=True)
class TrialRound:
    """A round of a trial.

    Attributes:
        number: The round of the run whose values it has.
        seconds: Seconds of training.
        steps: {client: mini-batches on which it has trained until the round's end}.
        sums: {client: {label: sum of the loss term over the samples}}.
    """

    number: int
    seconds: float
    steps: Mapping[int, int]
    sums: Mapping[int, Mapping[str, float]]


Updates = Mapping[int, Mapping[str, Tensor]]


@dataclass(frozen=True)
class EngineTrial:
    """The rounds of an engine.

    Attributes:
        rounds: The rounds.
        updates: {client: {name: change of a weight over all rounds}}, on the CPU.
        buffers: The same of buffers of real numbers, such as BatchNorm's means.
        notes: Lines of the engine, such as that another one trained a client.
    """

    rounds: Sequence[TrialRound]
    updates: Updates = field(default_factory=dict)
    buffers: Updates = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def steady(self) -> float:
        """Seconds of a round in which nothing is prepared: the shortest of the later ones."""
        return min(each.seconds for each in self.rounds[1:] or self.rounds)

    @property
    def preparation(self) -> float:
        """Seconds that all rounds took longer than as many steady ones."""
        return max(0.0, sum(each.seconds for each in self.rounds) - len(self.rounds) * self.steady)

    @property
    def batches(self) -> int:
        """Mini-batches of the last round, of all clients."""
        before = self.rounds[-2].steps if len(self.rounds) > 1 else {}
        return sum(self.rounds[-1].steps.values()) - sum(before.values())


@dataclass(frozen=True)
class Spread:
    """How much rounding changes each client's results: relative differences of two equal trials.

    Attributes:
        losses: {client: largest relative difference of a loss term}.
        updates: {client: {name: relative difference of the tensor's update}}.
    """

    losses: Mapping[int, float] = field(default_factory=dict)
    updates: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    def loss(self, client: int) -> float:
        """Return how much an engine's loss terms may differ."""
        return MARGIN * self.losses.get(client, 0.0)

    def update(self, client: int, name: str) -> float:
        """Return how much a tensor's update may differ.

        Updates of weights near 1, such as BatchNorm's, are rounded most, so each tensor has its own
        measure; and that of most tensors where its own is smaller by chance.
        """
        found = self.updates.get(client)
        return MARGIN * max(found[name], statistics.median(found.values())) if found else 0.0


def spread(eager: EngineTrial, other: EngineTrial, device: torch.device | None = None) -> Spread:
    """Return how far two trials of ``eager`` are apart of which one is rounded differently.

    Args:
        eager: The trial.
        other: The other one, see `Rounded`.
        device: Where updates are compared.
    """
    losses, updates = defaultdict[int, float](float), defaultdict[int, dict[str, float]](dict)
    for client, _, _, _, apart in _losses(eager, other):
        losses[client] = max(losses[client], _finite(apart))
    for client, name, apart in _updates(eager, other, device):
        updates[client][name] = _finite(apart)
    return Spread(losses, updates)


def _finite(number: float) -> float:
    return number if math.isfinite(number) else 0.0


def difference(
    eager: EngineTrial,
    other: EngineTrial,
    factors: str,
    names: Mapping[int, str],
    method: str,
    *,
    measured: Spread | None = None,
    device: torch.device | None = None,
) -> str:
    """Return where an engine's results differ from those of ``eager`` by more than rounding.

    Loss terms are compared in every round and for every client, relative to the sum of all terms
    (a small term has an error of the size of the large ones, because features are common to all).
    Updates are compared after the last round, each tensor's relative to its norm, or to what its
    norm would be with the mean square of all updates of weights, or of buffers.

    Args:
        eager: The trial of ``eager``.
        other: The trial of the engine.
        factors: See `tolerance`.
        names: {client: architecture}.
        method: The method of the run, for terms that are not a donor's.
        measured: How much rounding changes the trial of ``eager``; None if it was not measured.
        device: Where updates are compared, one tensor after the other; the CPU if None.

    Returns:
        A clause with method, loss term or tensor, architecture and round; empty if they agree.
    """
    measured = measured or Spread()
    for client, one, label, value, apart in _losses(eager, other):
        if not apart <= max(measured.loss(client), tolerance(one.steps[client], factors)):
            owner, _, term = label.rpartition(".")
            return (
                f"loss term {term} of {owner or method} is {value:.5g} and not "
                f"{one.sums[client][label]:.5g} ({names[client]}, round {one.number + 1})"
            )
    last = eager.rounds[-1]
    for client, name, apart in _updates(eager, other, device):
        if not apart <= max(measured.update(client, name), tolerance(last.steps[client], factors)):
            return (
                f"the update of {name} of {method} differs by {apart:.1%} "
                f"({names[client]}, round {last.number + 1})"
            )
    return ""


def _losses(
    eager: EngineTrial, other: EngineTrial
) -> Iterator[tuple[int, TrialRound, str, float, float]]:
    """Yield each loss term of the other trial, and its difference relative to the sum of all.

    Yields:
        The client, the round of ``eager``, the label, the value, and the relative difference.
    """
    for one, two in zip(eager.rounds, other.rounds, strict=True):
        for client, terms in one.sums.items():
            scale = sum(map(abs, terms.values()))
            for label, value in terms.items():
                found = two.sums[client].get(label, math.nan)
                yield client, one, label, found, _apart(value, found, abs(value - found), scale)


def _updates(
    eager: EngineTrial, other: EngineTrial, device: torch.device | None
) -> Iterator[tuple[int, str, float]]:
    """Yield each client's tensors, and the relative difference of their updates."""
    for ours, theirs in ((eager.updates, other.updates), (eager.buffers, other.buffers)):
        for client, updates in ours.items():
            norms = _norms(updates, theirs[client], device or torch.device("cpu"))
            count = sum(tensor.numel() for tensor in updates.values())
            square = sum(norm**2 for norm, _, _ in norms)
            for (name, tensor), (norm, found, error) in zip(updates.items(), norms, strict=True):
                scale = max(norm, math.sqrt(square / max(1, count) * tensor.numel()))
                yield client, name, _apart(norm, found, error, scale)


def _apart(value: float, other: float, error: float, scale: float) -> float:
    """Return a relative error; 0 if neither number is finite: every engine's run diverges."""
    if not (math.isfinite(value) or math.isfinite(other)):
        return 0.0
    return error / scale if scale else (0.0 if error == 0 else math.inf)


def _norms(
    tensors: Mapping[str, Tensor], others: Mapping[str, Tensor], device: torch.device
) -> list[tuple[float, float, float]]:
    """Return the norms of each tensor, of the other one of its name, and of their difference."""
    found = []
    for name, tensor in tensors.items():
        one, two = (each.to(device).double() for each in (tensor, others[name]))
        found.append(torch.stack([one.norm(), two.norm(), (two - one).norm()]))
    rows = torch.stack(found).tolist() if found else []  # one wait for all tensors
    return [(norm, other_norm, error) for norm, other_norm, error in rows]


# --- clients and rounds ---------------------------------------------------------------------------


def trial_clients(plan: Plan) -> list[int]:
    """Return the clients of a trial: one of each architecture, then further ones.

    They are at most as many as take part in a round, since no more train at the same time.
    """
    sizes, seen, order = plan.split(0).train_sizes, Counter[int](), list[tuple[int, int]]()
    for client in range(plan.info.num_clients):
        if sizes[client] > 0:
            place = plan.info.place_of(client)
            order.append((seen[place], client))
            seen[place] += 1
    return [client for _, client in sorted(order)][: min(max(CLIENTS, len(seen)), most(plan))]


def most(plan: Plan) -> int:
    """Return the number of clients that can train at the same time."""
    return max(1, plan.info.participants)


def trial_rounds(rounds: int) -> list[int]:
    """Return the numbers of the rounds of a trial: the first two, a middle and the last one."""
    return [0, 1, max(2, rounds // 2), max(3, rounds - 1)]


def for_trial(plan: Plan, clients: Sequence[int]) -> Plan:
    """Return the plan of a trial, in which some clients of the run have few samples.

    The facts about the run stay as they are, numbers of clients too: an engine may keep steps in
    which a loss has read them. Each client's mini-batches have the sizes that they have in the run.
    """
    size, drop_last = plan.settings.batch_size, plan.settings.drop_last
    short = for_dry_rounds(plan, len(clients), BATCHES)
    settings = short.settings.model_copy(update={"eval_clients": "participants"})

    def splits(seed: int) -> Split:
        split, everyone = plan.splits(seed), range(plan.info.num_clients)
        train = {client: split.train(client) for client in everyone}
        test = {client: split.test(client) for client in everyone}
        for client in clients:
            train[client] = train[client][: _kept(len(train[client]), size, drop_last)]
            test[client] = test[client][: size * BATCHES]
        few = short.splits(seed)
        return few.with_rows([*train.values()], [*test.values()])

    return replace(short, settings=settings, splits=splits, info=plan.info, rate_factor=RATE)


class _Chosen(Participation):
    """Participation of the clients of a trial in all its rounds."""

    def __init__(self, plan: Plan, clients: Sequence[int]) -> None:
        super().__init__(plan)
        self._chosen = sorted(clients)

    def asked(self, round: int, pool: Presence | None = None) -> list[int]:
        return self._chosen


def _kept(samples: int, size: int, drop_last: bool) -> int:
    """Return how many of a client's samples give some whole batches and its last one."""
    bounds = batch_bounds(samples, size, drop_last)
    whole = [bound for bound in bounds if bound[1] - bound[0] == size]
    return samples - max(0, len(whole) - BATCHES) * size


class _TrialHost(Host):
    """A host that trains clients in groups, and keeps what they answer."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        # Hosts in other processes get one client at a time.
        self.one_by_one = plan.settings.backend not in ("local", "auto")
        self.steps, self.notes = Counter[int](), dict[str, None]()
        self.sums: dict[int, Counter[str]] = {}

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Reply]]:
        for job, reply in super().run(jobs):
            if isinstance(job, Train) and isinstance(reply, TrainReply):
                self.steps[job.client] += -(-reply.samples // self.plan.settings.batch_size)
                self.sums.setdefault(job.client, Counter()).update(reply.sums)
                self.notes |= dict.fromkeys(reply.notes)
            yield job, reply


class Rounded:
    """The engine ``eager``, with weights that are rounded a little differently before a training.

    Args:
        eager: The engine.
    """

    def __init__(self, eager: Any) -> None:  # noqa: ANN401 - of a plugin
        self._eager = eager

    def train(self, job: TrainJob) -> dict[str, float]:
        """Train a client; what was added to its weights is taken away afterwards."""
        weights = [p.detach() for p in job.whole().parameters() if p.is_floating_point()]
        noise = [NOISE * weight * _spread_out(weight) for weight in weights]
        torch._foreach_add_(weights, noise)
        found: dict[str, float] = self._eager.train(job)
        torch._foreach_sub_(weights, noise)
        return found


def _spread_out(tensor: Tensor) -> Tensor:
    """Return numbers from −1 to 1 in no order, the same in every call, without a generator."""
    return torch.arange(tensor.numel(), device=tensor.device).cos().view_as(tensor).to(tensor.dtype)


def differently_rounded(plan: Plan) -> Plan:
    """Return the plan of a trial of ``eager`` that rounds differently."""
    engine = plan.choices["engine"].anew()
    engine.instance = Rounded(engine.instance)
    return replace(plan, choices={**plan.choices, "engine": engine})


def try_engine(plan: Plan, clients: Sequence[int]) -> EngineTrial:
    """Train some clients for some short rounds, with the engine instance of the plan."""
    host, rounds = _TrialHost(for_trial(plan, clients)), list[TrialRound]()
    federation = Federation(host.plan, host, participation=_Chosen(host.plan, clients))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        federation.start_trial(0)
        start = {number: _copies(host, number) for number in clients}
        for number in trial_rounds(plan.settings.rounds):
            host.sums = {}
            row, _ = federation.round(number)
            sums = {client: dict(terms) for client, terms in host.sums.items()}
            rounds.append(TrialRound(number, row.seconds["train"], dict(host.steps), sums))
    ends = {number: _copies(host, number) for number in clients}
    weights, buffers = (
        {
            c: {name: end - start[c][place][name] for name, end in ends[c][place].items()}
            for c in ends
        }
        for place in (0, 1)
    )
    return EngineTrial(rounds, weights, buffers, [*host.notes])


def _copies(host: Host, client: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return copies of a client's weights, and of its buffers of real numbers, on the CPU."""
    model = host.client(client).model
    weights, buffers = (
        {n: t.detach().to("cpu", copy=True) for n, t in named if t.is_floating_point()}
        for named in (model.named_parameters(), model.named_buffers())
    )
    return weights, buffers


def preparations(plan: Plan, engine: Choice, clients: Sequence[int]) -> int:
    """Count what an engine prepares for clients: steps that differ in architecture or batch size.

    An engine that trains groups prepares each as often as it occurs in a group, because clients of
    a group have memory of their own.
    """
    split, info, settings = plan.split(0), plan.info, plan.settings
    sizes = split.train_sizes

    def cost(client: int) -> float:
        return -int(sizes[client]) * plan.cost(info.architecture_of(client))

    names = [info.architecture_of(client).name for client in sorted(clients, key=cost)]
    copies = dict.fromkeys(names, 1)
    for group in chunks(engine, names) if engine.trains_groups else ():
        for name, count in Counter(names[place] for place in group).items():
            copies[name] = max(copies[name], count)
    shapes = {
        (info.architecture_of(client).name, stop - start)
        for client in clients
        for start, stop in batch_bounds(int(sizes[client]), settings.batch_size, settings.drop_last)
    }
    return sum(copies[name] for name, _ in shapes)
