"""Plot accuracy against rounds and virtual time, for methods that send prototypes or models.

    python benchmarks/virtual_time.py --out runs/virtual-time --chart docs/images/virtual-time.png

Every method trains the same clients on the same split of digits and in the same world, with two
trials. Runs in the folder are resumed, so the chart can be drawn again without training.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import protofl as pf

COLOURS = {
    "fedproto": "#0b7a75",
    "fedtgp": "#d1495b",
    "heterofl": "#edae49",
    "fedrolex": "#30638e",
    "fml": "#8d6a9f",
}
"""The compared methods and their colours."""

MASKED = {
    "heterofl, masked": ("heterofl", "both"),
    "fedrolex, masked": ("fedrolex", "both"),
}
"""Curves of methods as their papers score them: without the classes that a client lacks."""

CURVES = {
    **{name: (name, "loss" if name in ("heterofl", "fedrolex") else "") for name in COLOURS},
    **MASKED,
}
"""{curve: (method, its mask)}. The mask ``loss`` scores all classes, as the other methods do."""

OPTIONS: dict[str, Any] = {
    "models": "widths:cnn4@1,0.5,0.25",
    "dataset": "digits",
    "subset": 900,
    "clients": 8,
    "local_epochs": 1,
    "world": "tiers",
}
REACHED = 0.7
"""The accuracy for which times are printed."""


def main() -> None:
    """Train, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/virtual-time"))
    parser.add_argument("--chart", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=2)
    given = parser.parse_args()
    curves, guess = {}, 0.0
    for name, (method, mask) in CURVES.items():
        out = given.out / name.replace(", ", "-")
        if (out / "config.json").exists():
            result = pf.run(out=out, resume=True)
        else:
            more = {"rounds": given.rounds, "trials": given.trials, "backend": "local"}
            own = {"set": {"recipe": "run", "mask": mask}} if mask else {}
            result = pf.run(method, out=out, **OPTIONS, **more, **own)
        record = [row for row in result.record if row["trial"] < given.trials]
        curves[name] = mean_curve(record)
        tell(name, curves[name], record)
        found = [t["majority_accuracy"] for t in result.summary["trials"][: given.trials]]
        guess = statistics.mean(found)
    print(f"guessing each client's commonest class: {guess:.1%}")
    if given.chart is not None:
        draw(curves, guess, given.chart)


def mean_curve(record: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return virtual seconds and accuracy after each round, as means over trials."""
    rounds: dict[int, list[dict[str, Any]]] = {}
    for row in record:
        rounds.setdefault(row["round"], []).append(row)
    return [
        (
            statistics.mean(row["virtual"]["elapsed"] for row in rows),
            statistics.mean(row["test_accuracy"] for row in rows),
        )
        for _, rows in sorted(rounds.items())
    ]


def tell(name: str, curve: list[tuple[float, float]], record: list[dict[str, Any]]) -> None:
    """Print one line: bytes, seconds per round, and when the accuracy `REACHED` is reached."""
    usual = [row for row in record if row["round"] > 0]
    clients = usual[0]["participants"]
    up, down = (statistics.mean(r[f"{way}load_bytes"] for r in usual) for way in ("up", "down"))
    seconds = statistics.mean(row["virtual"]["seconds"] for row in usual)
    at = next((n for n, (_, accuracy) in enumerate(curve) if accuracy >= REACHED), None)
    when = "never" if at is None else f"after {at + 1} rounds, {curve[at][0]:.3g} virtual s"
    print(
        f"{name}: a client sends {up / clients / 1e3:,.1f} kB a round and gets "
        f"{down / clients / 1e3:,.1f}, {seconds:.3g} s a round, "
        f"best {max(a for _, a in curve):.1%}, final {curve[-1][1]:.1%}, {REACHED:.0%} {when}",
        flush=True,
    )


def draw(curves: dict[str, list[tuple[float, float]]], guess: float, path: Path) -> None:
    """Draw accuracy in two panels: against rounds, and against virtual seconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for name, curve in curves.items():
        style = {"color": COLOURS[CURVES[name][0]], "marker": "o", "markersize": 3, "label": name}
        style |= {"linestyle": "--", "markerfacecolor": "white"} if name in MASKED else {}
        accuracy = [100 * share for _, share in curve]
        left.plot(range(1, len(curve) + 1), accuracy, **style)
        right.plot([seconds for seconds, _ in curve], accuracy, **style)
    left.set_xlabel("rounds")
    left.set_ylabel("test accuracy, %")
    right.set_xlabel("virtual seconds")
    right.set_xscale("log")
    right.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    left.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    for axes in (left, right):
        axes.axhline(100 * guess, color="grey", linestyle=":", label="majority guess")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
