"""The weights that a run has kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from protofl.errors import UsageError
from protofl.files.generation import KEPT, Generation
from protofl.files.tensors import read_tensors


@dataclass
class Weights:
    """What the server and the clients were at the end of a round.

    Attributes:
        trial: The trial.
        round: The round.
        server: The server's tensors by their names: ``knowledge/NAME``, ``module/OWNER/NAME/…``.
        clients: {client: its tensors by their names}, ``model/…`` its weights, of the clients that
            have trained; others are what their seed made them.
    """

    trial: int
    round: int
    server: dict[str, Tensor]
    clients: dict[int, dict[str, Tensor]]


def read_weights(
    run: str | Path,
    which: str = "best",
    trial: int = 0,
    *,
    clients: Collection[int] | None = None,
) -> Weights:
    """Read the weights of a round that a run has kept (``--keep``).

    Args:
        run: The run folder.
        which: ``best``, the trial's best round, or ``last``.
        trial: The trial.
        clients: The clients whose weights are wanted; all by default.

    Raises:
        UsageError: The run has not kept them.
        Damaged: They are not what was written.

    Examples:
        >>> found = pf.read_weights("runs/first", "best")  # doctest: +SKIP
        >>> found.clients[0]["model/head.weight"]  # doctest: +SKIP
    """
    folder = Path(run).expanduser() / "checkpoint"
    now = Generation.read(folder / "manifest.json")
    values, title = now.values, f"{KEPT}{which}-t{trial}"
    if which == "last" and values.get("trial") == trial:
        found = now.fixed()
    elif title in values:
        found = Generation.read(folder / values[title])
    else:
        kept = [key.removeprefix(KEPT) for key in values if key.startswith(KEPT)]
        kept += [f"last-t{values['trial']}"] if "trial" in values else []
        raise UsageError(
            f"{run} has not kept {which}-t{trial}",
            f"it has kept: {', '.join(sorted(kept)) or 'nothing'}",
            "see --keep",
        )
    wanted = {c: e for c, e in found.numbered.items() if clients is None or c in clients}
    replace(found, numbered=wanted).require(folder)
    return Weights(
        found.values["trial"],
        found.values["round"],
        _tensors(folder / found.values["server"]),
        {c: _tensors(folder / name) for c, (name, _) in sorted(wanted.items())},
    )


def _tensors(path: Path) -> dict[str, Tensor]:
    packed: Any = read_tensors(path)
    return dict(packed[0])
