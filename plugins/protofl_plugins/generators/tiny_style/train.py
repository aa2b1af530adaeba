"""Training of `tiny-style` in two stages, on one core in minutes.

1. *Synthesis.* An encoder and G_s learn to reproduce the images through a code of 128 numbers
   with noise on it, by the L1 distances of their Laplacian pyramids (Bojanowski et al.,
   "Optimizing the Latent Space of Generative Networks", 2018). Then only codes remain.
2. *Mapping.* G_m learns to draw such codes from noise ε and a class, against a critic that tells
   them from the images' own (hinge loss, projected class). Codes are small, so this is cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import protofl as pf
from protofl_plugins.generators.tiny_style.network import (
    LATENT,
    Mapping,
    Shape,
    StyleConv,
    TinyStyleNetwork,
)

SPREAD = 40.0
"""Mean squared distance of two vectors w: within the bandwidths 10…50 of FedKTL's kernel."""


LR = 2e-3
"""Adam's first learning rate in stage 1; it falls to 0 along a cosine."""

NOISE = 0.25
"""Standard deviation of the noise on codes, which have variance 1."""


class Training(pf.Config):
    """Options of training, which decide everything together with images and threads."""

    epochs: int = pf.Field(30, ge=1, description="epochs of the synthesis network")
    steps: int = pf.Field(4000, ge=1, description="updates of the mapping network")
    batch: int = pf.Field(64, ge=2, description="images per update")
    seed: int = pf.Field(0, ge=0, description="seed of the training")


class _Encoder(nn.Module):
    """Images to codes, of variance 1 per number."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        levels = shape.side.bit_length() - 3
        widths = (shape.channels, *(min(32 * 2**i, 128) for i in range(levels)))
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
            for a, b in pairwise(widths)
        ]
        self.body = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(widths[-1] * 16, shape.code))
        self.norm = nn.BatchNorm1d(shape.code, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.body(x)))


class _Critic(nn.Module):
    """Scores codes, by class for a conditional generator."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(shape.code, 384), nn.LeakyReLU(0.2), nn.Linear(384, 384), nn.LeakyReLU(0.2)
        )
        self.score = nn.Linear(384, 1)
        self.embedding = nn.Embedding(shape.num_classes, 384) if shape.num_classes else None

    def forward(self, codes: Tensor, labels: Tensor | None) -> Tensor:
        x = self.body(codes)
        score = self.score(x).squeeze(1)
        if self.embedding is not None and labels is not None:
            score = score + (x * self.embedding(labels)).sum(1) / x.shape[1] ** 0.5
        return cast(Tensor, score)


