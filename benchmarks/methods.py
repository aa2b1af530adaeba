"""Every installed method, ten rounds each: accuracy, traffic and seconds a round as one table.

    python benchmarks/methods.py --data DIR --runs runs/methods > table.md

DIR holds ``mnist-12k.npz`` and ``cifar10-12k.npz``: balanced subsets of 12,000 images as `npz:`
data sets. A run that is finished in the runs' folder is read, not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import protofl as pf
from protofl.errors import RunFailure, UsageError

UNCAPPED = {"set": {"partition.cap": False}}
"""The split of the first tables, which were made before `dirichlet` had its cap."""


@dataclass
class Case:
    """One data set and model group, and the methods that are compared on it."""

    title: str
    models: str
    data: str
    methods: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case(
        "`htcnn8`, MNIST",
        "htcnn8",
        "mnist-12k.npz",
        (
            "local", "lg-fedavg", "fedproto", "fedtgp", "fedsa",
            "feddistill", "fedgh", "fedgen", "fml", "fedkd",
        ),
        UNCAPPED,
    ),
    Case("`cnn4`, MNIST", "cnn4", "mnist-12k.npz", ("local", "fedavg", "fedprox"), UNCAPPED),
    Case("`htfe4`, CIFAR-10", "htfe4", "cifar10-12k.npz", ("local", "fedktl"), UNCAPPED),
    Case(
        "`fedpkd-het`, CIFAR-10, `--public 1000`, one private, public and server epoch",
        "fedpkd-het",
        "cifar10-12k.npz",
        ("local", "fedmd", "ds-fl", "feddf", "fedet", "fedpkd"),
        {"public": "1000", "local_epochs": 1},
    ),
)  # fmt: skip


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the npz files")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--case", type=int, action="append", help="only this case, from 0")
    given = parser.parse_args()
    for number in given.case or range(len(CASES)):
        case = CASES[number]
        rows = [one(case, method, given) for method in case.methods]
        print(f"\n{case.title} (majority guess {rows[0]['majority']:.3f}):\n")
        print(table(rows), flush=True)


def one(case: Case, method: str, given: argparse.Namespace) -> dict[str, Any]:
    """One method's row; the run is made where its folder has no summary."""
    out = given.runs / f"{method}-{case.models}-{case.data.removesuffix('.npz')}-{given.rounds}"
    failure = None
    if not (out / "summary.json").exists():
        options = case.options | {"clients": 20, "rounds": given.rounds, "seed": 0}
        if method in ("fml", "fedkd"):  # the htcnn8 net with the fewest parameters
            options["set"] = {**options.get("set", {}), "auxiliary": "htcnn8-2"}
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
    majority = json.loads(summary.read_text())["majority_accuracy"] if summary.exists() else None
    return {"method": method, "record": record, "majority": majority, "failure": failure}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| method | best | final | floats up | floats down | seconds a round |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        record = row["record"]
        accuracy = [line["test_accuracy"] for line in record]
        # Round 0 is not like the others: the server knows nothing yet.
        later = record[1:] or record
        up, down, seconds = (
            statistics.median(value(line) for line in later)
            for value in (
                lambda line: line["upload_floats"],
                lambda line: line["download_floats"],
                lambda line: line["seconds"]["total"],
            )
        )
        final = f"{accuracy[-1]:.3f}" if not row["failure"] else row["failure"]
        lines.append(
            f"| `{row['method']}` | {max(accuracy):.3f} | {final} "
            f"| {up:,.0f} | {down:,.0f} | {seconds:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
