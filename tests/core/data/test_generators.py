"""Tests of the server's image generator in a run."""

import pytest
import torch

from protofl import UsageError, hookimpl
from protofl.backends import Plan
from protofl.data.generators import to_channels, to_size
from protofl.datasets import Dataset, Outline
from protofl.federation.plan.run_data import image_source
from protofl.hooks.plugin.members import Choice
from protofl.runs.results.configuration import config_of

CPU = torch.device("cpu")


class Ramp:
    """A generator whose images have the brightness of the latent vector's first number."""

    opened = 0

    @hookimpl
    def outline(self, config, data_dir):
        return Outline(latent_dim=3, side=16)

    @hookimpl
    def open_generator(self, config, device, data_dir):
        Ramp.opened += 1
        torch.rand(1)  # loading may use the global random generator
        return _Opened()


class _Opened:
    outline = Outline(latent_dim=3, side=16, num_classes=2)

    def sample_latents(self, count, generator, labels=None):
        return torch.randn(count, 3, generator=generator)

    def images(self, latents):
        return latents[:, :1, None, None].expand(-1, 3, 16, 16)


def source(x, dry=False):
    data = Dataset(x, torch.zeros(len(x), dtype=torch.int64), len(x), ["a"])
    choice = Choice("generator", "ramp", Ramp, None)
    made = image_source(choice, data, CPU, None)
    return made.unopened() if dry else made


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 16), (3, 32), (2, 5)])
def test_images_come_in_the_datas_channels_and_size(channels, side):
    made = source(torch.zeros(4, channels, side, side, dtype=torch.uint8))
    images = made.images(torch.tensor([[0.5, 0, 0], [-2.0, 0, 0]]))
    assert images.shape == (2, channels, side, side)
    assert images.dtype == torch.float32
    torch.testing.assert_close(images[0], torch.full_like(images[0], 0.5))
    torch.testing.assert_close(images[1], torch.full_like(images[1], -1.0))  # −1…1 is kept


def test_images_come_in_the_datas_range():
    made = source(torch.linspace(0, 4, 4 * 64).view(4, 1, 8, 8))
    images = made.images(torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]]))
    torch.testing.assert_close(images[:, 0, 0, 0], torch.tensor([4.0, 0.0]))


def test_grey_and_size():
    rgb = torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    torch.testing.assert_close(to_channels(rgb, 1), torch.full((1, 1, 4, 4), 0.299))
    assert torch.equal(to_channels(rgb[:, :1], 3), torch.ones(1, 3, 4, 4))
    board = (torch.arange(64)[:, None] + torch.arange(64)).remainder(2).float()[None, None]
    assert float((to_size(board, 8, 8) - 0.5).abs().max()) < 0.05  # no aliasing


def test_it_is_loaded_once_when_used_and_leaves_no_trace():
    Ramp.opened = 0
    made = source(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    assert Ramp.opened == 0
    state = torch.random.get_rng_state()
    assert made.outline.num_classes == 2
    made.images(made.sample_latents(2, torch.Generator()))
    assert Ramp.opened == 1
    assert torch.equal(state, torch.random.get_rng_state())


def test_dry_source_gives_zeros_of_its_shape():
    Ramp.opened = 0
    made = source(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), dry=True)
    assert made.outline.latent_dim == 3
    assert torch.equal(made.sample_latents(2, torch.Generator()), torch.zeros(2, 3))
    assert torch.equal(made.images(torch.zeros(2, 3)), torch.zeros(2, 1, 8, 8))
    assert Ramp.opened == 0


def test_a_generator_is_chosen_only_where_a_method_needs_one(tmp_path):
    given = {"models": "htcnn8", "data_dir": tmp_path, "backend": "local"}
    made = Plan.make({"method": "local", **given})
    assert "generator" not in made.choices
    assert made.images is None
    with pytest.raises(UsageError, match="no generator"):
        Plan.make({"method": "local", **given, "options": {"generator": {"seed": 1}}})
    made = Plan.make({"method": "fedktl", **given})
    assert made.choices["generator"].name == "tiny-style"
    assert any(p["kind"] == "generator" for p in config_of(made)["plugins"])
    donor = Plan.make({"method": "fedproto", **given, "use": {"server_train": "fedktl"}})
    assert "generator" in donor.choices
    with pytest.raises(UsageError, match="unknown generator 'tiny-stile'"):
        Plan.make({"method": "fedktl", **given, "generator": "tiny-stile"})


def test_a_path_to_weights_is_kept_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"method": "fedktl", "models": "htcnn8", "data_dir": tmp_path, "backend": "local"}
    made = Plan.make({**given, "options": {"generator": {"weights": "g.safetensors"}}})
    again = Plan.from_json(made.to_json())
    for found in (made, again):
        assert found.settings.options["generator"]["weights"] == str(tmp_path / "g.safetensors")
