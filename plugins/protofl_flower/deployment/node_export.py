"""Export of a client from the node on which it lives."""

from __future__ import annotations

from pathlib import Path

import protofl as pf
from protofl_flower.deployment.node_process import settings_of
from protofl_flower.node.client_files import last_evaluation
from protofl_flower.node.host import read_settings
from protofl_flower.node.local_data import LocalData
from protofl_workbench.recorded.scorer import export, scorer_with


def export_client(folder: Path, run: str, client: int, out: Path) -> list[tuple[str, str]]:
    """Write a client as it was evaluated last; return facts about the file.

    Args:
        folder: The folder of the node.
        run: The name of a run on the node; empty for the latest.
        client: The client.
        out: The file, as `protofl.Run.export` takes it.

    Raises:
        UsageError: There is no such run or client, or the file cannot be written.
    """
    settings = settings_of(folder)
    machine_options, clients, _ = read_settings(folder, settings)
    if client not in clients:
        listed = ", ".join(map(str, sorted(clients)))
        raise pf.UsageError(f"client {client} is not on this node", f"its clients: {listed}")
    runs = sorted((folder / "runs").glob("*"), key=lambda path: path.stat().st_mtime)
    chosen = [path for path in runs if path.name == run] if run else runs[-1:]
    if not chosen:
        listed = ", ".join(path.name for path in runs) or "none"
        raise pf.UsageError(
            f"the node has no run {run}".rstrip(), f"its runs, oldest first: {listed}"
        )
    evaluation = last_evaluation(chosen[0], client)
    data = LocalData.read(settings.get("data"), sorted(clients), Path(machine_options["data_dir"]))
    plan = pf.backends.Plan.from_json(
        evaluation.plan, None if data is None else data.of_plan(evaluation.plan)
    )
    kept = evaluation.file, evaluation.round, evaluation.blob
    known = plan.preparation([evaluation.trial])
    known = None if known is None else known.of_client(client, 0)
    scorer = scorer_with(plan, evaluation.trial, client, *kept, known)
    export(scorer, plan, out)
    return [
        ("client", f"{client} of run {chosen[0].name}, round {evaluation.round + 1}"),
        ("samples", f"{plan.data.sample}, {str(plan.data.x.dtype).removeprefix('torch.')}"),
        ("preparation", str(plan.data.preparation or "not known: give samples as stored")),
        ("classes", ", ".join(plan.data.classes)),
        ("file", str(out)),
    ]
