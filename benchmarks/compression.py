"""Measure how much traffic wrappers save: the table of docs/how-to/compress-uploads.md.

    python benchmarks/compression.py run OUT.jsonl [SEED …]   # some 100 CPU seconds a seed
    python benchmarks/compression.py table OUT.jsonl          # prints the tables as Markdown

Every cell is a separate run: scikit-learn's digits as rows of 64 numbers, ten clients, perceptrons
of four architectures. Bytes are the recorded bytes of the last round.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import protofl as pf

TOP = {"top-k.direction": "both"}
CODINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("", {}),
    "quantise to=fp16": ("quantise", {"quantise.to": "fp16"}),
    "quantise to=bf16": ("quantise", {"quantise.to": "bf16"}),
    "quantise (int8)": ("quantise", {}),
    "quantise stochastic=true": ("quantise", {"quantise.stochastic": "true"}),
    "quantise per=tensor": ("quantise", {"quantise.per": "tensor"}),
    "top-k share=0.5": ("top-k", {**TOP, "top-k.share": 0.5}),
    "top-k share=0.25": ("top-k", {**TOP, "top-k.share": 0.25}),
    "top-k share=0.1": ("top-k", {**TOP}),
    "top-k share=0.1 error_feedback=true": ("top-k", {**TOP, "top-k.error_feedback": "true"}),
    "top-k share=0.02": ("top-k", {**TOP, "top-k.share": 0.02}),
    "top-k share=0.25, then quantise": ("top-k quantise", {**TOP, "top-k.share": 0.25}),
    "top-k share=0.1, then quantise": ("top-k quantise", TOP),
}
METHODS = ("fedproto", "fml")
FEDERATION: dict[str, Any] = {
    "models": "mlp",
    "clients": 10,
    "rounds": 20,
    "feature_dim": 256,
    "optimizer": "adam",
    "lr": 0.003,
    "backend": "local",
    "checkpoint_every": 0,
    "dry_step": False,
}


def one(method: str, coding: str, seed: int, folder: Path) -> dict[str, float]:
    """Run a cell; return its accuracy and the bytes of its last round."""
    wrappers, options = CODINGS[coding]
    options = {"partition.beta": 0.5, "dataset.kind": "table", **options}
    if method == "fedproto":
        options["lambda"] = 1
    out = folder / "run"
    result = pf.run(
        method,
        dataset=f"npz:{folder / 'digits.npz'}",
        seed=seed,
        out=out,
        set=options,
        **{"with": wrappers.split()},
        **FEDERATION,
    )
    shutil.rmtree(out)
    last = result.record[-1]
    return {
        "accuracy": result.summary["final_test_accuracy"],
        "up": last["upload_bytes"],
        "down": last["download_bytes"],
    }


def run(path: Path, seeds: list[int]) -> None:
    """Run all cells for the seeds and write a line for each; skip cells that are in the file."""
    torch.set_num_threads(1)
    lines = path.read_text().splitlines() if path.exists() else []
    done = {tuple(json.loads(line)["cell"]) for line in lines}
    digits = load_digits()
    cells = [("local", "none"), *((m, c) for m in METHODS for c in CODINGS)]
    with tempfile.TemporaryDirectory() as name, path.open("a") as file:
        folder = Path(name)
        x = (digits.data / 8 - 1).astype(np.float32)
        np.savez(folder / "digits.npz", x_train=x, y_train=digits.target)
        for seed in seeds:
            for cell in cells:
                if (*cell, seed) not in done:
                    found = one(*cell, seed, folder)
                    file.write(json.dumps({"cell": (*cell, seed), **found}) + "\n")
                    file.flush()
                    print(cell, seed, found, flush=True)


def table(path: Path) -> None:
    """Print the tables: means over seeds."""
    values: dict[tuple[str, str], list[dict[str, float]]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        values.setdefault(tuple(row["cell"][:2]), []).append(row)

    def mean(key: str, *cell: str) -> float:
        return statistics.fmean(row[key] for row in values[cell[0], cell[1]])

    print("local:", f"{100 * mean('accuracy', 'local', 'none'):.1f}")
    for method in METHODS:
        print(f"\n## {method}\n\n| wrappers | bytes up | bytes down | of dense | accuracy |")
        print("| --- | --: | --: | --: | --: |")
        dense = mean("up", method, "none") + mean("down", method, "none")
        for coding in CODINGS:
            up, down = mean("up", method, coding), mean("down", method, coding)
            found = [100 * row["accuracy"] for row in values[method, coding]]
            spread = f" ± {statistics.pstdev(found):.1f}" if len(found) > 1 else ""
            words = f"{statistics.fmean(found):.1f}{spread}"
            share = 100 * (up + down) / dense
            print(f"| {coding} | {up:,.0f} | {down:,.0f} | {share:.0f} % | {words} |")


if __name__ == "__main__":
    action, file, *rest = sys.argv[1:]
    table(Path(file)) if action == "table" else run(Path(file), [int(s) for s in rest] or [0])
