"""Tests of Tiny-ImageNet with a small archive in the official format."""

from __future__ import annotations

import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import protofl as pf
from protofl_plugins.datasets import tiny_imagenet

NAMES = ["n02", "n01", "n10"]


def picture(value, mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, (64, 64), value if mode == "L" else (value, 0, 0)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def archive(site, monkeypatch):
    folder, address = site
    path = folder / "tiny.zip"
    root = "tiny-imagenet-200"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{root}/wnids.txt", "\n".join(NAMES) + "\n")
        file.writestr(f"{root}/words.txt", "n01\tgoldfish\n")
        for name in NAMES:
            file.writestr(f"{root}/train/{name}/{name}_boxes.txt", "")
            for i in range(2):
                grey = name == "n10" and i == 1
                data = picture(20 * int(name[1:]), "L" if grey else "RGB")
                file.writestr(f"{root}/train/{name}/images/{name}_{i}.JPEG", data)
        file.writestr(
            f"{root}/val/val_annotations.txt",
            "val_0.JPEG\tn10\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n",
        )
        for i, value in enumerate((201, 21)):
            file.writestr(f"{root}/val/images/val_{i}.JPEG", picture(value))
        file.writestr(f"{root}/test/images/test_0.JPEG", picture(0))
    monkeypatch.setattr(tiny_imagenet, "URL", f"{address}tiny.zip")
    monkeypatch.setattr(tiny_imagenet, "MD5", hashlib.md5(path.read_bytes()).hexdigest())
    return path


def test_decode(tmp_path, archive, capsys):
    plugin = tiny_imagenet.TinyImageNet()
    config = plugin.Config(part="all")
    images = plugin.decode(config=config, data_dir=tmp_path / "data")
    assert images.x.shape == (8, 3, 64, 64) and images.num_train == 6
    assert images.classes == ["n01", "n02", "n10"]
    assert images.y.tolist() == [0, 0, 1, 1, 2, 2, 2, 0]
    red = images.x[:, 0, 0, 0].numpy().astype(int)
    assert np.abs(red - [20, 20, 40, 40, 200, 200, 201, 21]).max() <= 2
    assert images.x[5].unique().tolist() == [200]  # grey, expanded to three channels
    assert "downloading tiny-imagenet-200.zip" in capsys.readouterr().err
    archive.unlink()  # the copy in the data folder is enough
    train = plugin.decode(config=plugin.Config(), data_dir=tmp_path / "data")
    assert train.num_train == len(train.y) == 6
    assert torch.equal(train.x, images.x[:6]) and train.classes == images.classes
    assert plugin.cache_key(config=config, data_dir=tmp_path) == "tiny-imagenet-v2"
    assert plugin.cache_key(config=plugin.Config(), data_dir=tmp_path) == "tiny-imagenet-train-v2"


def test_a_damaged_image_is_named(tmp_path, archive, monkeypatch):
    whole = archive.read_bytes()
    monkeypatch.setattr(tiny_imagenet, "MD5", None)
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(archive, "w") as new:
        for name in old.namelist():
            bad = name.endswith("n02_1.JPEG")
            new.writestr(name, b"not an image" if bad else old.read(name))
    plugin = tiny_imagenet.TinyImageNet()
    with pytest.raises(pf.UsageError, match=r"n02_1\.JPEG cannot be read as an image"):
        plugin.decode(config=plugin.Config(), data_dir=tmp_path / "data")


def test_without_internet(tmp_path, archive):
    archive.unlink()
    with pytest.raises(pf.UsageError) as error:
        plugin = tiny_imagenet.TinyImageNet()
        plugin.decode(config=plugin.Config(), data_dir=tmp_path)
    assert "404" in error.value.what and "tiny.zip" in error.value.near
    assert "--dataset npz:FILE" in error.value.do


def test_the_official_archive():
    import importlib

    module = importlib.reload(tiny_imagenet)
    assert module.URL == "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    assert module.MD5 == "90528d7ca1a48142e341f4ef8d21d0de"
