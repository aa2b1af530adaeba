"""Toy runs whose results are stored: ``tests/update.py`` writes, `test_golden.py` compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from width_toys import toy_width

import protofl as pf
from protofl.errors import Refused
from protofl.hooks.discovery.registry import Registry
from protofl.testing import toy as toyfed
from protofl.testing.donors import methods_to_run
from protofl.testing.equality import EXACT, double_precision

FOLDER = Path(__file__).parent
DATA = FOLDER / "toy.npz"
ROUNDS = 2
Options = Mapping[str, object]
OPTIONS: dict[str, Options] = {
    "fedet": {},
    "fedgen": {"epochs": 5, "eta_g": 0.01},
    "fedit": {"ranks": "4,2"},
    "fedktl": {"mu": 1},
    "fedl2g": {"warmup": 0},
    "fedorgp": {"lambda_c": 1},
    "fedplvm": {"lambda": 1},
    "fedprox": {"mu": 0.1},
    "fedsa": {"alpha": 0.9},
    "fedsa-lora": {"ranks": "4,2"},
    "fedtgp": {"S": 20},
    "fedtsp": {"steps": 3},
    "ffa-lora": {"ranks": "4,2"},
    "fiarse": {"sizes": "1,0.5,0.25", "server_rate": 0.5},
    "flexlora": {"ranks": "4,2"},
    "flora": {"ranks": "4,2"},
    "hetlora": {"ranks": "4,2", "gamma": 0.6},
    "protonorm": {"steps": 20, "scale": 2},
    "raflora": {"ranks": "4,2"},
}
"""Options of a method in its stored runs, if not its ``check_options``."""

FURTHER: dict[str, tuple[str, Options]] = {
    "fedex-lora-factors": ("fedex-lora", {"ranks": "1"}),
    "fedl2g-features": ("fedl2g", {"warmup": 1, "guide": "features"}),
    "fedplvm-models": ("fedplvm", {"lambda": 1, "share": "model"}),
    "gh-ofl-nb-diag": ("gh-ofl", {"head": "nb-diag"}),
    "gh-ofl-proto-hyper": (
        "gh-ofl",
        {"head": "proto-hyper", "syn_ns_per_class": 50, "epochs": 3},
    ),
    "gh-ofl-qda": ("gh-ofl", {"head": "qda"}),
    "fedsaf-official": ("fedsaf", {"variant": "official", "structure": "rdm_cos"}),
}
"""Further runs, and those that `runs_of` would make with other options."""


def runs_of(registry: Registry) -> dict[str, tuple[str, Options]]:
    """Return {file: (method, its options)} for the methods of protofl.

    Each method has a run, and a second one, ``METHOD-official``, if its published code departs from
    its paper.
    """
    found: dict[str, tuple[str, Options]] = {}
    for name in methods_to_run(registry, "protofl"):
        plugin = registry.load("method", name)
        options = OPTIONS.get(name, getattr(plugin, "check_options", {}))
        found[name] = (name, options)
        if getattr(getattr(plugin, "Config", None), "deviations", None):
            found[f"{name}-official"] = (name, {"variant": "official", **options})
    return found | FURTHER


RUNS = runs_of(Registry())

ADAM = {
    "fedgen",
    "fedgen-official",
    "fedktl",
    "fedktl-official",
    "fedmps",
    "fedpkd",
    "feddf",
    "fedpft",
    "gh-ofl-proto-hyper",
}
"""Runs whose server trains with Adam, which amplifies rounding (see `test_golden.py`)."""

ROUNDING = 1e-15
"""Largest value of a tensor that is 0 but for rounding, such as the gradient of a bias before
BatchNorm, which SCAFFOLD keeps as a control variate."""

WIDTHS = [toy_width(width) for width in (1.0, 0.5)]
"""A convolution, BatchNorm and two linear layers, in two widths."""

MODELS = [[toyfed.CNN, toyfed.NORM], WIDTHS, toyfed.EXITS, [toyfed.NORM]]
"""Architectures of the clients: the first that a method does not refuse."""


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
    if name.endswith("-official"):  # the stored runs began with other weights on each client
        more = {"same_init": False, **more}
    public = {}
    if getattr(Registry().load("method", method), "needs_public", False):
        x = read_data().x[:12]
        np.savez(folder / "public.npz", x_train=x.numpy(), y_train=np.arange(12) % 4)
        public["public"] = f"npz:{folder / 'public.npz'}"
    for members in MODELS:
        try:
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
        except Refused as error:
            if error.lacks != "requirement":
                raise
            refused = error
    raise refused


def run(name: str, folder: Path, changed: Options = MappingProxyType({})) -> dict[str, Tensor]:
    """Return the results of a run: global state, accuracies, losses, traffic and features.

    Data, models, public data, generators and the server compute in float64. The arguments are those
    of `plan_of`.
    """
    with double_precision():
        found = _results(toyfed.Toy(plan_of(name, folder, changed)))
        return {key: value.detach().clone().contiguous() for key, value in found}


def _results(toy: toyfed.Toy) -> Iterator[tuple[str, Tensor]]:
    lines = toy.rounds(ROUNDS)
    for key, value in toy.server.global_state.items():
        yield f"global_state/{key}", value
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


def path_of(name: str) -> Path:
    """Return the file of a run's results."""
    return FOLDER / f"{name}.safetensors"


def stored(name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the stored results of a run, and how they were made."""
    with safe_open(path_of(name), framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()


def differences(name: str, found: Mapping[str, Tensor]) -> dict[str, str]:
    """Return {key: difference in words} for results that differ from the stored ones."""
    expected, _ = stored(name)
    said = {key: "is new" for key in found.keys() - expected.keys()}
    for key, value in expected.items():
        got = found.get(key)
        if got is None:
            said[key] = "is missing"
        elif (got.shape, got.dtype) != (value.shape, value.dtype):
            said[key] = f"is {got.dtype} {list(got.shape)}, not {value.dtype} {list(value.shape)}"
        elif not value.is_floating_point():
            if not torch.equal(got, value):
                said[key] = "differs"
        else:
            # Relative to the tensor's largest value, as single elements may be near 0.
            scale = float(value.abs().max())
            error = float((got - value).abs().max())
            tolerance = 1e-7 if name in ADAM else EXACT
            if not error <= max(tolerance * scale, ROUNDING):  # also true for NaN
                said[key] = f"is off by {error:.3g}, values up to {scale:.3g}"
    return said
