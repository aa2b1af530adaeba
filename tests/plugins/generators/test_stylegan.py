"""Tests of StyleGAN3 and StyleGAN-XL with a stand-in for the official code."""

import pickle
import sys
from pathlib import Path

import pytest
import torch

from protofl import UsageError
from protofl.hooks.plugin.members import Choice
from protofl_plugins.generators.stylegan import StyleGAN3, StyleGANXL

CPU = torch.device("cpu")

CODE = '''
import torch
class Network(torch.nn.Module):
    """What the official networks offer."""
    z_dim, w_dim, c_dim, num_ws, img_resolution, img_channels = 4, 6, {classes}, 3, 16, 3
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
    def mapping(self, z, c):
        assert c.shape == (len(z), self.c_dim)
        w = torch.cat([z, z[:, :2]], 1) + c.argmax(1, keepdim=True) if self.c_dim else (
            torch.cat([z, z[:, :2]], 1))
        return w.unsqueeze(1).repeat(1, self.num_ws, 1)
    def synthesis(self, ws, noise_mode="random", force_fp32=False):
        assert noise_mode == "const" and force_fp32 and ws.shape[1] == self.num_ws
        x = ws.mean(1)[:, :3, None, None] * self.weight
        return torch.tanh(x).repeat(1, 1, 16, 16)
'''


@pytest.fixture
def official(tmp_path):
    """Provide a function that makes a stand-in for the official repository and its network file."""

    def make(classes=0, name="repo"):
        repo = tmp_path / name
        repo.mkdir()
        (repo / "standin_networks.py").write_text(CODE.format(classes=classes))
        (repo / "legacy.py").write_text(
            "import pickle\ndef load_network_pkl(file):\n    return pickle.load(file)\n"
        )
        sys.path.insert(0, str(repo))
        for module in ("standin_networks", "legacy"):
            sys.modules.pop(module, None)
        import standin_networks

        file = tmp_path / f"{name}.pkl"
        file.write_bytes(pickle.dumps({"G_ema": standin_networks.Network()}))
        sys.path.remove(str(repo))
        del sys.modules["standin_networks"]
        return repo, file

    yield make
    for module in ("standin_networks", "legacy"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("plugin", [StyleGAN3, StyleGANXL])
@pytest.mark.parametrize("classes", [0, 5])
def test_an_official_network_through_the_official_code(official, plugin, classes):
    repo, file = official(classes)
    config = plugin.Config(repo=repo, weights=file, trust_pickle=True, batch=2)
    chosen = Choice("generator", "x", plugin, config)
    assert chosen.call("outline", data_dir=Path()).num_classes is None
    made = chosen.call("open_generator", device=CPU, data_dir=Path())
    assert (made.outline.latent_dim, made.outline.side, made.outline.num_classes) == (
        6,
        16,
        classes,
    )
    w = made.sample_latents(5, torch.Generator().manual_seed(0))
    assert w.shape == (5, 6)
    assert torch.equal(w, made.sample_latents(5, torch.Generator().manual_seed(0)))
    images = made.images(w)
    assert images.shape == (5, 3, 16, 16)
    assert torch.equal(images[3], made.images(w[3:4])[0])
    assert not images.requires_grad, "the network is frozen"
    if classes:
        labels = torch.tensor([4, 0])
        chosen = made.sample_latents(2, torch.Generator().manual_seed(0), labels)
        plain = made.sample_latents(2, torch.Generator().manual_seed(0), labels * 0)
        assert torch.equal(chosen - plain > 1, (labels[:, None] > 0).expand(2, 6))
    assert str(repo) not in sys.path


def test_a_second_repository_does_not_get_the_first_ones_code(official):
    for classes, name in ((0, "one"), (5, "two")):
        repo, file = official(classes, name)
        config = StyleGAN3.Config(repo=repo, weights=file, trust_pickle=True)
        made = StyleGAN3().open_generator(config, CPU, Path())
        assert made.outline.num_classes == classes


def test_consent_is_asked_for_before_the_file_is_opened(official):
    repo, file = official()
    file.write_bytes(pickle.dumps(_Bomb()))
    config = StyleGAN3.Config(repo=repo, weights=file)
    for call in (
        lambda: StyleGAN3().outline(config, Path()),
        lambda: StyleGAN3().open_generator(config, CPU, Path()),
    ):
        with pytest.raises(UsageError, match="without your consent") as caught:
            call()
        assert "runs whatever code" in caught.value.near
        assert "trust_pickle=true" in caught.value.do


class _Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('the pickle was opened')",)


def test_missing_parts_are_named(official, tmp_path):
    repo, _ = official()
    for values, match in (
        ({}, "repo is not given"),
        ({"repo": tmp_path / "nowhere"}, "official code is not at"),
        ({"repo": repo}, "weights is not given"),
        ({"repo": repo, "weights": tmp_path / "no.pkl"}, "does not exist"),
    ):
        with pytest.raises(UsageError, match=match):
            StyleGANXL().outline(StyleGANXL.Config(trust_pickle=True, **values), Path())


def test_a_damaged_file_is_an_error_of_use(official, tmp_path):
    repo, file = official()
    file.write_bytes(b"no pickle")
    config = StyleGAN3.Config(repo=repo, weights=file, trust_pickle=True)
    with pytest.raises(UsageError, match="cannot be opened"):
        StyleGAN3().open_generator(config, CPU, Path())
