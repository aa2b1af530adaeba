"""`stylegan3` and `stylegan-xl`: NVIDIA-format network files, through the official code.

Karras et al., "Alias-Free Generative Adversarial Networks", NeurIPS 2021
(https://github.com/NVlabs/stylegan3), and Sauer et al., "StyleGAN-XL: Scaling StyleGAN to Large
Diverse Datasets", SIGGRAPH 2022 (https://github.com/autonomousvision/stylegan-xl).

Such a file is a Python pickle that carries the network's source code: opening one runs whatever
code is in it. There is no safe way to read it, so it takes an explicit ``trust_pickle=true``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator
from torch import Tensor

import protofl as pf


def _absolute(path: Path | None) -> Path | None:
    return pf.expand_user(path).absolute() if path else None


_Path = Annotated[Path | None, AfterValidator(_absolute)]


class _StyleGAN:
    """Common parts of both generators."""

    code = ""
    sizes = pf.datasets.Outline(latent_dim=512, side=64, channels=3, num_classes=None)

    class Config(pf.Config):
        """Options."""

        weights: _Path = pf.Field(None, description="the network file (.pkl) of the authors")
        repo: _Path = pf.Field(
            None,
            consent=True,
            description="a clone of the official code: the folder with legacy.py and dnnlib, whose "
            "code is run",
        )
        trust_pickle: bool = pf.Field(
            False,
            consent=True,
            description="I trust the file: opening a pickle runs the code in it, with my rights",
        )
        batch: int = pf.Field(8, ge=1, description="images that are generated together")

    @pf.hookimpl
    def outline(self, config: Config, data_dir: Path) -> pf.datasets.Outline:
        """The usual sizes; only the file itself knows its own, and it is not opened for that."""
        _check(config, self.code)
        return self.sizes

    @pf.hookimpl
    def open_generator(
        self, config: Config, device: torch.device, data_dir: Path
    ) -> StyleGANGenerator:
        """Load ``G_ema`` with the official ``legacy.load_network_pkl``."""
        weights, repo = _check(config, self.code)
        try:
            with _official(repo) as legacy, weights.open("rb") as file:
                network = legacy.load_network_pkl(file)["G_ema"]
        except Exception as error:
            raise pf.UsageError(
                f"{weights} cannot be opened with {repo}: {type(error).__name__}: {error}",
                do="see whether the repository's own gen_images.py opens it",
            ) from error
        return StyleGANGenerator(network, device, config.batch)


class StyleGAN3(_StyleGAN):
    """StyleGAN3 from an official network file (a pickle: --set generator.trust_pickle=true)."""

    code = "https://github.com/NVlabs/stylegan3"


class StyleGANXL(_StyleGAN):
    """StyleGAN-XL from an official network file (a pickle: --set generator.trust_pickle=true)."""

    code = "https://github.com/autonomousvision/stylegan-xl"


class StyleGANGenerator:
    """An opened network with ``mapping``, ``synthesis``, ``z_dim``, ``w_dim``, ``img_resolution``.

    The vector of FedKTL is w, of which ``synthesis`` takes a copy for each of its layers.
    """

    def __init__(self, network: Any, device: torch.device, batch: int = 8) -> None:  # noqa: ANN401
        self._network = network.to(device).eval().requires_grad_(False)
        self._device, self._batch = device, batch
        self._classes = int(getattr(network, "c_dim", 0))
        self._layers = int(getattr(network, "num_ws", 0)) or int(self._map(1, None).shape[1])
        self.outline = pf.datasets.Outline(
            int(network.w_dim),
            int(network.img_resolution),
            int(getattr(network, "img_channels", 3)),
            self._classes,
        )

    def sample_latents(
        self, count: int, generator: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """W = G_m(ε), of random classes where none are given."""
        return self._map(count, generator, labels)[:, 0].float()

    def images(self, latents: Tensor) -> Tensor:
        """G_s(w), with constant noise, so that w alone decides."""
        parts = []
        options: dict[str, Any] = {"noise_mode": "const"}
        if self._device.type == "cpu":
            options["force_fp32"] = True
        for w in torch.split(latents.to(self._device).float(), self._batch):
            ws = w.unsqueeze(1).repeat(1, self._layers, 1)
            parts.append(self._network.synthesis(ws, **options).float())
        return torch.cat(parts)

    def _map(
        self, count: int, generator: torch.Generator | None, labels: Tensor | None = None
    ) -> Tensor:
        z_dim = int(self._network.z_dim)
        z = torch.randn(count, z_dim, generator=generator) if generator else torch.zeros(1, z_dim)
        c = torch.zeros(count, self._classes)
        if self._classes:
            if labels is None:
                labels = torch.randint(self._classes, (count,), generator=generator)
            c = torch.nn.functional.one_hot(labels.cpu(), self._classes).float()
        result: Tensor = self._network.mapping(z.to(self._device), c.to(self._device))
        return result


def _check(config: _StyleGAN.Config, code: str) -> tuple[Path, Path]:
    """The file and the code, where both are there and the risk is taken.

    Raises:
        UsageError: Something is missing.
    """
    if config.repo is None or not (config.repo / "legacy.py").is_file():
        raise pf.UsageError(
            f"the official code is not at {config.repo}" if config.repo else "repo is not given",
            "it is a folder with legacy.py, dnnlib and torch_utils",
            f"git clone {code}, then --set generator.repo=FOLDER",
        )
    if config.weights is None or not config.weights.is_file():
        raise pf.UsageError(
            f"network file {config.weights} does not exist"
            if config.weights
            else "weights is not given",
            do="download one from the authors, then --set generator.weights=FILE.pkl",
        )
    if not config.trust_pickle:
        raise pf.UsageError(
            f"{config.weights} is a Python pickle and is not opened without your consent",
            "opening it runs whatever code is in it, with your rights: it can read, send and "
            "delete your files. Nothing can check it before.",
            "if you trust where it comes from: --set generator.trust_pickle=true",
        )
    return config.weights, config.repo


@contextmanager
def _official(repo: Path) -> Iterator[Any]:
    """The repository's module ``legacy``, with the repository importable while inside."""
    other = sys.modules.get("legacy")
    if other is not None and Path(str(other.__file__)).parent != repo:
        home = Path(str(other.__file__)).parent
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and home in Path(file).parents:
                del sys.modules[name]
    sys.path.insert(0, str(repo))
    try:
        yield importlib.import_module("legacy")
    finally:
        sys.path.remove(str(repo))
