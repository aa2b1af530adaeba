"""FedTGP's Table 10 (Fashion-MNIST, ``htcnn8``): our runs beside the published figures.

    python benchmarks/published.py run --data npz:fashion-mnist.npz --rounds 60
    python benchmarks/published.py table --rounds 60 > table.md
    python benchmarks/published.py picture --rounds 60 --out table-10.png

A run is begun for the published 1000 rounds and stopped at ``--rounds``: it goes on from there
when ``run`` is called with more. Runs that have got so far are not repeated. Split 0 is published
(`published:practical`, `published:pathological`), the others are drawn from the next seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import protofl as pf
from protofl import events

# The rows of FedTGP's Table 10: pathological and practical setting, in per cent. What its table
# does not have stands below the line, with None.
PUBLISHED: dict[str, tuple[float, float] | None] = {
    "lg-fedavg": (99.39, 97.23),
    "fedgen": (99.38, 97.35),
    "fedgen epochs=0": (99.38, 97.35),  # published FedGen never keeps the G that it trains
    "fml": (99.42, 97.36),
    "fedkd": (99.37, 97.30),
    "feddistill": (99.47, 97.48),
    "fedproto": (99.48, 97.46),
    "fedtgp": (99.56, 97.58),
    "fedsa": None,
    "fedgh": None,
    "local": None,
}
SETTINGS = ("pathological", "practical")
ORDER = (
    "fedproto",
    "fedtgp",
    "local",
    *(m for m in PUBLISHED if m not in ("fedproto", "fedtgp", "local")),
)
TABLE_10: dict[str, Any] = {
    "models": "htcnn8", "clients": 20, "participation": 1.0, "rounds": 1000, "local_epochs": 1,
    "batch_size": 10, "lr": 0.01, "feature_dim": 512,
}  # fmt: skip


class Enough(Exception):
    """The run has the rounds that were asked for."""


def run(folder: Path, method: str, setting: str, seed: int, given: argparse.Namespace) -> None:
    """Bring one run to ``--rounds``."""
    rounds = given.rounds

    def follow(event: events.Event) -> None:
        if isinstance(event, events.RoundDone) and event.row["round"] + 1 >= rounds:
            raise Enough

    if len(record(folder)) >= rounds:
        return
    print(f"{folder.name}: from round {len(record(folder))}", flush=True)
    try:
        if record(folder):
            pf.run(out=folder, resume=True, progress=follow)
        else:
            name, *further = method.split()
            chosen = {"partition.seed": 1 + seed} | dict(option.split("=") for option in further)
            chosen |= {} if name == "local" else {"variant": "official"}
            pf.run(
                name, dataset=given.data, partition=f"published:{setting}", seed=seed, out=folder,
                set=chosen, progress=follow, **TABLE_10,
            )  # fmt: skip
    except Enough:
        pass


def record(folder: Path) -> list[float]:
    """The accuracy after every round of a run, in per cent."""
    file = folder / "metrics.jsonl"
    rows = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [100 * json.loads(row)["test_accuracy"] for row in rows]


def runs(given: argparse.Namespace, setting: str, method: str) -> dict[int, list[float]]:
    """{seed: its accuracies} of the runs that have ``--rounds`` rounds."""
    found = {s: record(folder_of(given.runs, setting, method, s)) for s in range(given.seeds)}
    return {s: curve[: given.rounds] for s, curve in found.items() if len(curve) >= given.rounds}


def folder_of(folder: Path, setting: str, method: str, seed: int) -> Path:
    """Where a run is."""
    return folder / f"{setting}-{method.replace(' ', '-')}-{seed}"


def table(given: argparse.Namespace) -> str:
    """The table as Markdown: published, and ours on each split."""
    lines = []
    for column, setting in enumerate(SETTINGS):
        splits = " | ".join(f"split {seed}, best | last ten" for seed in range(given.seeds))
        lines += [f"\n{setting}, {given.rounds} rounds:\n", f"| method | published | {splits} |"]
        lines.append("|---|---|" + "---|---|" * given.seeds)
        for method, figures in PUBLISHED.items():
            cells = ["–" if figures is None else f"{figures[column]:.2f}"]
            found = runs(given, setting, method)
            for seed in range(given.seeds):
                curve = found.get(seed)
                last = curve and sum(curve[-10:]) / len(curve[-10:])
                cells += [f"{max(curve):.2f}", f"{last:.2f}"] if curve else ["", ""]
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(given: argparse.Namespace) -> None:
    """Accuracy over rounds, a panel a setting, of split 0."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for panel, setting in zip(panels, SETTINGS, strict=True):
        for number, method in enumerate(PUBLISHED):
            curve = runs(given, setting, method).get(0)
            if curve:
                style = ("-", "--")[number % 2]
                panel.plot(range(1, len(curve) + 1), curve, style, label=method, linewidth=1.3)
        panel.set(title=setting, xlabel="round", ylabel="accuracy on all test samples, %")
        panel.set_ylim(bottom=given.bottom)
        panel.grid(alpha=0.3)
    panels[0].legend(ncols=2, fontsize=8, loc="lower right")
    figure.savefig(given.out, dpi=110)


def main() -> None:
    """Run, or read what was run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("run", "table", "picture"))
    parser.add_argument("--data", default="fashion-mnist", help="as --dataset of protofl run")
    parser.add_argument("--runs", type=Path, default=Path("runs/table-10"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1, help="splits, of seed 0, 1, …")
    parser.add_argument("--methods", nargs="+", default=ORDER, choices=ORDER)
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=[*SETTINGS])
    parser.add_argument("--bottom", type=float, default=90.0, help="where the picture begins, %%")
    parser.add_argument("--out", type=Path, default=Path("table-10.png"))
    given = parser.parse_args()
    if given.what == "table":
        print(table(given))
    elif given.what == "picture":
        picture(given)
    else:
        for seed in range(given.seeds):
            for method in given.methods:
                for setting in given.settings:
                    run(folder_of(given.runs, setting, method, seed), method, setting, seed, given)


if __name__ == "__main__":
    main()
