"""Tests of keyed random streams, mini-batches, and the conversion of images to model inputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from protofl import numpy_stream, random_stream
from protofl.data import batches
from protofl.data.batches import LEAST, Samples, batch_bounds, bounds_by_epoch, training_batches
from protofl.data.spec import Pixels
from protofl.system.randomness import global_stream


def draw(seed, *keys):
    return tuple(torch.rand(4, generator=random_stream(seed, *keys)).tolist())


def test_streams_are_what_their_keys_say():
    assert draw(0, "a", 1) == draw(0, "a", 1)
    different = [
        (0, "a", 1),
        (1, "a", 1),
        (0, "b", 1),
        (0, "a", 2),
        (0, "a"),
        (0, 1, "a"),
        (0, "a", -1),
    ]
    assert len({draw(*keys) for keys in different}) == len(different)
    first = numpy_stream(3, "x", 1).random(4)
    assert np.array_equal(first, numpy_stream(3, "x", 1).random(4))
    assert not np.array_equal(first, numpy_stream(3, "x", 2).random(4))


def test_a_stream_does_not_depend_on_the_global_one():
    before = draw(0, "a")
    with torch.random.fork_rng():
        torch.manual_seed(99)
        torch.rand(7)
        assert draw(0, "a") == before


def test_the_global_stream_is_seeded_and_restored():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        state = torch.get_rng_state()
        with global_stream(0, "dropout", 2):
            inside = torch.rand(3)
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(5)
        with global_stream(0, "dropout", 2):
            assert torch.equal(torch.rand(3), inside)
        with global_stream(0, "dropout", 3):
            assert not torch.equal(torch.rand(3), inside)
        with pytest.raises(KeyError), global_stream(0, "x"):
            torch.rand(3)
            raise KeyError


# --- mini-batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 10, 32])
def test_bounds_cover_an_epoch(size, drop_last):
    for count in range(1, 70):
        bounds = batch_bounds(count, size, drop_last)
        assert bounds[0][0] == 0
        assert all(a < b for a, b in bounds)
        assert all(one[1] == two[0] for one, two in itertools.pairwise(bounds))
        sizes = [b - a for a, b in bounds]
        assert all(n == size for n in sizes[:-1])
        if drop_last:
            assert bounds[-1][1] == max(count - count % size, min(count, size))
            assert sizes[-1] == min(size, count)
        else:
            assert bounds[-1][1] == count
            assert sizes[-1] < size + LEAST


@pytest.mark.parametrize(
    ("count", "size", "drop_last", "sizes"),
    [
        (30, 10, False, [10, 10, 10]),
        (35, 10, False, [10, 10, 10, 5]),
        (31, 10, False, [10, 10, 11]),  # one sample joins the previous batch
        (31, 10, True, [10, 10, 10]),
        (35, 10, True, [10, 10, 10]),
        (11, 10, False, [11]),
        (11, 10, True, [10]),
        (7, 10, False, [7]),
        (7, 10, True, [7]),
        (1, 10, False, [1]),
        (1, 10, True, [1]),
        (10 + LEAST - 1, 10, False, [10 + LEAST - 1]),
        (10 + LEAST, 10, False, [10, LEAST]),
        (3, 1, False, [1, 1, 1]),
    ],
)
def test_the_last_batch(count, size, drop_last, sizes):
    assert [b - a for a, b in batch_bounds(count, size, drop_last)] == sizes


@pytest.mark.parametrize(
    ("epochs", "batches"),
    [(1, [10]), (3, [10] * 3), (0.5, [5]), (0.25, [3]), (1.5, [10, 5]), (1.1, [10, 1])],
)
def test_a_fraction_of_an_epoch_takes_its_first_batches(epochs, batches):
    found = bounds_by_epoch(98, 10, False, epochs)
    assert found == [batch_bounds(98, 10, False)[:count] for count in batches]


def make_samples(count=23, total=40, labelled=True, **pixels):
    x = (torch.arange(total * 4) % 251).to(torch.uint8).reshape(total, 1, 2, 2)
    rows = torch.randperm(total, generator=torch.Generator().manual_seed(1))[:count]
    labels = torch.arange(total) % 3 if labelled else None
    return Samples(x, labels, rows, Pixels(1, 2), channels_last=False)


def epoch_orders(samples, epochs=2, seed=0, keys=("private", 0, 0), size=5, **options):
    drop = options.pop("drop_last", False)
    found = training_batches(
        samples, epochs=epochs, batch_size=size, drop_last=drop, seed=seed, keys=keys, **options
    )
    return [(x.clone(), y.clone(), index.clone()) for x, y, index in found]


def order(*arguments, **options):
    return tuple(torch.cat([i for *_, i in epoch_orders(*arguments, **options)]).tolist())


def test_every_sample_once_an_epoch():
    samples = make_samples(23)
    found = epoch_orders(samples, epochs=3)
    assert [len(index) for *_, index in found] == [5, 5, 5, 8] * 3
    for epoch in range(3):
        seen = torch.cat([index for *_, index in found[4 * epoch : 4 * epoch + 4]])
        assert sorted(seen.tolist()) == list(range(23))
    for x, y, index in found:
        assert torch.equal(x, samples.inputs(index))
        assert torch.equal(y, samples.y[index])
    dropped = epoch_orders(samples, epochs=1, drop_last=True)
    assert [len(index) for *_, index in dropped] == [5, 5, 5, 5]


def test_the_order_depends_on_seed_round_client_and_epoch_alone():
    samples = make_samples(23)
    reference = order(samples)
    assert reference[:23] != reference[23:]
    assert order(samples, seed=1) != reference
    assert order(samples, keys=("private", 1, 0)) != reference
    assert order(samples, keys=("private", 0, 1)) != reference
    assert order(samples, keys=("public", 0, 0)) != reference
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert order(samples) == reference
    assert order(samples, epochs=1) == reference[:23]
    assert order(samples, size=23)[:23] == reference[:23]


def test_without_shuffling_every_epoch_is_the_same_and_the_same_are_dropped():
    samples = make_samples(23)
    plain = order(samples, epochs=3, shuffle=False)
    assert plain == 3 * tuple(range(23))
    assert order(samples, seed=1, keys=("private", 4, 2), epochs=3, shuffle=False) == plain
    kept = order(samples, epochs=2, shuffle=False, drop_last=True)
    assert kept == 2 * tuple(range(20))
    first, *_ = epoch_orders(samples, epochs=1, shuffle=False, augment=True)
    again, *_ = epoch_orders(samples, epochs=1, shuffle=False, augment=True, seed=1)
    assert torch.equal(first[2], again[2]) and not torch.equal(first[0], again[0])


@pytest.mark.parametrize("block", [1, 7, 10, 10_000])
def test_blocks_have_no_influence(monkeypatch, block):
    samples = make_samples(23)
    expected = epoch_orders(samples)
    monkeypatch.setattr(batches, "BLOCK", block)
    for one, two in zip(epoch_orders(samples), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_unlabelled_samples():
    samples = make_samples(12, labelled=False)
    found = epoch_orders(samples, epochs=1)
    assert all(len(y) == 0 for _, y, _ in found)
    assert sorted(torch.cat([i for *_, i in found]).tolist()) == list(range(12))
    assert len(samples.first(5)) == 5


def test_rows_of_samples():
    samples = make_samples(12)
    part = samples.first(5)
    assert len(part) == 5
    assert torch.equal(part.inputs(), samples.inputs(slice(0, 5)))
    assert torch.equal(part.y, samples.y[:5])
    chunks = list(samples.chunks(5))
    assert [len(c) for c in chunks] == [5, 5, 2]
    assert torch.equal(torch.cat(chunks), samples.inputs())


def test_augmented_batches_are_shifts_and_flips():
    samples = make_samples(23)
    plain, moved = epoch_orders(samples), epoch_orders(samples, augment=True)
    assert all(torch.equal(a[2], b[2]) for a, b in zip(plain, moved, strict=True))
    assert all(
        torch.equal(a[0], b[0])
        for a, b in zip(moved, epoch_orders(samples, augment=True), strict=True)
    )
    images = torch.arange(1.0, 6 * 2 * 3 * 3 + 1).reshape(6, 2, 3, 3)
    found = batches.shifted_and_flipped(images, batches.draw_moves(6, random_stream(0, "x")))
    assert not torch.equal(found, images)
    padded = torch.nn.functional.pad(images, [4] * 4)
    for image, result in zip(padded, found, strict=True):
        crops = [image[:, i : i + 3, j : j + 3] for i in range(9) for j in range(9)]
        assert any(torch.equal(result, c) or torch.equal(result, c.flip(2)) for c in crops)


# --- pixels --------------------------------------------------------------------------------------


def test_bytes_are_normalised():
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    found = Pixels(1, 16)(x, channels_last=False)
    assert found.dtype == torch.float32
    for value in (0, 1, 127, 128, 254, 255):
        assert found.flatten()[value].item() == pytest.approx(value / 127.5 - 1, abs=1e-6)
    assert found.min() == -1
    assert found.max() == 1
    assert x.dtype == torch.uint8
    assert x.flatten()[5] == 5


def test_floats_are_used_as_they_are():
    x = torch.randn(2, 3, 4, 4) * 9
    assert torch.equal(Pixels(3, 4)(x, channels_last=False), x)
    assert torch.equal(Pixels(3, 2)(x.double(), channels_last=True), x)


def test_grey_images_are_repeated():
    x = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8)
    found = Pixels(3, 4)(x, channels_last=False)
    assert found.shape == (2, 3, 4, 4)
    assert torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(found[:, 0], found[:, 2])
    assert torch.equal(found[:, :1], Pixels(1, 4)(x, channels_last=False))


def test_small_images_are_brought_to_the_side_and_large_ones_stay():
    x = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    normal = Pixels(1, 8)(x, channels_last=False)
    expected = torch.nn.functional.interpolate(
        normal, size=(28, 28), mode="bilinear", align_corners=False
    )
    assert torch.equal(Pixels(1, 28)(x, channels_last=False), expected)
    assert torch.equal(Pixels(1, 5)(x, channels_last=False), normal)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [4, 9])
def test_layouts_hold_equal_values(channels, side):
    x = torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8)
    plain = Pixels(channels, side)(x, channels_last=False)
    last = Pixels(channels, side)(x, channels_last=True)
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, last)


def test_reading_samples_leaves_the_stored_data_alone():
    stored = torch.randn(6, 1, 2, 2)
    kept = stored.clone()
    samples = Samples(stored, None, torch.arange(6), Pixels(1, 2), channels_last=False)
    samples.inputs().add_(1)
    samples.inputs(slice(0, 3)).zero_()
    assert torch.equal(stored, kept)
