"""Toy runs whose results are stored: `make.py` writes them, `test_golden.py` compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor
from width_toys import ADAPTED, toy_width

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision

FOLDER = Path(__file__).parent
DATA = FOLDER / "toy.npz"
ROUNDS = 2
Options = Mapping[str, object]
RUNS: dict[str, tuple[str, Options]] = {
    "local": ("local", {}),
    "fedavg": ("fedavg", {}),
    "fedprox": ("fedprox", {"mu": 0.1}),
    "lg-fedavg": ("lg-fedavg", {}),
    "fedproto": ("fedproto", {}),
    "fedproto-official": ("fedproto", {"variant": "official"}),
    "fedtgp": ("fedtgp", {"S": 20}),
    "fedtgp-official": ("fedtgp", {"variant": "official", "S": 20}),
    "fedorgp": ("fedorgp", {"lambda_c": 1}),
    "fedorgp-official": ("fedorgp", {"variant": "official", "lambda_c": 1}),
    "protonorm": ("protonorm", {"steps": 20, "scale": 2}),
    "protonorm-official": ("protonorm", {"variant": "official", "steps": 20, "scale": 2}),
    "fedsa": ("fedsa", {"alpha": 0.9}),
    "fedsa-official": ("fedsa", {"variant": "official", "alpha": 0.9}),
    "feddistill": ("feddistill", {}),
    "fedgh": ("fedgh", {}),
    "fedgen": ("fedgen", {"epochs": 5, "eta_g": 0.01}),
    "fedgen-official": ("fedgen", {"variant": "official", "epochs": 5, "eta_g": 0.01}),
    "fml": ("fml", {}),
    "fml-official": ("fml", {"variant": "official"}),
    "fedmrl": ("fedmrl", {"auxiliary_dim": 4}),
    "fedl2g": ("fedl2g", {"warmup": 0}),
    "fedl2g-features": ("fedl2g", {"warmup": 1, "guide": "features"}),
    "fedtsp": ("fedtsp", {"steps": 3}),
    "fedplvm": ("fedplvm", {"lambda": 1}),
    "fedplvm-models": ("fedplvm", {"lambda": 1, "share": "model"}),
    "fedsaf": ("fedsaf", {}),
    "fedsaf-official": ("fedsaf", {"variant": "official", "structure": "rdm_cos"}),
    "alignfed": ("alignfed", {}),
    "heterofl": ("heterofl", {}),
    "fedrolex": ("fedrolex", {}),
    "fiarse": ("fiarse", {"sizes": "1,0.5,0.25", "server_rate": 0.5}),
    "hetlora": ("hetlora", {"ranks": "4,2", "gamma": 0.6}),
    "flexlora": ("flexlora", {"ranks": "4,2"}),
    "flora": ("flora", {"ranks": "4,2"}),
    "raflora": ("raflora", {"ranks": "4,2"}),
    "fedkd": ("fedkd", {}),
    "fedkd-official": ("fedkd", {"variant": "official"}),
    "fedktl": ("fedktl", {"mu": 1}),
    "fedktl-official": ("fedktl", {"variant": "official", "mu": 1}),
    "fedpkd": ("fedpkd", {}),
    "fedmd": ("fedmd", {}),
    "ds-fl": ("ds-fl", {}),
    "feddf": ("feddf", {}),
    "fedet": ("fedet", {}),
}
"""{file: (method, its options)}."""

ADAM = {"fedgen", "fedgen-official", "fedktl", "fedktl-official", "fedpkd", "feddf"}
"""Runs whose server trains with Adam, which amplifies rounding (see `test_golden.py`)."""

WIDTHS = [toy_width(width) for width in (1.0, 0.5)]
"""A convolution, BatchNorm and two linear layers, in two widths."""


def make_data() -> None:
    """Write the images and labels, and each row's client and part (training or test)."""
    images = toyfed.make_images(toyfed.MIXED, seed=2024)
    piece = np.zeros(len(images.y), dtype=np.int64)
    for number, pair in enumerate(images.split or []):
        for part, rows in enumerate(pair):
            piece[rows.numpy()] = 2 * number + part
    np.savez_compressed(DATA, x=images.x.numpy(), y=images.y.numpy(), piece=piece)


def read_data() -> pf.datasets.Dataset:
    """Return the stored images: four clients, four classes."""
    with np.load(DATA) as file:
        x, y, piece = (torch.from_numpy(file[key]) for key in ("x", "y", "piece"))
    rows = [(piece == number).nonzero().squeeze(1) for number in range(int(piece.max()) + 1)]
    names = [f"class {c}" for c in range(int(y.max()) + 1)]
    return pf.datasets.Dataset(x, y, len(y), names, list(zip(rows[::2], rows[1::2], strict=True)))


def plan_of(
    name: str, folder: Path, changed: Options = MappingProxyType({}), **more: object
) -> pf.backends.Plan:
    """Return the plan of one stored run.

    Args:
        name: Its name in `RUNS`.
        folder: Where public samples and decoded data are written.
        changed: Options of its method that differ from the stored run's.
        **more: Further options of a run.
    """
    method, options = RUNS[name]
    options = {**options, **changed}
    shared = method in ("fedavg", "fedprox", "fiarse", *ADAPTED) or options.get("share") == "model"
    members = [toyfed.NORM] if shared else [toyfed.CNN, toyfed.NORM]
    if method in ("heterofl", "fedrolex"):
        members = WIDTHS
    public = {}
    if getattr(Registry().load("method", method), "needs_public", False):
        x = read_data().x[:12]
        np.savez(folder / "public.npz", x_train=x.numpy(), y_train=np.arange(12) % 4)
        public["public"] = f"npz:{folder / 'public.npz'}"
    return toyfed.make_plan(
        method,
        folder,
        **public,
        **more,
        data=read_data(),
        models=toyfed.group(*members, K=6),
        rounds=ROUNDS,
        optimizer="sgd",  # only servers use Adam (see ADAM)
        options={method: options} if options else {},
    )


def run(name: str, folder: Path, changed: Options = MappingProxyType({})) -> dict[str, Tensor]:
    """Return the results of a run: knowledge, accuracies, losses, traffic and features.

    Data, models, public data, generators and the server compute in float64. The arguments are those
    of `plan_of`.
    """
    with double_precision():
        found = _results(toyfed.Toy(plan_of(name, folder, changed)))
        return {key: value.detach().clone().contiguous() for key, value in found}


def _results(toy: toyfed.Toy) -> Iterator[tuple[str, Tensor]]:
    lines = toy.rounds(ROUNDS)
    for key, value in toy.server.knowledge.items():
        yield f"knowledge/{key}", value
    for number, line in enumerate(lines):
        at = f"round {number}/"
        yield at + "accuracy", torch.tensor([line["clients"][c] for c in range(4)])
        for term, value in line["loss_terms"].items():
            yield f"{at}loss/{term}", torch.tensor(value)
        for key in ("upload_floats", "download_floats"):
            yield at + key, torch.tensor(line[key])
    for number in range(4):
        record = toy.client(number)
        record.model.eval()
        with torch.no_grad():
            yield f"features/client {number}", record.model.features(record.test.inputs())
