"""FedKTL's generated images round by round, one per class, as a PNG.

    python benchmarks/fedktl_images.py npz:cifar10-12k.npz --models cnn4 --lr 0.001 --out grid.png

Further options of the run: ``--set partition.cap=false``, any number of times.

Runs FedKTL and reads, after each of the chosen rounds, the pairs that the server sends to clients
in the next one from the run's checkpoint.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import protofl as pf
import torch
from matplotlib import pyplot
from safetensors.torch import load_file
from torch import Tensor


def main() -> None:
    """Run FedKTL and draw what the generator made."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--models", default="htfe4")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--show", type=int, nargs="+", default=[1, 10, 20], help="rounds, from 0")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--mu", type=float, default=50.0)
    parser.add_argument("--generator", default="tiny-style")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("fedktl-images.png"))
    given = parser.parse_args()
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def look(event: pf.events.Event) -> None:
        if isinstance(event, pf.events.RoundDone) and event.row["round"] in given.show:
            kept[event.row["round"]] = pairs_of(folder)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        result = pf.run(
            "fedktl",
            models=given.models,
            dataset=given.dataset,
            clients=given.clients,
            rounds=max(given.show) + 1,
            lr=given.lr,
            generator=given.generator,
            set={"mu": given.mu, **dict(option.split("=", 1) for option in given.set)},
            out=folder,
            progress=look,
        )
        names = json.loads((folder / "partition.json").read_text()).get("classes")
    draw(kept, names, given.out)
    for row in result.record:
        print(
            row["round"], round(row["test_accuracy"], 4), row["loss_terms"], row["seconds"]["total"]
        )


def pairs_of(folder: Path) -> tuple[Tensor, Tensor]:
    """The images of the committed round and their classes."""
    manifest = json.loads((folder / "checkpoint" / "manifest.json").read_text())
    tensors = load_file(folder / "checkpoint" / manifest["server"])
    classes = tensors.get("knowledge/images.classes", tensors["knowledge/classes"])
    return tensors["knowledge/images"], classes


def draw(kept: dict[int, tuple[Tensor, Tensor]], names: list[str] | None, out: Path) -> None:
    """A row for each round, a column for each class."""
    columns = max(int(classes.max()) for _, classes in kept.values()) + 1
    figure, axes = pyplot.subplots(
        len(kept), columns, figsize=(1.1 * columns, 1.25 * len(kept)), squeeze=False
    )
    for line, (number, (images, classes)) in zip(axes, sorted(kept.items()), strict=True):
        shown = images if images.dtype == torch.uint8 else images.add(1).mul(127.5).clamp(0, 255)
        for axis in line:
            axis.set_axis_off()
        for image, c in zip(shown.byte(), classes.tolist(), strict=True):
            line[c].imshow(image.permute(1, 2, 0).squeeze(-1).numpy(), interpolation="nearest")
            line[c].set_title(names[c] if names else str(c), fontsize=7)
        line[0].text(-0.15, 0.5, f"round {number}", transform=line[0].transAxes, rotation=90,
                     va="center", ha="right", fontsize=8)  # fmt: skip
    figure.tight_layout()
    figure.savefig(out, dpi=150)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
