"""Measure honest accuracy with attacks and defences: docs/how-to/simulate-attacks.md.

    python benchmarks/robustness.py run OUT.jsonl [SEED …]   # some 100 CPU seconds a seed for each
    python benchmarks/robustness.py table OUT.jsonl          # prints the tables as Markdown

Every cell is a separate run: scikit-learn's digits as rows of 64 numbers, ten clients, perceptrons
of four architectures. The seed sets the split, the weights, and which clients are malicious. In the
column without an attack, the same two clients send ``scaling`` with a = 1, so that the honest
clients are the same in the whole table.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import protofl as pf

METHODS = ("fedproto", "fedtgp")
DEFENCES = (
    "",
    "coordinate-median",
    "trimmed-mean",
    "geometric-median",
    "multi-krum",
    "cosine-filter",
)
ATTACKS: dict[str, dict[str, Any]] = {
    "": {"scaling.a": 1},
    "sign-flip": {},
    "scaling": {},
    "noise-attack": {},
    "stale": {},
    "class-swap": {},
    "alie": {"alie.z": 1.5, "alie.knows": "all"},
    "label-flip": {},
}
FEDERATION: dict[str, Any] = {
    "models": "mlp",
    "clients": 10,
    "rounds": 10,
    "feature_dim": 32,
    "optimizer": "adam",
    "lr": 0.003,
    "backend": "local",
    "malicious": 0.2,
    "checkpoint_every": 0,
    "dry_step": False,
}
SKEWED, MIXED = 0.1, 0.5


def cells() -> list[tuple[str, str, str, float]]:
    """Return (method, defence, attack, β) of all runs of a seed; runs without attack use both β."""
    found = [("local", "", "", beta) for beta in (MIXED, SKEWED)]
    for method in METHODS:
        found += [(method, d, a, MIXED) for a in ATTACKS for d in DEFENCES]
        found += [(method, d, "", SKEWED) for d in DEFENCES]
    return found


def one(method: str, defence: str, attack: str, beta: float, seed: int, folder: Path) -> Any:  # noqa: ANN401
    """Run a cell; return its mean accuracies and the accuracy of every client."""
    options = {"partition.beta": beta, "dataset.kind": "table", **ATTACKS[attack]}
    if method in METHODS:
        options["lambda"] = 1
    out = folder / "run"
    result = pf.run(
        method,
        dataset=f"npz:{folder / 'digits.npz'}",
        seed=seed,
        out=out,
        set=options,
        use={"server_aggregate": defence} if defence else {},
        progress=False,
        **{"with": [attack or "scaling"]},
        **FEDERATION,
    )
    shutil.rmtree(out)
    each = result.client_accuracies[0]
    return {
        "honest": result.summary["final_honest_accuracy"],
        "all": result.summary["final_test_accuracy"],
        "clients": [each.get(client) for client in range(FEDERATION["clients"])],
    }


def run(path: Path, seeds: list[int]) -> None:
    """Run all cells for the seeds and write a line for each; skip cells that are in the file."""
    torch.set_num_threads(1)
    lines = path.read_text().splitlines() if path.exists() else []
    done = {tuple(json.loads(line)["cell"]) for line in lines}
    digits = load_digits()
    with tempfile.TemporaryDirectory() as name, path.open("a") as file:
        folder = Path(name)
        x = (digits.data / 8 - 1).astype(np.float32)
        np.savez(folder / "digits.npz", x_train=x, y_train=digits.target)
        for seed in seeds:
            for cell in cells():
                if (*cell, seed) in done:
                    continue
                found = one(*cell, seed, folder)
                file.write(json.dumps({"cell": (*cell, seed), **found}) + "\n")
                file.flush()
                print(cell, seed, f"{found['honest']:.3f}", flush=True)


def table(path: Path) -> None:
    """Print the tables in percent: means over the seeds whose cells are complete."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ran = Counter(row["cell"][4] for row in rows)
    rows = [row for row in rows if ran[row["cell"][4]] == len(cells())]
    values: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows:
        found = values.setdefault(tuple(row["cell"][:4]), {"honest": [], "all": [], "worst": []})
        found["honest"].append(row["honest"])
        found["all"].append(row["all"])
        found["worst"].append(min(a for a in row["clients"] if a is not None))

    def cell(key: str, *which: Any) -> str:  # noqa: ANN401
        found = [100 * v for v in values[which][key]]
        spread = f" ± {statistics.pstdev(found):.0f}" if len(found) > 1 else ""
        return f"{statistics.fmean(found):.1f}{spread}"

    print(f"seeds: {sorted({row['cell'][4] for row in rows})}")
    print("local, honest:", cell("honest", "local", "", "", MIXED))
    attacks = [attack or "none" for attack in ATTACKS]
    print(f"\n| method | defence | {' | '.join(attacks)} |\n| --- | --- |{' --- |' * len(attacks)}")
    for method in METHODS:
        for defence in DEFENCES:
            found = [cell("honest", method, defence, attack, MIXED) for attack in ATTACKS]
            print(f"| `{method}` | {defence or 'none'} | {' | '.join(found)} |")
    print("\n| method | defence | β = 0.5 | worst client | β = 0.1 | worst client |")
    print("| --- | --- | --- | --- | --- | --- |")
    for method in ("local", *METHODS):
        for defence in DEFENCES if method in METHODS else ("",):
            keys = [
                (key, method, defence, "", b) for b in (MIXED, SKEWED) for key in ("all", "worst")
            ]
            print(f"| `{method}` | {defence or 'none'} | {' | '.join(cell(*k) for k in keys)} |")


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(Path(sys.argv[2]), [int(seed) for seed in sys.argv[3:]] or [0, 1, 2])
    else:
        table(Path(sys.argv[2]))
