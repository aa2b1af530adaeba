"""Tests of diffusers pipelines as generators: a stand-in, and a tiny real one if installed."""

import json
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from protofl import UsageError
from protofl.hooks.plugin.members import Choice
from protofl_plugins.generators.stable_diffusion import StableDiffusion

CPU = torch.device("cpu")


class _Pipeline:
    """A pipeline whose images are the first three channels of z_T, in 0…1."""

    vae_scale_factor, dtype = 2, torch.float32
    unet = SimpleNamespace(config={"in_channels": 4, "sample_size": 8})
    asked: list[dict[str, object]] = []

    def to(self, device):
        return self

    def set_progress_bar_config(self, **options):
        assert options == {"disable": True}

    def __call__(
        self, prompt, latents, num_inference_steps, guidance_scale, generator, output_type
    ):
        self.asked.append({"prompt": prompt, "steps": num_inference_steps})
        image = torch.sigmoid(latents[:, :3])
        return SimpleNamespace(images=torch.nn.functional.interpolate(image, scale_factor=2))


@pytest.fixture
def fake(monkeypatch):
    """Install a fake module ``diffusers`` whose pipelines are `_Pipeline`."""
    module = ModuleType("diffusers")

    class DiffusionPipeline:
        @staticmethod
        def from_pretrained(source, use_safetensors, cache_dir):
            assert use_safetensors
            if source == "broken":
                raise OSError("no such pipeline")
            return object.__new__(_Pipeline)

    module.DiffusionPipeline = DiffusionPipeline
    monkeypatch.setitem(sys.modules, "diffusers", module)


def test_initial_latent_is_the_vector(fake):
    config = StableDiffusion.Config(model="some/name", batch=2, prompt="a dog", steps=3)
    chosen = Choice("generator", "stable-diffusion", StableDiffusion, config)
    made = chosen.call("open_generator", device=CPU, data_dir=Path())
    assert (made.outline.latent_dim, made.outline.side) == (4 * 8 * 8, 16)
    z = made.sample_latents(5, torch.Generator().manual_seed(0))
    assert z.shape == (5, 256)
    images = made.images(z)
    assert images.shape == (5, 3, 16, 16)
    assert -1 <= float(images.min()) < 0 < float(images.max()) <= 1
    assert _Pipeline.asked[-1] == {"prompt": ["a dog"], "steps": 3}
    expected = torch.sigmoid(z.view(5, 4, 8, 8)[:, :3]) * 2 - 1
    torch.testing.assert_close(images[:, :, ::2, ::2], expected)


def test_sizes_are_read_without_loading(fake, tmp_path):
    (tmp_path / "unet").mkdir()
    text = json.dumps({"in_channels": 4, "sample_size": [16, 16]})
    (tmp_path / "unet" / "config.json").write_text(text)
    plugin = StableDiffusion()
    found = plugin.outline(StableDiffusion.Config(model=str(tmp_path)), tmp_path)
    assert found.latent_dim == 4 * 16 * 16
    assert plugin.outline(StableDiffusion.Config(model="hub/name"), tmp_path).latent_dim == 16384
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no unet"):
        plugin.outline(StableDiffusion.Config(model=str(tmp_path / "empty")), tmp_path)


def test_what_does_not_load_is_named(fake):
    with pytest.raises(UsageError, match="cannot be loaded: no such pipeline"):
        StableDiffusion().open_generator(StableDiffusion.Config(model="broken"), CPU, Path())


def test_missing_diffusers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(UsageError, match="needs diffusers") as caught:
        StableDiffusion().outline(StableDiffusion.Config(model="x"), Path())
    assert caught.value.do == "pip install 'protofl[diffusion]'"


def test_a_tiny_real_pipeline(tmp_path):
    """The pipeline has random weights; the test builds and saves it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        folder = _save_tiny_pipeline(diffusers, transformers, tmp_path)
        config = StableDiffusion.Config(model=str(folder), steps=2)
        outline = StableDiffusion().outline(config, tmp_path)
        made = StableDiffusion().open_generator(config, CPU, tmp_path)
        z = made.sample_latents(3, torch.Generator().manual_seed(0))
        with torch.no_grad():
            images = made.images(z)
            again = made.images(z)
    assert outline.latent_dim == made.outline.latent_dim == 4 * 8 * 8
    assert images.shape == (3, 3, made.outline.side, made.outline.side)
    assert torch.equal(images, again)
    assert not torch.equal(images[0], images[1])


def _save_tiny_pipeline(diffusers, transformers, tmp_path):
    torch.manual_seed(0)
    words = ["<|startoftext|>", "<|endoftext|>", "a</w>", "cat</w>", "a", "c", "t", "cat"]
    (tmp_path / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), model_max_length=16
    )
    text = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=max(len(words), len(tokenizer)),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
    )
    pipeline = diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    folder = tmp_path / "pipeline"
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder
