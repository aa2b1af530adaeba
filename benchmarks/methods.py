"""Compare methods over ten rounds: tables of accuracy, traffic and seconds per round.

    python benchmarks/methods.py --data DIR --runs runs/methods > table.md

DIR holds ``mnist-12k.npz`` and ``cifar10-12k.npz`` (balanced subsets of 12,000 images) as `npz:`
data sets, and ``digits-table.npz``, scikit-learn's digits as rows of 64 numbers::

    x, y = sklearn.datasets.load_digits(return_X_y=True)
    np.savez("digits-table.npz", x_train=(x / 16).astype("float32"), y_train=y)

Finished runs in the runs folder are read, not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import protofl as pf
from protofl.errors import RunFailure, UsageError

SMALLEST = {"set": {"auxiliary": "htcnn8-2"}}
"""The smallest model of ``htcnn8`` as the auxiliary model."""

LIKE_OTHERS = {"set": {"recipe": "run", "mask": "loss"}}
"""The run's optimiser, and scores of all classes, as other methods have them."""


@dataclass
class Case:
    """A data set, a model group, and the methods that are compared on them."""

    title: str
    models: str
    data: str
    methods: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Extra options of single methods. In ``set``, None removes an option of the case."""
    label: str = ""
    """Suffix of run folder names, for cases that differ only in options."""


def distilling(beta: float) -> Case:
    """Return the case of methods with public data in FedPKD's comparison setting, three seeds."""
    adam = {"optimizer": "adam", "lr": 1e-3, "batch_size": 32, "local_epochs": 10}
    return Case(
        f"`mlp`, digits as tables, the setting of FedPKD's comparison, beta {beta}, three seeds",
        "mlp",
        "digits-table.npz",
        ("local", "fedmd", "ds-fl", "feddf", "fedet", "fedpkd"),
        {
            "clients": 10,
            "public": "200",
            "trials": 3,
            "partition": "dirichlet",
            "set": {"partition.over": "clients", "partition.beta": beta, "epochs": "paper"},
        },
        {"local": {**adam, "set": {"epochs": None}}},
        f"-{beta}",
    )


CASES = (
    Case(
        "`htcnn8`, MNIST, three seeds",
        "htcnn8",
        "mnist-12k.npz",
        (
            "local", "lg-fedavg", "fedproto", "fedtgp", "fedorgp", "protonorm", "fedsa",
            "fedsaf", "alignfed", "fedplvm", "fedtsp", "feddistill", "fedgh", "fedgen", "fml",
            "fedkd", "fedmrl", "fedl2g",
        ),
        {"trials": 3},
        {"fml": SMALLEST, "fedkd": SMALLEST, "fedmrl": SMALLEST, "fedplvm": {"set": {"lambda": 1}}},
    ),
    Case(
        "`cnn4`, MNIST, three seeds",
        "cnn4",
        "mnist-12k.npz",
        ("local", "fedavg", "fedprox", "fiarse"),
        {"trials": 3},
        {"fiarse": {"set": {"sizes": "1,0.5,0.25"}}},
    ),
    Case(
        "`cnn4`, MNIST, adapters of ranks 8, 4 and 2 over frozen random weights, three seeds",
        "cnn4",
        "mnist-12k.npz",
        ("hetlora", "flexlora", "flora", "raflora"),
        {"trials": 3, "set": {"ranks": "8,4,2"}},
        label="-adapters",
    ),
    Case(
        "`widths:cnn4@1,0.5,0.25`, MNIST, three seeds",
        "widths:cnn4@1,0.5,0.25",
        "mnist-12k.npz",
        ("local", "fedproto", "heterofl", "fedrolex"),
        {"trials": 3},
        {"heterofl": LIKE_OTHERS, "fedrolex": LIKE_OTHERS},
    ),
    Case("`htfe4`, CIFAR-10", "htfe4", "cifar10-12k.npz", ("local", "fedktl")),
    distilling(0.5),
    distilling(0.1),
)  # fmt: skip


def main() -> None:
    """Run what is missing and print a table for each case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the npz files")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--trials", type=int, help="instead of the case's own, as for seconds alone"
    )
    parser.add_argument("--case", type=int, action="append", help="only this case, from 0")
    given = parser.parse_args()
    for number in given.case or range(len(CASES)):
        case = CASES[number]
        rows = [one(case, method, given) for method in case.methods]
        print(f"\n{case.title} (majority guess {rows[0]['majority']:.3f}):\n")
        print(table(rows), flush=True)


def one(case: Case, method: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return one method's row; run the method first if its folder has no summary."""
    group = case.models.partition(":")[0]
    name = f"{method}-{group}-{case.data.removesuffix('.npz')}-{given.rounds}{case.label}"
    out = given.runs / name
    failure = None
    if not (out / "summary.json").exists():
        own = case.own.get(method, {})
        options = {"clients": 20, "rounds": given.rounds, "seed": 0} | case.options | own
        options |= {"trials": given.trials} if given.trials else {}
        chosen = case.options.get("set", {}) | own.get("set", {})
        options["set"] = {key: value for key, value in chosen.items() if value is not None}
        dataset = f"npz:{given.data / case.data}"
        try:
            if (out / "config.json").exists():
                pf.run(out=out, resume=True)
            else:
                pf.run(method, models=case.models, dataset=dataset, out=out, **options)
        except (RunFailure, UsageError) as error:
            failure = str(error).split("\n")[0]
    record = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = out / "summary.json"
    majority = None
    if summary.exists():
        whole = json.loads(summary.read_text())
        majority = mean(trial["majority_accuracy"] for trial in whole.get("trials", [whole]))
    return {"method": method, "record": record, "majority": majority, "failure": failure}


def per_trial(record: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> list[Any]:
    """Return the value of every round as a list for each trial."""
    return [
        [value(line) for line in record if line["trial"] == trial]
        for trial in sorted({line["trial"] for line in record})
    ]


def has_server(record: list[dict[str, Any]]) -> bool:
    """Return True if the method trains a model on the server."""
    return "server_test_accuracy" in record[0]["extra"]


def server_accuracy(line: dict[str, Any]) -> float:
    """Return the server model's accuracy on the global test samples after a round."""
    return float(line["extra"]["server_test_accuracy"])


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    server = any(has_server(row["record"]) for row in rows)
    heads = ["method", "best", "final", *(["server"] if server else [])]
    heads += ["floats up", "floats down", "seconds a round"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        record = row["record"]
        accuracy = per_trial(record, lambda line: line["test_accuracy"])
        # Skip round 0: the server has no knowledge yet.
        later = [line for line in record if line["round"]] or record
        up, down, seconds = (
            statistics.median(value(line) for line in later)
            for value in (
                lambda line: line["upload_floats"],
                lambda line: line["download_floats"],
                lambda line: line["seconds"]["total"],
            )
        )
        final = f"{mean(trial[-1] for trial in accuracy):.3f}"
        cells = [f"`{row['method']}`", f"{mean(map(max, accuracy)):.3f}", row["failure"] or final]
        if server:
            own = per_trial(record, server_accuracy) if has_server(record) else []
            cells.append(f"{mean(map(max, own)):.3f}" if own else "")
        cells += [f"{up:,.0f}", f"{down:,.0f}", f"{seconds:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
