"""The engine of a run with ``--engine auto``.

It is the one with the shortest predicted run, among those whose results equal ``eager``'s in a
trial (`protofl.runs.lifecycle.engine_trial`).
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from protofl.federation.clients.host import Host
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.resolution import FIRST_ENGINE
from protofl.federation.round.round_stages import Workload
from protofl.hooks.plugin.members import Choice
from protofl.runs.dry_run.short_rounds import for_dry_rounds, two_dry_rounds
from protofl.runs.lifecycle.engine_trial import (
    EngineTrial,
    Spread,
    difference,
    differently_rounded,
    most,
    preparations,
    spread,
    trial_clients,
    trial_rounds,
    try_engine,
)
from protofl.system.device import ARITHMETIC
from protofl.system.files.tables import rounded
from protofl.system.transfers import has_streams, module_of

ENGINES = ("cuda-graphs",)
"""Engines that are compared with ``eager``."""

WORTH = 5.0
"""Seconds of training with ``eager`` from which on other engines are tried: a trial takes seconds,
and preparation too."""

GAIN = 1.05
"""How many times as fast an engine must be; seconds of equal trials differ by less."""


@dataclass(frozen=True)
class Measured:
    """An engine with its options, as a trial has measured it.

    Attributes:
        engine: Its name.
        options: Its options that differ from their defaults.
        preparation: Seconds that it still prepares itself in the run.
        per_batch: Seconds of a mini-batch.
        refusal: Why it can't be taken; empty if it can.
        notes: Lines of the engine.
    """

    engine: str
    options: Mapping[str, Any] = field(default_factory=dict)
    preparation: float = 0.0
    per_batch: float = 0.0
    refusal: str = ""
    notes: Sequence[str] = ()

    def seconds(self, batches: float) -> float:
        """Return the predicted seconds of training of a run with so many mini-batches."""
        return self.preparation + batches * self.per_batch

    def __str__(self) -> str:
        options = ", ".join(f"{key} {value}" for key, value in self.options.items())
        return f"{self.engine} ({options})" if options else self.engine


def shortest(measured: Sequence[Measured], batches: float) -> tuple[Measured, str]:
    """Choose the engine with the shortest predicted run.

    Args:
        measured: The engines; the first one is ``eager``.
        batches: Mini-batches of the run.

    Returns:
        The engine, and a line: the choice, the factor, and why the next best one was not taken.
    """
    eager, *others = measured
    able = [one for one in others if not one.refusal]
    best = min(able, key=lambda one: one.seconds(batches), default=None)
    took = eager.seconds(batches)
    refused = "; ".join(dict.fromkeys(f"{one}: {one.refusal}" for one in others if one.refusal))
    if best is None:
        return eager, f"engine {eager}: {refused or 'no other engine was measured'}"
    seconds = best.seconds(batches)
    of_run = f"{batches:,.0f} mini-batches"
    if seconds * GAIN > took:
        why = f"{best} would train for about {_s(seconds)}"
        if best.preparation:
            why += f", {_s(best.preparation)} of it preparation"
        why += f", and eager for {_s(took)} ({of_run})"
        if best.notes:
            why += f"; {best.notes[0]}"
    else:
        why = (
            f"about {took / seconds:.1f} times as fast as eager "
            f"({_s(seconds)} and not {_s(took)} for {of_run}), with equal results in the trial"
        )
        eager = best
    return eager, f"engine {eager}: {why}" + (f"; {refused}" if refused else "")


def _s(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"


@dataclass(frozen=True)
class EngineChoice:
    """The choice of an engine.

    Attributes:
        plan: The run with the engine.
        line: A line for the user; empty if the user chose the engine.
        table: The measured figures, for ``config.json``; None without a choice.
    """

    plan: Plan
    line: str = ""
    table: dict[str, Any] | None = None


def choose_engine(plan: Plan, engines: Sequence[str] = ENGINES) -> EngineChoice:
    """Return the run with an engine in place of ``auto``.

    Args:
        plan: The run; unchanged if the user chose its engine.
        engines: The engines that are compared with ``eager``.
    """
    if plan.settings.engine != "auto":
        return EngineChoice(plan)
    why = ""
    if not plan.settings.dry_run:
        why = "with --no-dry-run nothing is compared"
    elif plan.data.x.is_meta:
        why = "the data are on other machines, so nothing can be measured here"
    clients, batches, measured = trial_clients(plan), batches_of(plan), list[Measured]()
    if not why:
        try:
            # All trials begin with copies of the same models.
            measured = _measurements(replace(plan, built={}), clients, batches, engines)
        except Exception as error:  # training words what is wrong with the run
            why = f"a trial fails: {_first_line(error)}"
        _free(plan)  # of the trials' engines; the run has one of its own
    if why:
        line = f"engine {FIRST_ENGINE}: {why}"
        return EngineChoice(plan.choosing("engine", FIRST_ENGINE), line, {"measured": []})
    chosen, line = shortest(measured, batches)
    if len(measured) == 1 and engines:
        line = f"engine {chosen}: it trains for {_s(chosen.seconds(batches))}; a trial of others "
        line += "would take as long"
    table = {
        "clients": clients,
        "rounds": trial_rounds(plan.settings.rounds),
        "mini_batches": round(batches),
        "measured": [
            {
                "engine": one.engine,
                **({"options": dict(one.options)} if one.options else {}),
                **({"refused": one.refusal} if one.refusal else {}),
                "preparation_seconds": rounded(one.preparation),
                "batch_seconds": rounded(one.per_batch),
                "run_seconds": rounded(one.seconds(batches)),
            }
            for one in measured
        ],
    }
    return EngineChoice(plan.choosing("engine", chosen.engine, chosen.options), line, table)


def _measurements(
    plan: Plan, clients: Sequence[int], batches: float, engines: Sequence[str]
) -> list[Measured]:
    """Measure ``eager``, and the other engines if its training of the run is long enough."""
    eager = plan.choosing("engine", FIRST_ENGINE)
    trial = try_engine(eager, clients)
    first = Measured(FIRST_ENGINE, per_batch=trial.steady / max(1, trial.batches))
    if first.seconds(batches) < WORTH:
        return [first]
    again = try_engine(differently_rounded(eager), clients)
    reference = Reference(trial, spread(trial, again, plan.device), clients)
    return [first, *(one for name in engines for one in _measured(plan, name, reference))]


@dataclass(frozen=True)
class Reference:
    """The trial of ``eager``, with which the others are compared.

    Attributes:
        trial: The trial.
        spread: How much rounding changes it.
        clients: The clients that took part.
    """

    trial: EngineTrial
    spread: Spread
    clients: Sequence[int]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _measured(plan: Plan, name: str, reference: Reference) -> list[Measured]:
    """Measure an engine with its variants until one is slower than the one before.

    All have one instance, so what the first one prepares is there for the next ones. After a
    failure the next one has an instance of its own.
    """
    engine, failure = plan.choosing("engine", name).choices["engine"], ""
    if engine.replays:
        try:
            _check_steps(plan, engine)
        except Exception as error:  # an engine may fail in any way
            failure = f"its steps cannot be replayed: {_first_line(error)}"
    at_once = most(plan) if plan.settings.backend in ("local", "auto") else 1
    variants = engine.call("variants", clients=at_once) or [{}]
    result, each = list[Measured](), 0.0
    for options in variants if not failure else [{}]:
        planned = plan.choosing("engine", name, options)
        shared = planned.choices["engine"].sharing(engine)
        planned = replace(planned, choices={**planned.choices, "engine": shared})
        one, seconds = _tried(planned, options, reference, failure)
        each = max(each, seconds)  # a later variant has what the first one has prepared
        able = [other.per_batch for other in result if not other.refusal]
        result.append(replace(one, preparation=each * _to_prepare(planned)))
        if able and not one.refusal and one.per_batch > able[-1]:
            break
        if one.refusal or one.notes:
            engine = engine.anew()
            del planned, shared
            _free(plan)  # before the next one captures graphs: see `_free`
    return result


def _free(plan: Plan) -> None:
    """Free the memory of engines that are not used any more, when no work of theirs is left.

    In some versions of torch, dropping a graph frees memory of other graphs (pytorch issue 193402),
    so it is done before others exist.
    """
    gc.collect()
    if has_streams(plan.device):
        module_of(plan.device).synchronize(plan.device)
        module_of(plan.device).empty_cache()


def _tried(
    plan: Plan, options: Mapping[str, Any], reference: Reference, failure: str = ""
) -> tuple[Measured, float]:
    """Measure an engine with some options; return also the seconds of one preparation."""
    engine, clients = plan.choices["engine"], reference.clients
    if failure:
        return Measured(engine.name, options, refusal=failure), 0.0
    try:
        trial = try_engine(plan, clients)
    except Exception as error:  # an engine may fail in any way
        return Measured(engine.name, options, refusal=f"fails: {_first_line(error)}"), 0.0
    differs = difference(
        reference.trial,
        trial,
        ARITHMETIC[plan.settings.precision].coarsest,
        {client: plan.info.architecture_of(client).name for client in clients},
        plan.composition.main,
        measured=reference.spread,
        device=plan.device,
    )
    found = Measured(
        engine.name,
        options,
        per_batch=trial.steady / max(1, trial.batches),
        refusal=differs and f"its results are not eager's: {differs}",
        notes=trial.notes,
    )
    return found, trial.preparation / max(1, preparations(plan, engine, clients))


def _to_prepare(plan: Plan) -> int:
    """Return how much an engine has to prepare in the run: see `preparations`.

    The run's engine is another one than the trial's, whose learning rates are other ones.
    """
    sizes = plan.split(0).train_sizes
    clients = [client for client in range(plan.info.num_clients) if sizes[client] > 0]
    return preparations(plan, plan.choices["engine"], clients)


def _check_steps(plan: Plan, engine: Choice) -> None:
    """Check in short rounds that recorded steps can be replayed, with an engine of its own.

    Raises:
        Exception: They can't be.
    """
    choices = {**plan.choices, "engine": engine.anew()}
    checked = replace(plan, checks_steps=True, choices=choices)
    clients = min(2, plan.info.num_clients)
    two_dry_rounds(Host(for_dry_rounds(checked, clients)), further=1)


def batches_of(plan: Plan) -> float:
    """Return the mini-batches of local training in the whole run, on one host."""
    info, s, load = plan.info, plan.settings, Workload(plan, 0)
    steps = sum(load.training(client) for client in range(info.num_clients))
    hosts = 1 if s.backend == "local" else s.workers or 1
    return steps * s.rounds * s.trials * info.participants / info.num_clients / hosts


def would_measure(plan: Plan) -> str:
    """Return a line about the choice that is left to the start of the run; empty if none is."""
    if plan.settings.engine != "auto":
        return ""
    if not plan.settings.dry_run:
        return f"engine {FIRST_ENGINE}: with --no-dry-run nothing is compared"
    clients = len(trial_clients(plan))
    rounds = len(trial_rounds(plan.settings.rounds))
    return (
        f"engine auto: the run begins with a trial of {' and '.join([FIRST_ENGINE, *ENGINES])} "
        f"({clients} clients, {rounds} short rounds), and takes the engine with the shortest "
        f"predicted time for its {batches_of(plan):,.0f} mini-batches"
    )
