"""Tests of the embedded generator: network, files and training."""

import pytest
import torch

from protofl import UsageError
from protofl.datasets import Dataset
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import Choice
from protofl_plugins.generators.tiny_style import network as N
from protofl_plugins.generators.tiny_style.plugin import SHIPPED, TinyStyle, TinyStyleGenerator
from protofl_plugins.generators.tiny_style.train import (
    SPREAD,
    Training,
    _pyramid_distance,
    normalise_latents,
    train,
)

CPU = torch.device("cpu")


def network(side=32, classes=0, channels=3):
    torch.manual_seed(0)
    return N.TinyStyleNetwork(N.shape_for(side, classes, channels))


def opened():
    return TinyStyle().open_generator(TinyStyle.Config(), CPU, None)


def stripes(count=96):
    """Return images of two classes: horizontal and vertical stripes of random colours."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 2
    wave = (torch.arange(32) // 4 % 2).float()
    plain = wave[:, None].expand(32, 32)
    pattern = torch.where(y[:, None, None] == 0, plain, plain.t())
    colours = torch.rand(count, 3, 1, 1, generator=generator) * 255
    return Dataset((pattern[:, None] * colours).byte(), y, count, ["h", "v"])


def test_all_kinds_of_generator_are_installed():
    names = [p.name for p in Registry().plugins("generator")]
    assert {"tiny-style", "stable-diffusion", "stylegan-xl", "stylegan3"} <= set(names)
    for plugin in Registry().plugins("generator"):
        assert Registry().status(plugin)[0] == "ok"


@pytest.mark.parametrize(("side", "channels"), [(32, 3), (64, 1)])
def test_images_of_latents(side, channels):
    made = TinyStyleGenerator(network(side, 4, channels), CPU)
    w = made.sample_latents(5, torch.Generator().manual_seed(0))
    images = made.images(w)
    assert w.shape == (5, 512)
    assert images.shape == (5, channels, side, side)
    assert float(images.abs().max()) <= 1
    assert torch.equal(w, made.sample_latents(5, torch.Generator().manual_seed(0)))
    assert torch.equal(images, made.images(w))


def test_modulated_convolution_is_that_of_scaled_and_normalised_weights():
    torch.manual_seed(0)
    conv, x, w = N.StyleConv(3, 4), torch.randn(2, 3, 5, 5), torch.randn(2, N.LATENT)
    found = conv(x, w)
    for n in range(2):
        style = conv.style(w[n])
        weight = conv.weight * style[None, :, None, None]
        weight = weight / (weight.square().sum((1, 2, 3), keepdim=True) + 1e-8).sqrt()
        expected = torch.nn.functional.conv2d(x[n : n + 1], weight, conv.bias, padding=1)
        torch.testing.assert_close(found[n : n + 1], expected, rtol=1e-4, atol=1e-5)


def test_normalising_w_changes_no_image():
    made = network(32, 3)
    generator = torch.Generator().manual_seed(1)
    noise, labels = torch.randn(64, N.LATENT, generator=generator), torch.arange(64) % 3
    with torch.no_grad():
        before = made.synthesis(made.mapping(noise, labels))
        normalise_latents(made, torch.Generator().manual_seed(2))
        w = made.mapping(noise, labels)
        after = made.synthesis(w)
    torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-4)
    assert float(torch.pdist(w).square().mean()) == pytest.approx(SPREAD, rel=0.15)


def test_pyramid_distance():
    torch.manual_seed(0)
    a = torch.randn(2, 3, 16, 16)
    assert float(_pyramid_distance(a, a)) == 0
    # a constant difference is only in the coarsest band
    assert float(_pyramid_distance(a, a + 0.5)) == pytest.approx(0.5, rel=1e-5)


def test_file_round_trip(tmp_path):
    made, path = network(32, 3), tmp_path / "g.safetensors"
    N.save_network(made, path, {"trained_on": "nothing"})
    assert N.read_about(path)["trained_on"] == "nothing"
    loaded = N.load_network(path)
    assert loaded.shape == made.shape
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, made.state_dict()[key].half().float())


def test_a_wrong_file_is_named(tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"no")
    config = TinyStyle.Config(weights=path)
    for call in (
        lambda: TinyStyle().outline(config, None),
        lambda: TinyStyle().open_generator(config, CPU, None),
    ):
        with pytest.raises(UsageError, match=r"other\.safetensors"):
            call()


@pytest.mark.slow
def test_shipped_file_is_small_trained_and_varied():
    assert SHIPPED.stat().st_size <= 5e6
    about = N.read_about(SHIPPED)
    assert "CIFAR-10" in about["trained_on"]
    outline = TinyStyle().outline(TinyStyle.Config(), None)
    made = opened()
    assert outline == made.outline
    w = made.sample_latents(200, torch.Generator().manual_seed(0))
    assert float(torch.pdist(w).square().mean()) == pytest.approx(SPREAD, rel=0.2)
    images = made.images(w)
    assert float(torch.pdist(images.flatten(1)).square().mean() / images[0].numel()) > 0.1
    assert float(images.std()) > 0.3


@pytest.mark.slow
def test_training_learns_and_repeats_itself(tmp_path):
    images = stripes(64)
    lines = []
    config = TinyStyle.Config(epochs=3, steps=10, batch=16, seed=3)
    out = tmp_path / "g.safetensors"
    chosen = Choice("generator", "tiny-style", TinyStyle, config)
    told = chosen.call("train_generator", images=images, report=lines.append, out=out)
    assert told["images"] == "64"
    distances = [float(line.split()[-1]) for line in lines if "distance" in line]
    assert distances[-1] < 0.95 * distances[0]
    made = TinyStyle().open_generator(TinyStyle.Config(weights=out), CPU, None)
    assert made.outline.num_classes == 2
    shape = N.Shape(32, 0, 3, code=16, widths=(8, 8, 8, 8))
    options = Training(epochs=1, steps=3, batch=16)
    first, second = (train(shape, images.x, None, options) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_too_few_images_and_wrong_sides_are_refused(tmp_path):
    for config, match in (
        (TinyStyle.Config(side=48), "side=48"),
        (TinyStyle.Config(batch=64), "too few"),
    ):
        with pytest.raises(UsageError, match=match):
            TinyStyle().train_generator(config, stripes(), print, tmp_path / "g")
