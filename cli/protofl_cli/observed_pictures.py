"""Kinds of ``protofl plot`` that show what a run has observed (``--observe``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl.runs.recorded_run import Run

KINDS = {
    "margins": "what becomes of each class's margin on the server (--observe prototypes, as those "
    "below)",
    "margin-curves": "margins over rounds, the clients' and the server's",
    "distances": "distances of prototypes over rounds, within classes and between them",
    "alignment": "distance of clients' prototypes to the server's, by architecture",
    "drift": "how far the server's prototypes move in a round",
    "similarity": "how alike clients' prototypes are, each to each",
    "prototypes": "clients' and the server's prototypes in the plane (t-SNE)",
    "features": "test features in the plane (t-SNE; --observe features)",
    "images": "generated images by round and class (--observe images)",
}
"""What can be drawn."""

TAKES = {
    **dict.fromkeys(("margin-curves", "distances", "alignment", "drift"), ("trial",)),
    **dict.fromkeys(("margins", "prototypes", "features", "images"), ("trial", "round")),
    "similarity": ("as_", "trial", "round"),
}
"""The options of each."""


def draw(
    kind: str,
    run: Run,
    options: dict[str, Any],
    width: Any,  # noqa: ANN401 - a word or inches
    font: Any,  # noqa: ANN401 - checked where it is used
) -> Figure:
    """A picture of what a run has observed.

    Args:
        kind: One of `KINDS`.
        run: The run.
        options: What was given: ``trial``, ``round`` from 0, ``as_``.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: The run has not observed it.
    """
    from protofl.errors import UsageError
    from protofl_workbench import plots

    have = run.observed.rounds(options.get("trial", 0))
    if have and options.get("round", have[0]) not in have:
        shown = [str(number + 1) for number in have]
        shown = shown if len(shown) <= 8 else [*shown[:4], "…", *shown[-3:]]
        raise UsageError(
            f"{run.folder} has not observed round {options['round'] + 1}",
            f"it has observed rounds {', '.join(shown)}",
        )
    asked = {"kind" if key == "as_" else key: value for key, value in options.items()}
    if kind == "images":
        asked = {
            "rounds" if k == "round" else k: [v] if k == "round" else v for k, v in asked.items()
        }
    found: Callable[..., Figure] = getattr(plots, kind.replace("-", "_"))
    return found(run, **asked, width=width, font=font)
