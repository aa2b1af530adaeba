"""Contract of image generators."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from protofl.data.generators import Generator, Outline
from protofl.federation.plan.run_data import image_source
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skip, skipped

COUNT = 3


class GeneratorContract(Contract):
    """The checks of an image generator, on the CPU.

    A generator whose files are not here is left out where it has to be opened.

    Attributes:
        data_dir: Where downloads are kept; by default a folder that is empty.
    """

    kind = "generator"
    data_dir: ClassVar[Path | None] = None

    @property
    def cache(self) -> Path:
        """The folder of downloads."""
        return self.folder / "data" if self.data_dir is None else self.data_dir

    def opened(self) -> Generator:
        """The generator."""
        choice = self.choice()
        with skipped("it cannot be opened here"):
            result: Generator | None = choice.call(
                "open_generator",
                device=torch.device("cpu"),
                data_dir=self.cache,
            )
        expect(result is not None, "open_generator returns None")
        assert result is not None
        held = vars(choice.instance)
        expect(not held, f"self holds {', '.join(held)}; each run opens its own")
        return result

    def latents(self, generator: Generator, seed: int = 0) -> Tensor:
        """Some latent vectors."""
        labels = None
        if generator.outline.num_classes:
            labels = torch.arange(COUNT) % generator.outline.num_classes
        return generator.sample_latents(COUNT, torch.Generator().manual_seed(seed), labels)

    def test_outline(self) -> None:
        """outline, asked before it is loaded, tells the sizes of the opened generator."""
        with skipped("it cannot be opened here"):
            told = self.choice().call("outline", data_dir=self.cache)
        generator = self.opened()
        expect(isinstance(generator.outline, Outline), f"its outline is {generator.outline!r}")
        if told is None:
            skip("it has no outline hook; the dry run assumes the usual sizes")
        for size in ("latent_dim", "side", "channels", "num_classes"):
            before, after = getattr(told, size), getattr(generator.outline, size)
            open_question = size == "num_classes" and before is None
            expect(open_question or before == after, f"{size}: {before} told, {after} opened")

    def test_latents(self) -> None:
        """sample_latents gives finite vectors n×H, from the generator that it is given alone."""
        generator, before = self.opened(), torch.get_rng_state()
        first, again, other = (self.latents(generator, seed) for seed in (0, 0, 1))
        shape = (COUNT, generator.outline.latent_dim)
        expect(tuple(first.shape) == shape, f"latents are {tuple(first.shape)}, n×H is {shape}")
        expect(bool(first.isfinite().all()), "a latent vector holds NaN or infinity")
        expect(torch.equal(first, again), "equal generators give other latents")
        expect(not torch.equal(first, other), "every seed gives the same latents")
        expect(torch.equal(before, torch.get_rng_state()), "torch's global generator is drawn from")
        if generator.outline.num_classes:
            chance = generator.sample_latents(COUNT, torch.Generator().manual_seed(0), None)
            expect(tuple(chance.shape) == shape, "without labels the latents have another shape")

    def test_images(self) -> None:
        """Images have the outline's shape, lie in −1…1, and follow from the latents."""
        generator = self.opened()
        latents = self.latents(generator)
        with torch.no_grad():
            first, again = generator.images(latents), generator.images(latents)
            other = generator.images(self.latents(generator, 1))
        outline = generator.outline
        shape = (COUNT, outline.channels, outline.side, outline.side)
        expect(tuple(first.shape) == shape, f"images are {tuple(first.shape)}, not {shape}")
        expect(bool(first.isfinite().all()), "an image holds NaN or infinity")
        most = float(first.abs().max())
        expect(most <= 1.05, f"a pixel is {most:.2f}; images lie in −1…1")
        expect(torch.equal(first, again), "the same latents give other images")
        expect(not torch.equal(first, other), "all latents give the same images")

    def test_it_is_frozen(self) -> None:
        """The opened generator is frozen: in eval mode, and no parameter needs a gradient."""
        generator = self.opened()
        parts = [v for v in vars(generator).values() if isinstance(v, nn.Module)]
        if isinstance(generator, nn.Module):
            parts.append(generator)
        for module in parts:
            name = type(module).__name__
            expect(not module.training, f"{name} is in train mode; call .eval()")
            wants = [n for n, p in module.named_parameters() if p.requires_grad]
            expect(
                not wants, f"{name}: {wants[:1]} asks for a gradient; call .requires_grad_(False)"
            )

    def test_in_the_data_s_channels_and_size(self) -> None:
        """A run gets its images in the channels, size and range of its data."""
        self.opened()
        data = toy.make_images(toy.MIXED)
        source = image_source(self.choice(), data, torch.device("cpu"), self.cache)
        assert source is not None
        outline = source.outline
        labels = torch.arange(COUNT) % outline.num_classes if outline.num_classes else None
        latents = source.sample_latents(COUNT, torch.Generator().manual_seed(0), labels)
        images = source.images(latents)
        expect(images.shape[1:] == data.x.shape[1:], f"a run would get {tuple(images.shape[1:])}")
        low, high = float(data.x.min()) - 1e-4, float(data.x.max()) + 1e-4
        expect(low <= float(images.min()) <= float(images.max()) <= high, "out of the data's range")
