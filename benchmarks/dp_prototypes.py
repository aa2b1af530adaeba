"""Measure accuracy and three attacks against ε, for ``dp-prototypes``; and accuracy for ``dp-sgd``.

    python benchmarks/dp_prototypes.py --out docs/images/dp-prototypes.png
    python benchmarks/dp_prototypes.py --sgd

A small net is trained on 600 digits, which are public, and frozen. Ten clients have the other
1,197, and one round of FedProto. With ``--sgd``, ten clients train a small net from scratch by
LG-FedAvg and FedAvg. Prints a Markdown table of means over seeds; writes the figure.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import protofl as pf
from protofl.testing import toy

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, None)
"""Budgets of a client at δ = 1e-5; None: no noise."""

PUBLIC, WIDTH = 600, 32
WEIGHTS = Path(tempfile.gettempdir()) / "protofl-dp-prototypes.pt"


class Extractor(nn.Module):
    """A frozen net from images to unit features, which passes features unchanged."""

    def __init__(self, K: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, K))

    def forward(self, x: Tensor) -> Tensor:
        """Return features B×K of length 1."""
        return x if x.dim() == 2 else nn.functional.normalize(self.inner(x), dim=1)


def _frozen(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    made = Extractor(K).requires_grad_(False)
    if torch.empty(0).device.type != "meta":
        made.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return made


Frozen = toy.group(
    replace(toy.architecture("frozen", _frozen), precomputed=lambda model: model.extractor),
    K=WIDTH,
    side=8,
)


def _trained(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, K), nn.ReLU())


Trained = toy.group(toy.architecture("trained", _trained), K=WIDTH, side=8)


def prepare(folder: Path) -> Path:
    """Train the net on public digits, and write the others as a data set; return its file."""
    digits, order = load_digits(), np.random.default_rng(0).permutation(1797)
    x = (digits.images[order] * 255 / 16).round().astype(np.uint8)
    y = digits.target[order]
    np.savez(folder / "digits.npz", x_train=x[PUBLIC:, None], y_train=y[PUBLIC:])
    torch.manual_seed(0)
    net, head = Extractor(WIDTH), nn.Linear(WIDTH, 10)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], 3e-3)
    images = torch.from_numpy(x[:PUBLIC, None]).float() / 127.5 - 1  # as models see them
    labels = torch.from_numpy(y[:PUBLIC]).long()
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(10 * head(net(images)), labels).backward()
        optimizer.step()
    torch.save(net.state_dict(), WEIGHTS)
    return folder / "digits.npz"


def measured(data: Path, epsilon: float | None, seed: int, folder: Path) -> dict[str, float]:
    """Return accuracy, and what the attacks find, of one run."""
    from protofl_privacy import leak

    out = folder / f"{epsilon}-{seed}"
    noisy: dict[str, Any] = {"transforms": ["dp-prototypes"]} if epsilon else {}
    settings = {"dp-prototypes.epsilon": epsilon} if epsilon else {}
    pf.run(
        "fedproto", models=f"{__file__}:Frozen", dataset=f"npz:{data}", clients=10, rounds=1,
        partition="dirichlet", seed=seed, drop=["align"], record_uploads=True, keep="last",
        set={"partition.beta": 0.5, **settings}, out=out, backend="local", device="cpu",
        batch_size=16, data_dir=folder / "cache", progress=False, **noisy,
    )  # fmt: skip
    run = pf.load_run(out)
    found = leak.measure(run, seed=seed, budget=400)
    members = [m for m in found.membership if m.attacker == "insider" and m.rule == "per-class"]
    sent = [r for r in found.reconstructions.leaks if (r.attacker, r.behind) == ("insider", "sent")]
    labels = {each.key: each for each in found.labels}
    small = [m.by_size[size].value for m in members for size in ("1", "2") if size in m.by_size]
    known = [value for value in small if value is not None]
    return {
        "accuracy": run.rows[-1].test_accuracy or 0.0,
        "membership": members[0].auc.value or 0.5,
        "membership of small classes": statistics.fmean(known) if known else float("nan"),
        "gain": sent[0].gain.value if sent and sent[0].gain.value is not None else float("nan"),
        "presence": labels["prototypes"].presence.value or 0.5,
    }


def trained(data: Path, epsilon: float | None, seed: int, folder: Path) -> dict[str, float]:
    """Return the accuracy of methods whose clients train with ``dp-sgd``."""
    noisy: dict[str, Any] = {"transforms": ["dp-sgd"]} if epsilon else {}
    settings = {"dp-sgd.epsilon": epsilon} if epsilon else {}
    result = {}
    for method in ("lg-fedavg", "fedavg"):
        found = pf.run(
            method, models=f"{__file__}:Trained", dataset=f"npz:{data}", clients=10, rounds=10,
            partition="dirichlet", seed=seed, set={"partition.beta": 0.5, **settings}, lr=0.5,
            local_epochs=1, batch_size=10, out=folder / f"{method}-{epsilon}-{seed}",
            backend="local", device="cpu", data_dir=folder / "cache", progress=False, **noisy,
        )  # fmt: skip
        result[f"{method}, accuracy"] = found.record[-1].test_accuracy or 0.0
    return result


def main() -> None:
    """Print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sgd", action="store_true")
    given = parser.parse_args()
    pf.trust_code(__file__)
    table: dict[float | None, dict[str, list[float]]] = {}
    measure = trained if given.sgd else measured
    with tempfile.TemporaryDirectory() as name:
        data = prepare(Path(name))
        for epsilon in EPSILONS:
            each = [measure(data, epsilon, seed, Path(name)) for seed in range(given.seeds)]
            table[epsilon] = {key: [one[key] for one in each] for key in each[0]}
    names = [*next(iter(table.values()))]
    print(f"| ε | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for epsilon, columns in table.items():
        cells = " | ".join(f"{_mean(values):.3f}" for values in columns.values())
        print(f"| {'no noise' if epsilon is None else epsilon} | {cells} |")
    if given.out:
        draw(table, given.out)


def draw(table: dict[float | None, dict[str, list[float]]], out: Path) -> None:
    """Write the figure: accuracy above, the attacks below, against ε."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.9, 2.9), layout="constrained")
    epsilons = [epsilon for epsilon in table if epsilon is not None]
    panels = {
        "accuracy": {"accuracy": "test accuracy"},
        "AUC of attacks": {
            "presence": "labels",
            "membership of small classes": "membership, classes of 1 or 2",
            "membership": "membership",
        },
        "reconstruction: gain in dB": {"gain": "over the class mean"},
    }
    colours = ("#0072b2", "#d55e00", "#009e73")
    for axis, (title, lines) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for (name, label), colour in zip(lines.items(), colours, strict=False):
            means = [_mean(table[epsilon][name]) for epsilon in epsilons]
            axis.plot(epsilons, means, "o-", color=colour, markersize=3, label=label)
            axis.axhline(_mean(table[None][name]), color=colour, linestyle=":", linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], minor=False)
        axis.minorticks_off()
        axis.tick_params(labelsize=7)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("ε (dotted: no noise)", fontsize=8)
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)
    figure.savefig(out, dpi=160, metadata={"Software": None})


def _mean(values: list[float]) -> float:
    """Return the mean over seeds of what was measured; NaN for nothing."""
    known = [value for value in values if value == value]
    return statistics.fmean(known) if known else float("nan")


if __name__ == "__main__":
    main()
