"""Tests of torchvision's data sets with small files in their official formats."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import socket
import struct
import tarfile
import urllib.request

import numpy as np
import pytest
import torch
import torchvision.datasets
from PIL import Image

import protofl as pf
from protofl_plugins.datasets import torchvision_sets as sets

rng = np.random.default_rng(0)


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def decode(plugin, data_dir, **options):
    config = getattr(plugin, "Config", pf.Config)(**options)
    return plugin().decode(config=config, data_dir=data_dir)


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes())


@pytest.mark.parametrize("plugin", [sets.MNIST, sets.FashionMNIST])
def test_mnist(tmp_path, site, monkeypatch, plugin, capsys):
    folder, address = site
    x = rng.integers(0, 256, (7, 28, 28), dtype=np.uint8)
    y = np.array([3, 1, 9, 0, 2, 5, 3], np.uint8)
    contents = [x[:5], y[:5], x[5:], y[5:]]
    loader = getattr(torchvision.datasets, plugin.loader)
    resources = []
    for (name, _), content in zip(loader.resources, contents, strict=True):
        (folder / name).write_bytes(idx(content))
        resources.append((name, md5(folder / name)))
    monkeypatch.setattr(loader, "mirrors", [address])
    monkeypatch.setattr(loader, "resources", resources)
    images = decode(plugin, tmp_path / "data")
    assert np.array_equal(images.x[:, 0].numpy(), x) and images.x.shape == (7, 1, 28, 28)
    assert images.y.tolist() == y.tolist() and images.num_train == 5
    assert images.classes == list(loader.classes) and len(images.classes) == 10
    assert (tmp_path / "data" / "downloads").is_dir()
    assert capsys.readouterr().out == ""
    assert plugin().cache_key(config=pf.Config(), data_dir=tmp_path) == plugin.name


def add(archive, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(
    ("plugin", "key", "classes"),
    [(sets.CIFAR10, "labels", 10), (sets.CIFAR100, "fine_labels", 100)],
)
def test_cifar(tmp_path, site, monkeypatch, plugin, key, classes, capsys):
    folder, address = site
    loader = getattr(torchvision.datasets, plugin.loader)
    names = [f"class {i}" for i in range(classes)]
    parts, lists = [], {}
    with tarfile.open(folder / "cifar.tgz", "w:gz") as archive:

        def put(name, value):
            content = pickle.dumps(value, protocol=2)
            add(archive, f"{loader.base_folder}/{name}", content)
            return hashlib.md5(content).hexdigest()

        for which in ("train_list", "test_list"):
            lists[which] = []
            for name, _ in getattr(loader, which):
                x = rng.integers(0, 256, (2, 3072), dtype=np.uint8)
                y = rng.integers(0, classes, 2).tolist()
                parts.append((x, y))
                lists[which].append([name, put(name, {"data": x, key: y})])
        meta = {**loader.meta, "md5": put(loader.meta["filename"], {loader.meta["key"]: names})}
    for name, value in {**lists, "meta": meta, "url": f"{address}cifar.tgz"}.items():
        monkeypatch.setattr(loader, name, value)
    monkeypatch.setattr(loader, "tgz_md5", md5(folder / "cifar.tgz"))
    images = decode(plugin, tmp_path / "data")
    x = np.concatenate([x for x, _ in parts]).reshape(-1, 3, 32, 32)
    assert np.array_equal(images.x.numpy(), x)
    assert images.y.tolist() == [label for _, y in parts for label in y]
    assert images.num_train == len(x) - 2 and images.classes == names
    assert capsys.readouterr().out == ""
    assert plugin().cache_key(config=pf.Config(), data_dir=tmp_path) == plugin.name


@pytest.mark.parametrize(("split", "classes"), [("balanced", 47), ("letters", 26), ("digits", 10)])
def test_emnist(tmp_path, split, classes):
    x = rng.integers(0, 256, (7, 28, 28), dtype=np.uint8)
    y = np.array([3, 1, 9, 2, 5, 4, 3], np.uint8)
    raw = tmp_path / "downloads" / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, rows in (("train", slice(0, 5)), ("test", slice(5, 7))):
        for name, array in (("images-idx3", x[rows]), ("labels-idx1", y[rows])):
            file = raw / f"emnist-{split}-{part}-{name}-ubyte"
            file.write_bytes(gzip.decompress(idx(array)))
    data = decode(sets.EMNIST, tmp_path, split=split)
    assert np.array_equal(data.x[:, 0].numpy(), x.transpose(0, 2, 1)) and data.num_train == 5
    assert data.y.tolist() == (y - (split == "letters")).tolist()
    assert len(data.classes) == classes
    assert data.classes[2] == {"letters": "c"}.get(split, "2")
    config = sets.EMNIST.Config(split=split)
    assert sets.EMNIST().cache_key(config=config, data_dir=tmp_path) == f"emnist-{split}"


def test_svhn(tmp_path, monkeypatch):
    from scipy.io import savemat

    loader, kept, files = torchvision.datasets.SVHN, {}, {}
    folder = tmp_path / "downloads"
    folder.mkdir()
    for part, labels in (("train", [1, 10, 3, 9]), ("test", [10, 7])):
        x = rng.integers(0, 256, (32, 32, 3, len(labels)), dtype=np.uint8)
        name = f"{part}_32x32.mat"
        savemat(folder / name, {"X": x, "y": np.array(labels, np.uint8)[:, None]})
        files[part] = ["http://127.0.0.1:9/", name, md5(folder / name)]
        kept[part] = (x, labels)
    monkeypatch.setattr(loader, "split_list", files)
    data = decode(sets.SVHN, tmp_path)
    x = np.concatenate([kept[part][0].transpose(3, 2, 0, 1) for part in kept])
    assert np.array_equal(data.x.numpy(), x)
    assert data.y.tolist() == [label % 10 for _, labels in kept.values() for label in labels]
    assert data.num_train == len(x) - 2 and data.classes == [str(i) for i in range(10)]


@pytest.fixture
def flowers(site, monkeypatch):
    from scipy.io import savemat

    folder, address = site
    with tarfile.open(folder / "102flowers.tgz", "w:gz") as archive:
        for i in range(1, 7):
            file = io.BytesIO()
            Image.new("RGB", (30, 20 + i), (40 * i, 0, 0)).save(file, "JPEG")
            add(archive, f"jpg/image_{i:05d}.jpg", file.getvalue())
    savemat(folder / "imagelabels.mat", {"labels": [[1, 2, 102, 1, 2, 102]]})
    savemat(folder / "setid.mat", {"trnid": [[2, 1]], "valid": [[3, 4]], "tstid": [[5, 6]]})
    loader = torchvision.datasets.Flowers102
    files = {part: (name, md5(folder / name)) for part, (name, _) in loader._file_dict.items()}
    monkeypatch.setattr(loader, "_download_url_prefix", address)
    monkeypatch.setattr(loader, "_file_dict", files)


@pytest.mark.parametrize("side", [64, 16])
def test_flowers102(tmp_path, flowers, side):
    images = decode(sets.Flowers102, tmp_path, side=side)
    assert images.x.shape == (6, 3, side, side) and images.x.dtype == torch.uint8
    assert images.y.tolist() == [1, 0, 101, 0, 1, 101] and images.num_train == 4
    red = images.x[:, 0].flatten(1).float().mean(1)
    assert (red - torch.tensor([80.0, 40, 120, 160, 200, 240])).abs().max() < 3
    named = hasattr(torchvision.datasets.Flowers102, "classes")
    assert len(images.classes) == 102
    assert images.classes[0] == ("pink primrose" if named else "0")


def test_flowers102_without_names(tmp_path, flowers, monkeypatch):
    monkeypatch.delattr(torchvision.datasets.Flowers102, "classes", raising=False)
    images = decode(sets.Flowers102, tmp_path, side=16)
    assert images.classes == [str(label) for label in range(102)]


def test_the_key_of_flowers102_follows_the_side(tmp_path):
    def key(**options):
        config = sets.Flowers102.Config(**options)
        return sets.Flowers102().cache_key(config=config, data_dir=tmp_path)

    assert key() == key(side=64) == "flowers102-squash-v2"
    assert key(side=32) == "flowers102-squash-32-v2"


def test_images_of_torchvision_are_converted_as_files_are(tmp_path, flowers, monkeypatch):
    loader = torchvision.datasets.Flowers102
    scan = np.full((20, 20), 1000, np.uint16)
    scan[:, 10:] = 4000
    wide = Image.fromarray(scan)
    shape = Image.new("RGBA", (20, 20))
    shape.paste((0, 0, 0, 255), (10, 0, 20, 20))
    turned = Image.fromarray((scan > 2000).T)
    turned.getexif()[0x0112] = 6  # to be turned by 90° to the right
    for picture, expected in (
        (wide, [0, 255]),
        (shape, [255, 0]),
        (turned, [255, 0]),
    ):
        monkeypatch.setattr(loader, "__getitem__", lambda self, index, p=picture: (p, 0))
        x = decode(sets.Flowers102, tmp_path, side=20).x
        assert x[0, 1, 5, [2, 17]].tolist() == expected


def test_flowers102_are_squashed(tmp_path, flowers, monkeypatch):
    # A picture of 40×20, green with red ends, which stay; cropping would remove them.
    loader = torchvision.datasets.Flowers102
    picture = Image.new("RGB", (40, 20), (0, 255, 0))
    for box in ((0, 0, 8, 20), (32, 0, 40, 20)):
        picture.paste((255, 0, 0), box)
    monkeypatch.setattr(loader, "__getitem__", lambda self, index: (picture, 0))
    squashed = decode(sets.Flowers102, tmp_path, side=10).x[0].float()
    assert squashed.shape == (3, 10, 10)
    assert squashed[0, :, 0].min() > 250 and squashed[1, :, 5].min() > 250


@pytest.mark.parametrize(
    "plugin",
    [sets.MNIST, sets.FashionMNIST, sets.CIFAR10, sets.CIFAR100, sets.Flowers102],
)
@pytest.mark.parametrize("failure", ["offline", "wrong file"])
def test_without_internet(tmp_path, site, monkeypatch, plugin, failure):
    folder, address = site
    key = plugin().cache_key(config=getattr(plugin, "Config", pf.Config)(), data_dir=tmp_path)
    name = key.removesuffix("-squash-v2")
    loader = getattr(torchvision.datasets, plugin.__name__)
    if failure == "offline":
        address = "http://127.0.0.1:9/"
    else:
        files = [file for file, _ in getattr(loader, "resources", [])]
        for file in (*files, "a.tgz", "102flowers.tgz"):
            (folder / file).write_bytes(b"another file")
    if hasattr(loader, "mirrors"):
        monkeypatch.setattr(loader, "mirrors", [address])
    elif hasattr(loader, "url"):
        monkeypatch.setattr(loader, "url", f"{address}a.tgz")
    else:
        monkeypatch.setattr(loader, "_download_url_prefix", address)
    with pytest.raises(pf.UsageError) as error:
        decode(plugin, tmp_path / "data")
    assert f"{name} cannot be downloaded" in error.value.what and "\n" not in error.value.what
    assert error.value.near.startswith(f"address: {address}")
    assert "--dataset npz:FILE" in error.value.do
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("plugin", [sets.EMNIST, sets.SVHN])
def test_sets_with_options_without_internet(tmp_path, monkeypatch, plugin):
    def refuse(*_, **__):
        raise OSError("no internet")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(pf.UsageError, match=f"{plugin.__name__.lower()} cannot be downloaded"):
        decode(plugin, tmp_path)
