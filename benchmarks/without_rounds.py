"""Draw accuracy over virtual time of methods with and without rounds, and print the times.

docs/how-to/run-without-rounds.md has the figure, the table and the commands of the runs:

    python benchmarks/without_rounds.py RUNS FIGURE.png

RUNS has a folder METHOD-SCHEDULE for each run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

import protofl as pf

METHODS = ("fedproto", "fedtgp", "fedavg", "lg-fedavg")
SCHEDULES = {"rounds": "#1f77b4", "buffered": "#d62728", "continuous": "#2ca02c"}
SHARE = 0.9
"""Share of a method's best accuracy over all schedules, whose time is printed."""


def points(folder: Path) -> list[tuple[float, float]]:
    """Return the virtual seconds and the accuracy of each evaluation."""
    rows = pf.load_run(folder).rows
    return [(row.virtual["elapsed"], row.test_accuracy) for row in rows if row.evaluated]


def main(runs: Path, file: Path) -> None:
    """Draw the figure and print the table."""
    figure = Figure(figsize=(6.9, 4.6), layout="constrained")
    for axes, method in zip(figure.subplots(2, 2, sharey=True).flat, METHODS, strict=True):
        each = {name: points(runs / f"{method}-{name}") for name in SCHEDULES}
        target = SHARE * max(accuracy for curve in each.values() for _, accuracy in curve)
        times = []
        for name, curve in each.items():
            seconds, accuracies = zip(*curve, strict=True)
            axes.plot(seconds, [100 * a for a in accuracies], color=SCHEDULES[name], label=name)
            reached = [at for at, accuracy in curve if accuracy >= target]
            times.append(f"{reached[0]:.1f}" if reached else f"> {seconds[-1]:.0f}")
        axes.axhline(100 * target, color="0.5", linewidth=0.7, linestyle=":")
        axes.set_title(method, fontsize=9)
        best = [f"{100 * max(a for _, a in curve):.1f}" for curve in each.values()]
        print(f"| `{method}` | {100 * target:.1f} % | {' | '.join(times)} | {' | '.join(best)} |")
    figure.supxlabel("virtual seconds", fontsize=9)
    figure.supylabel("test accuracy in %", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(file, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
