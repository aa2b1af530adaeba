"""Contract of data sets."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch

from protofl.data.cache import cache_file
from protofl.data.dataset import Dataset
from protofl.federation.plan.run_data import load_data
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skip, skipped
from protofl.testing.toy_plugins import Prototypes

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

    def data(self) -> Dataset:
        """The data, by way of the cache."""
        with skipped("the data cannot be had here"):
            return load_data(self.choice(), self.cache, lambda line: None)

    def key(self, folder: Path) -> str:
        """The value of cache_key."""
        with skipped("the data cannot be had here"):
            result: str = self.choice().call("cache_key", data_dir=folder)
        return result

    def test_cache_key(self) -> None:
        """cache_key is a file name or empty, the same every time and in every folder."""
        first, again, other = (self.key(f) for f in (self.cache, self.cache, self.folder / "b"))
        expect(isinstance(first, str), f"cache_key returns {first!r}")
        if first:
            cache_file(first, self.cache)  # words what is wrong with it
        expect(first == again, f"cache_key gives {first!r}, then {again!r}")
        expect(first == other, f"cache_key depends on the folder: {first!r}, {other!r}")

    def test_samples(self) -> None:
        """Decoding gives samples of a kind, a label in 0…C-1 for each, and names of the classes."""
        data = self.data()  # the cache checks shapes, types and ranges
        expect(data.num_classes >= 2, f"{data.num_classes} classes")
        expect(all(isinstance(n, str) and n for n in data.classes), "a class has no name")
        expect(len({*data.classes}) == len(data.classes), "two classes have one name")
        counts = torch.bincount(data.y, minlength=data.num_classes)
        empty = [data.classes[c] for c in (counts == 0).nonzero().flatten().tolist()]
        expect(not empty, f"no sample of class {', '.join(empty[:5])}")
        sample = data.sample
        if sample.kind == "image":
            channels = sample.shape[0]
            expect(channels in (1, 3), f"{channels} channels; models take 1 or 3")
        if data.x.dtype == torch.float32:
            fitted = data.preparation and data.preparation.fitted  # which fills gaps
            x = data.x.nan_to_num(0.0, torch.inf, -torch.inf) if fitted else data.x
            expect(bool(torch.isfinite(x).all()), "a sample holds NaN or infinity")
        expect(bool((data.x != data.x[0]).any()), "all samples are equal")

    def test_decoding_again(self) -> None:
        """A second decoding gives the same samples, and draws from no global generator."""
        first, choice = self.data(), self.choice()
        before = torch.get_rng_state()
        with skipped("decoded before, it cannot be decoded here"):
            again: Dataset = choice.call("decode", data_dir=self.cache)
        expect(again.compute_digest() == first.compute_digest(), "a second decoding differs")
        expect(torch.equal(before, torch.get_rng_state()), "torch's generator was drawn from")

    def test_own_split(self) -> None:
        """Data that come already split give every client its own training and test rows."""
        data = self.data()
        if data.split is None:
            skip("the data do not come split; a partitioner splits them")
        assert data.split is not None
        rows = torch.cat([indices.long() for pair in data.split for indices in pair])
        expect(int(rows.bincount().max()) == 1, "a row belongs to two clients")
        empty = [i for i, (_, test) in enumerate(data.split) if not len(test)]
        expect(not empty, f"client {empty[:3]} has no test sample")
        expect(any(len(train) for train, _ in data.split), "no client has training samples")

    def test_it_runs(self) -> None:
        """Two clients train on it and are evaluated."""
        data = self.data()
        sample = data.sample
        if sample.kind == "image" and max(sample.shape[1:]) > MOST_SIDE:
            skip(f"its images are larger than {MOST_SIDE} px")
        model = toy.EMBEDDING if sample.kind == "tokens" else toy.NORM
        side = min(sample.shape[1:]) if sample.kind == "image" else toy.SIDE
        clients = 2 if data.split is None else len(data.split)
        plan = toy.make_plan(
            "toy" if data.task.has_classes else "local",
            self.folder,
            data,
            toy.group(model, side=side, kinds=(sample.kind,)),
            {**self.extra, ("method", "toy"): Prototypes, ("partitioner", "toy"): toy.Deal},
            partition="toy",
            clients=clients,
        )
        dry_run(plan)
