"""Page of ``protofl run --plan``: what a run would do and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from protofl.data.task_names import share_text
from protofl.system.formatting import count, round_word, size_text
from protofl_cli.json.json_output import print_json
from protofl_cli.screens import render
from protofl_cli.screens.model_tables import si
from protofl_cli.screens.tables import MEASURED, clock, composition_rows

if TYPE_CHECKING:
    from protofl.federation.plan.plan import Plan
    from protofl.records.row import Row
    from protofl.runs.request.request import Request


class RunCosts(NamedTuple):
    """The cost of a run, as far as it is known before training.

    Attributes:
        forward: FLOPs of one sample's forward pass, by architecture.
        parameters: Parameters of the client's model, by architecture.
        training: FLOPs of all clients' local training in a round.
        traffic: The records of the first two rounds; later rounds have the traffic of the second.
        steps: Mini-batches of local training in all rounds and trials.
        seconds: Estimated seconds of all rounds and trials in one process.
    """

    forward: list[int]
    parameters: list[int]
    training: float
    traffic: list[Row]
    steps: int
    seconds: float


def show_run_plan(request: Request, *, as_json: bool = False) -> None:
    """Plan a run, try its hooks in the dry run, and print what it would do and cost.

    Args:
        request: The requested run.
        as_json: True to print JSON instead of the page.

    Raises:
        UsageError: The run would not start.
    """
    from protofl.runs.dry_run.short_rounds import dry_run
    from protofl.runs.lifecycle.backend_choice import choose_backend
    from protofl.runs.lifecycle.engine_choice import would_choose
    from protofl.runs.request.planning import plan_run
    from protofl.runs.results.configuration import about_arithmetic

    notes: list[str] = []
    with render.waiting("planning"):
        plan = plan_run(request, notes.append)
    settings = plan.settings
    title = f"{settings.method} · {settings.models} · {settings.dataset}"
    render.heading(title, "plan")
    with render.waiting("dry run: two short rounds with two clients") as show:
        if settings.dry_run:
            dry_run(plan, notes.append)
        plan = choose_backend(plan, notes.append)
        notes += filter(None, (about_arithmetic(plan), would_choose(plan)))
        costs = None if plan.data.x.is_meta else costs_of(plan, show)
    rows = composition_rows(plan)
    notes = [*dict.fromkeys([*notes, *plan.all_notes])]
    if as_json:
        pairs = [{"name": name, "value": value} for name, value in [("run", title), *rows]]
        values = None if costs is None else _values(plan, costs)
        print_json({"plan": pairs, "notes": notes, "costs": values})
        return
    render.pairs(rows)
    for note in notes:
        render.text(f"  note: {note}", "yellow")
    render.text()
    if costs is None:
        render.text("The data are on other machines, so traffic and time are not known here.")
    else:
        _show_costs(plan, costs)
    render.text("Nothing was trained. Leave out --plan to start the run.", "dim")


def costs_of(plan: Plan, show: Callable[[str], None] = lambda doing: None) -> RunCosts:
    """Count and measure the cost of a plan whose data are on this machine.

    Args:
        plan: The run.
        show: Takes what is done next.
    """
    from protofl.federation.round.round_stages import Workload
    from protofl.hooks.models.flops import profile
    from protofl.runs.dry_run.short_rounds import count_flops
    from protofl_workbench.batch.estimate import pace, seconds_of, steps_in, workload
    from protofl_workbench.reproductions.account import traffic_of

    info, load = plan.info, workload(plan)
    show("counting FLOPs and traffic")
    counted = count_flops(plan)
    each = [flops.counted / max(1, flops.samples) for flops in counted]
    batches = Workload(plan, 0)
    training = sum(
        batches.training(client) * plan.settings.batch_size * each[info.place_of(client)]
        for client in range(info.num_clients)
    )
    show("measuring steps of each architecture in short rounds")
    return RunCosts(
        forward=[flops.forward for flops in counted],
        parameters=[profile(a, *info.sizes_of(a))[0] for a in info.architectures],
        training=training * info.participants / info.num_clients,
        traffic=traffic_of(plan),
        steps=steps_in(load),
        seconds=seconds_of(load, pace(plan)),
    )


def _values(plan: Plan, costs: RunCosts) -> dict[str, Any]:
    """Return costs as JSON values."""
    info = plan.info
    clients = Counter(info.place_of(client) for client in range(info.num_clients))
    first, later = (
        {"upload_bytes": row.upload_bytes, "download_bytes": row.download_bytes}
        for row in costs.traffic
    )
    return {
        "architectures": [
            {
                "architecture": architecture.name,
                "clients": clients[n],
                "parameters": costs.parameters[n],
                "forward_flops": costs.forward[n],
            }
            for n, architecture in enumerate(info.architectures)
        ],
        "training_flops": costs.training,
        "first_round": first,
        "later_rounds": later,
        "steps": costs.steps,
        "seconds": costs.seconds,
        "majority": plan.majority_accuracy(0),
    }


def _show_costs(plan: Plan, costs: RunCosts) -> None:
    info, s = plan.info, plan.settings
    clients = Counter(info.place_of(client) for client in range(info.num_clients))
    render.table(
        ("architecture", "clients", "parameters", "forward FLOPs"),
        [
            (a.name, f"{clients[n]:,}", f"{costs.parameters[n]:,}", si(costs.forward[n]))
            for n, a in enumerate(info.architectures)
        ],
        right=("clients", "parameters", "forward FLOPs"),
    )
    rounds, word = s.rounds * s.trials, round_word(s.timing)
    render.pairs(
        [
            *_traffic_rows(costs.traffic, s.rounds, s.trials, word),
            ("training FLOPs", f"about {si(costs.training)} a {word}"),
            ("mini-batches", f"{costs.steps:,} in {count(rounds, word)}"),
            ("majority guess", _majority(plan)),
            ("time", _time(plan, costs.seconds)),
        ]
    )
    if word == "step":
        render.text(
            "A step has the uploads of some clients. These are the costs of all: upper bounds."
        )


def _traffic_rows(two: Sequence[Row], rounds: int, trials: int, word: str) -> list[tuple[str, str]]:
    """Return the traffic of a round of all participants, and of the whole run."""
    first, later = two
    rows, whole = [], 0
    for way in ("upload", "download"):
        before, after = (getattr(row, f"{way}_bytes") for row in (first, later))
        text = size_text(after) if after else "nothing"
        if before != after:
            text += f"; in the first {size_text(before) if before else 'nothing'}"
        rows.append((f"{way} a {word}", text))
        whole += trials * (before + (rounds - 1) * after)
    return [*rows, ("traffic in all", size_text(whole) if whole else "nothing")]


def _time(plan: Plan, seconds: float) -> str:
    """Return the estimated time, with the processes that the run would use."""
    from protofl.system.machine import usable_cores

    s, hosts = plan.settings, 1
    if s.backend == "process":
        hosts = s.workers or min(len(usable_cores()), plan.info.participants)
    if s.backend not in ("process", "local"):
        return f"about {clock(seconds)} in one process; backend {s.backend} was not measured"
    text = f"about {clock(seconds / hosts)}"
    return f"{text} with {count(hosts, 'process', 'processes')}, {MEASURED}"


def _majority(plan: Plan) -> str:
    """Return the score of always guessing, in words."""
    score = plan.data.task.score_name
    return f"{share_text(score, plan.majority_accuracy(0))} {score}"
