"""What every data set promises."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch

from protofl.data.cache import cache_file
from protofl.data.images import Images
from protofl.errors import UsageError
from protofl.plan.inputs import load_images
from protofl.runs.dry_step import dry_step
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, refusal, skip
from protofl.testing.toy_methods import Prototypes

MOST_SIDE = 256
"""Sides above are not run, only decoded."""


class DatasetContract(Contract):
    """The checks of a data set.

    A data set that can't be had here (no internet, no such file) is left out where its images are
    needed.

    Attributes:
        data_dir: Where decoded data and downloads are kept; by default a folder that is empty.
    """

    kind = "dataset"
    data_dir: ClassVar[Path | None] = None

    @property
    def cache(self) -> Path:
        """The folder of the cache."""
        return self.folder / "data" if self.data_dir is None else self.data_dir

    def images(self) -> Images:
        """The data, by way of the cache."""
        try:
            return load_images(self.part(), self.cache, lambda line: None)
        except UsageError as error:
            skip(f"the data can't be had here: {refusal(error)}")
            raise

    def key(self, folder: Path) -> str:
        """What cache_key returns."""
        part = self.part()
        try:
            found: str = part.call("cache_key", data_dir=folder)
        except UsageError as error:
            skip(f"the data can't be had here: {refusal(error)}")
            raise
        return found

    def test_cache_key(self) -> None:
        """cache_key is a file name, the same every time and in every folder."""
        first, again, other = (self.key(f) for f in (self.cache, self.cache, self.folder / "b"))
        expect(isinstance(first, str), f"cache_key returns {first!r}")
        cache_file(first, self.cache)  # words what is wrong with it
        expect(first == again, f"cache_key gives {first!r}, then {again!r}")
        expect(first == other, f"cache_key depends on the folder: {first!r}, {other!r}")

    def test_images(self) -> None:
        """Decoding gives images N×C×H×W, a label in 0…C-1 for each, and names of the classes."""
        images = self.images()  # the cache checks shapes, types and ranges
        expect(images.num_classes >= 2, f"{images.num_classes} classes")
        expect(all(isinstance(n, str) and n for n in images.classes), "a class has no name")
        expect(len({*images.classes}) == len(images.classes), "two classes have one name")
        counts = torch.bincount(images.y, minlength=images.num_classes)
        empty = [images.classes[c] for c in (counts == 0).nonzero().flatten().tolist()]
        expect(not empty, f"no sample of class {', '.join(empty[:5])}")
        expect(images.channels in (1, 3), f"{images.channels} channels; models take 1 or 3")
        if images.x.dtype == torch.float32:
            expect(bool(torch.isfinite(images.x).all()), "an image holds NaN or infinity")
        expect(float(images.x.float().std()) > 0, "all pixels are equal")

    def test_square(self) -> None:
        """Its images are square, as the model groups take them."""
        height, width = self.images().x.shape[2:]
        expect(height == width, f"the images are {height}×{width}")

    def test_decoding_again(self) -> None:
        """A second decoding gives the same images, and draws from no global generator."""
        first, part = self.images(), self.part()
        before = torch.get_rng_state()
        try:
            again: Images = part.call("decode", data_dir=self.cache)
        except UsageError as error:
            skip(f"decoded before, it can't be decoded here: {refusal(error)}")
            raise
        expect(again.compute_digest() == first.compute_digest(), "a second decoding differs")
        expect(torch.equal(before, torch.get_rng_state()), "torch's generator was drawn from")

    def test_own_split(self) -> None:
        """Data that come already split give every client its own training and test rows."""
        images = self.images()
        if images.split is None:
            skip("the data do not come split; a partitioner splits them")
        assert images.split is not None
        rows = torch.cat([part.long() for pair in images.split for part in pair])
        expect(int(rows.bincount().max()) == 1, "a row belongs to two clients")
        empty = [i for i, pair in enumerate(images.split) if not all(len(part) for part in pair)]
        expect(not empty, f"client {empty[:3]} has no training or no test sample")

    def test_it_runs(self) -> None:
        """Two clients train on it and are evaluated."""
        images = self.images()
        if max(images.x.shape[2:]) > MOST_SIDE:
            skip(f"its images are larger than {MOST_SIDE} px")
        clients = 2 if images.split is None else len(images.split)
        plan = toy.make_plan(
            "toy",
            self.folder,
            images,
            toy.group(toy.NORM, side=images.side),
            {("method", "toy"): Prototypes, ("partitioner", "toy"): toy.Deal},
            partition="toy",
            clients=clients,
        )
        dry_step(plan)