def train(
    shape: Shape,
    images: Tensor,
    labels: Tensor | None,
    training: Training,
    report: Callable[[str], None] = lambda line: None,
) -> TinyStyleNetwork:
    """Train a generator; the same images, options and threads give the same weights.

    Args:
        shape: Its sizes; ``num_classes`` 0 for an unconditional one.
        images: [N, channels, H, W], uint8, or floats in −1…1; brought to ``shape.side``.
        labels: [N] int; None for an unconditional generator.
        training: How.
        report: Takes a line about the progress.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(training.seed)
        network = TinyStyleNetwork(shape).to(images.device)
        encoder = _Encoder(shape).to(images.device)
        order = torch.Generator().manual_seed(training.seed)
        _train_synthesis(network, encoder, images, training, order, report)
        codes = _encode(encoder, images, shape)
        _train_mapping(network.mapping, shape, codes, labels, training, order, report)
        normalise_latents(network, order)
    return network.eval()


@torch.no_grad()
def normalise_latents(network: TinyStyleNetwork, generator: torch.Generator) -> None:
    """Move and scale W to mean 0 and mean squared distance `SPREAD`; the images stay the same.

    Args:
        network: It is changed in place.
        generator: A CPU generator for the sample of W that is measured.
    """
    mapping, synthesis = network.mapping, network.synthesis
    noise = torch.randn(4096, LATENT, generator=generator).to(mapping.last.weight.device)
    labels = None
    if network.shape.num_classes:
        labels = torch.arange(len(noise), device=noise.device) % network.shape.num_classes
    w = mapping(noise, labels)
    mean = w.mean(0)
    scale = (SPREAD / (2 * (w - mean).square().sum(1).mean())).sqrt()
    mapping.last.weight.mul_(scale)
    mapping.last.bias.sub_(mean).mul_(scale)
    for module in synthesis.modules():
        if isinstance(module, StyleConv):
            module.style.bias.add_(module.style.weight @ mean)
            module.style.weight.div_(scale)


def _train_synthesis(
    network: TinyStyleNetwork,
    encoder: _Encoder,
    images: Tensor,
    training: Training,
    order: torch.Generator,
    report: Callable[[str], None],
) -> None:
    last, synthesis = network.mapping.last, network.synthesis
    weights = [*encoder.parameters(), *last.parameters(), *synthesis.parameters()]
    optimizer = torch.optim.Adam(weights, LR, betas=(0.9, 0.99))
    size = min(training.batch, len(images))
    steps = max(1, len(images) // size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, training.epochs * steps)
    for epoch in range(training.epochs):
        rows = torch.randperm(len(images), generator=order)[: steps * size].to(images.device)
        total = torch.zeros((), device=images.device)
        for index in torch.split(rows, size):
            x = _prepared(images[index], network.shape)
            flips = torch.rand(len(x), 1, 1, 1, generator=order).to(x.device) < 0.5
            x = torch.where(flips, x.flip(3), x)
            codes = encoder(x)
            noisy = codes + NOISE * torch.randn(codes.shape, generator=order).to(x.device)
            loss = _pyramid_distance(synthesis(last(noisy)), x)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += loss.detach()
        report(f"synthesis {epoch + 1}/{training.epochs}: distance {float(total) / steps:.4f}")


@torch.no_grad()
def _encode(encoder: _Encoder, images: Tensor, shape: Shape) -> Tensor:
    encoder.eval()
    return torch.cat([encoder(_prepared(chunk, shape)) for chunk in torch.split(images, 256)])


def _train_mapping(
    mapping: Mapping,
    shape: Shape,
    codes: Tensor,
    labels: Tensor | None,
    training: Training,
    order: torch.Generator,
    report: Callable[[str], None],
) -> None:
    device = codes.device
    critic = _Critic(shape).to(device)
    trunk: list[Tensor] = [
        p for name, p in mapping.named_parameters() if not name.startswith("last.")
    ]
    average = [p.detach().clone() for p in trunk]
    make = torch.optim.Adam(trunk, 2e-4, betas=(0.0, 0.99))
    judge = torch.optim.Adam(critic.parameters(), 4e-4, betas=(0.0, 0.99))
    size = min(4 * training.batch, len(codes))

    def draw() -> tuple[Tensor, Tensor | None, Tensor]:
        index = torch.randint(len(codes), (size,), generator=order).to(device)
        noise = torch.randn(size, LATENT, generator=order).to(device)
        return codes[index], labels[index] if labels is not None else None, noise

    for step in range(training.steps):
        real, y, noise = draw()
        real = real + NOISE * torch.randn(real.shape, generator=order).to(device)
        with torch.no_grad():
            fake = mapping.codes(noise, y)
            fake = fake + NOISE * torch.randn(fake.shape, generator=order).to(device)
        real.requires_grad_(True)
        right, wrong = critic(real, y), critic(fake, y)
        (slope,) = torch.autograd.grad(right.sum(), real, create_graph=True)
        loss = F.relu(1 - right).mean() + F.relu(1 + wrong).mean() + slope.square().sum(1).mean()
        judge.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        judge.step()

        _, y, noise = draw()
        made = mapping.codes(noise, y)
        made = made + NOISE * torch.randn(made.shape, generator=order).to(device)
        score = -critic(made, y).mean()
        make.zero_grad(set_to_none=True)
        score.backward()
        make.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, trunk, 0.005)
        if (step + 1) % max(1, training.steps // 10) == 0:
            with torch.no_grad():
                drawn = mapping.codes(noise, y)
                spread = float(drawn.std(0).mean() / codes.std(0).mean())
            report(f"mapping {step + 1}/{training.steps}: spread {spread:.2f} of the images'")
    with torch.no_grad():
        for parameter, mean in zip(trunk, average, strict=True):
            parameter.copy_(mean)


def _prepared(images: Tensor, shape: Shape) -> Tensor:
    """Images as the generator makes them: floats in −1…1 of its side."""
    x = images.float() / 127.5 - 1 if images.dtype == torch.uint8 else images.float()
    if x.shape[2:] != (shape.side, shape.side):
        size = (shape.side, shape.side)
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=False, antialias=True)
    return x.clamp(-1, 1)


def _pyramid_distance(a: Tensor, b: Tensor, levels: int = 3) -> Tensor:
    """Mean L1 distances over the bands of two Laplacian pyramids, finer bands counting more."""
    difference = a - b
    total = torch.zeros((), device=a.device)
    for level in range(levels):
        coarse = F.avg_pool2d(difference, 2)
        fine = difference - F.interpolate(coarse, scale_factor=2, mode="nearest")
        total = total + fine.abs().mean() * 2.0**-level * 2
        difference = coarse
    return total + difference.abs().mean()
