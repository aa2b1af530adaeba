"""A client that comes after a run (`protofl join`), trained and scored as an unseen client."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protofl.data.partition import make_split
from protofl.data.split import Split, client_names
from protofl.errors import UsageError
from protofl.federation.clients.evaluation import counts_in, figures_of
from protofl.federation.clients.host import Host, evaluated
from protofl.federation.jobs.jobs import Evaluate, EvaluateReply, StartTrial
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.run_data import fitter
from protofl.federation.plan.run_description import settle
from protofl.system.clocks import Clock
from protofl.system.device import compute_threads
from protofl.system.torch_state import standard_torch
from protofl_workbench.recorded.new_data import NewData, OpenedRun
from protofl_workbench.recorded.scorer import Scorer, downloads_of, export


@standard_torch()
def join(
    run: OpenedRun,
    data: NewData,
    architecture: str | None,
    epochs: int,
    path: Path | None,
    trial: int,
) -> dict[str, Any]:
    """Add a client to a run, which does not change; see `protofl.Run.join`."""
    plan = _with_client(run, data, architecture)
    new, split, host = plan.info.num_clients - 1, plan.split(trial), Host(plan)
    _, commit, [(_, blob)] = downloads_of(plan, run.reading, [new], "last", trial)
    host.handle(StartTrial(trial))
    jobs = [Evaluate(new, commit.round, epochs=tuned, blob=blob) for tuned in (0, epochs)]
    before, after = (host.handle(job) for job in jobs)
    assert isinstance(before, EvaluateReply) and isinstance(after, EvaluateReply)
    if path is not None:
        known = plan.preparation([trial])
        with (
            compute_threads(1),
            plan.computing(),
            evaluated(host, jobs[1], Clock()) as (state, sent),
        ):
            state.received = sent
            export(Scorer(plan, state, known and known.of_client(new, 0)), plan, path)
    figures = figures_of(plan.metrics, {new: counts_in(plan, jobs[1], after)})
    names = client_names(split, plan.data.columns)
    return {
        "client": new,
        "name": names[new] if names else None,
        "architecture": plan.info.architecture_of(new).name,
        "train_samples": len(split.train(new)),
        "test_samples": len(split.test(new)),
        "accuracy": before.correct / before.count,
        "fine_tuned_accuracy": after.correct / after.count,
        "majority": plan.majority_accuracy(trial, [new]),
        **{n: each["clients"].get(str(new)) for n, each in figures.items() if "clients" in each},
    }


def _with_client(run: OpenedRun, new: NewData, architecture: str | None) -> Plan:
    """Return the plan of the run with a further client, which is unseen.

    Raises:
        UsageError: No row is the client's, or the rows are of several clients; or the architecture
            is unknown, or does not fit the method.
    """
    plan, data, clients, known = run.plan, run.plan.data, run.plan.info.num_clients, run.preparation
    rows = new.rows_of(-1)
    column = str(run.reading.config["partition"]).partition(":")[2]
    names = np.unique(new.columns.get(column, np.zeros(len(new.y)))[rows.numpy()]).tolist()
    if len(names) != 1 or data.elsewhere:
        raise UsageError(
            f"{new.part}: expected the rows of one new client, got {len(names)}",
            ", ".join(map(str, names[:8])) or f"each row is of a client of {run.reading.folder}",
            "give a file with the rows of one client",
        )
    x = new.x if new.prepared or known is None or known.fitted else known(new.x)
    labels = torch.cat([data.labels, new.y[rows]])
    late = replace(
        data,
        x=torch.cat([data.x, x[rows]]),
        y=labels if data.task.has_classes else torch.cat([data.y, torch.zeros_like(rows)]),
        split=None,
        columns={
            name: np.concatenate([values, new.columns[name][rows.numpy()]])
            for name, values in data.columns.items()
            if name in new.columns
        },
    )
    late.labels, before = labels, range(clients)
    old, own = np.split(np.arange(len(labels)), [len(data.y)])

    @lru_cache(maxsize=2)
    def splits(seed: int) -> Split:
        divided = make_split(late, lambda **about: [old, own], 2, 1, seed)
        was = plan.splits(seed)
        train = [*map(was.train, before), divided.train(1)]
        return was.with_rows(train, [*map(was.test, before), divided.test(1)])

    group = plan.choices["model-group"].call("architectures")
    used = plan.info.architectures
    usual = used if plan.settings.architectures else group
    chosen = plan.info.named(architecture or usual[clients % len(usual)].name)
    used = used if chosen in used else (*used, chosen)
    info = replace(
        plan.info,
        num_clients=clients + 1,
        unseen=plan.info.unseen + 1,
        architectures=used,
        places=(*map(plan.info.place_of, before), used.index(chosen)),
    )
    settle(plan.composition, plan.settings, info)
    # Statistics of all clients' rows are those with which the run's clients were trained.
    own_statistics = known and known.fitted and known.fitted.per_client
    fits = fitter(plan.settings, late, splits if own_statistics else plan.splits, plan.registry)
    return replace(plan, data=late, splits=splits, fits=fits, info=info)
