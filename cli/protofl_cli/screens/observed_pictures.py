"""Kinds of ``protofl plot`` for runs with ``--observe``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl_workbench.recorded.recorded_run import Run

KINDS = {
    "margins": "margin of each class on clients and on the server (--observe prototypes)",
    "margin-curves": "margins over rounds, of clients and the server",
    "distances": "distances of prototypes over rounds, within and between classes",
    "alignment": "distance of clients' prototypes to the server's, by architecture",
    "drift": "distance that the server's prototypes move between rounds",
    "similarity": "similarity of the prototypes of each pair of clients",
    "prototypes": "t-SNE of the prototypes of clients and the server",
    "features": "t-SNE of test features (--observe features)",
    "embedding": "GIF of test features with prototypes over rounds, in one t-SNE (--observe)",
    "images": "generated images by round and class (--observe images)",
}
"""Kinds of pictures of observations."""

TAKES = {
    **dict.fromkeys(("margin-curves", "distances", "alignment", "drift", "embedding"), ("trial",)),
    **dict.fromkeys(("margins", "prototypes", "features", "images"), ("trial", "round")),
    "similarity": ("as_", "trial", "round"),
}
"""{kind: its own options}."""


def draw(
    kind: str,
    run: Run,
    options: dict[str, Any],
    width: Any,  # noqa: ANN401 - a word or inches
    font: Any,  # noqa: ANN401 - checked where it is used
) -> Figure:
    """Draw observations of a run.

    Args:
        kind: One of `KINDS`.
        run: The run.
        options: Given options: ``trial``, ``round`` from 0, ``as_``.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: The run has no such observations.
    """
    from protofl.errors import UsageError
    from protofl_workbench.plots.observation_charts import CHARTS

    have = run.observed.rounds(options.get("trial", 0))
    if have and options.get("round", have[0]) not in have:
        shown = [str(number + 1) for number in have]
        shown = shown if len(shown) <= 8 else [*shown[:4], "…", *shown[-3:]]
        raise UsageError(
            f"{run.folder} has no observations of round {options['round'] + 1}",
            f"it has observations of rounds {', '.join(shown)}",
        )
    asked = {"kind" if key == "as_" else key: value for key, value in options.items()}
    if kind == "images":
        asked = {
            "rounds" if k == "round" else k: [v] if k == "round" else v for k, v in asked.items()
        }
    return CHARTS[kind](run, **asked, width=width, font=font)
