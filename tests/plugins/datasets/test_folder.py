"""Tests of data sets from class folders."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image

import protofl as pf
from protofl_plugins.datasets.folder import ENDINGS, Folder

COLOURS = {"apple": (200, 10, 10), "kiwi": (10, 200, 10), "Plum": (90, 10, 200)}


def fill(root, classes=COLOURS, count=2, size=(8, 6)):
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", size, COLOURS[name]).save(root / name / f"{i}.png")


def decode(root, **options):
    config = Folder.Config(path=str(root), **options)
    key = Folder().cache_key(config=config, data_dir=root)
    return key, Folder().decode(config=config, data_dir=root)


def failure(root):
    with pytest.raises(pf.UsageError) as error:
        decode(root)
    return error.value


def test_class_folders(tmp_path):
    fill(tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README.txt").write_text("no image")
    (tmp_path / "kiwi" / "deeper").mkdir()
    Image.new("L", (9, 9), 77).save(tmp_path / "kiwi" / "deeper" / "grey.JPG", format="JPEG")
    key, images = decode(tmp_path, side=4)
    assert key.startswith("folder-") and images.x.shape == (7, 3, 4, 4)
    assert images.classes == ["Plum", "apple", "kiwi"]  # the order of sorted() and ImageFolder
    assert images.y.tolist() == [0, 0, 1, 1, 2, 2, 2] and images.num_train == 7
    assert images.x[0, :, 0, 0].tolist() == [90, 10, 200]
    assert images.x[6].unique().tolist() == [77]


def test_the_same_as_torchvisions_image_folder(tmp_path):
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import IMG_EXTENSIONS
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

    fill(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (31, 47, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "apple" / "noise.png")
    shape = Compose([Resize(16, InterpolationMode.BILINEAR), CenterCrop(16)])
    source = ImageFolder(tmp_path, shape)
    _, images = decode(tmp_path, side=16)
    assert images.y.tolist() == [label for _, label in source]
    expected = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image, _ in source]
    assert torch.equal(images.x, torch.stack(expected))
    assert set(ENDINGS) == set(IMG_EXTENSIONS)


@pytest.mark.parametrize("test", ["test", "val", None])
def test_parts(tmp_path, test):
    fill(tmp_path / "train")
    if test:
        fill(tmp_path / test, ["apple", "kiwi"], count=1)
    if test == "test":
        fill(tmp_path / "val", count=5)  # test takes precedence
    _, images = decode(tmp_path)
    assert images.x.shape == (8 if test else 6, 3, 64, 64) and images.num_train == 6
    assert images.y.tolist() == [0, 0, 1, 1, 2, 2] + ([1, 2] if test else [])


def test_a_class_that_is_called_train(tmp_path):
    (tmp_path / "bus").mkdir()
    (tmp_path / "train").mkdir()
    for name in ("bus", "train"):
        Image.new("RGB", (5, 5)).save(tmp_path / name / "a.png")
    assert decode(tmp_path)[1].classes == ["bus", "train"]


def test_the_key_follows_files_and_side(tmp_path):
    fill(tmp_path)
    keys = [decode(tmp_path)[0], decode(tmp_path)[0], decode(tmp_path, side=32)[0]]
    os.utime(tmp_path / "kiwi" / "1.png", ns=(1, 1))
    keys.append(decode(tmp_path)[0])
    (tmp_path / "kiwi" / "1.png").unlink()
    keys.append(decode(tmp_path)[0])
    assert keys[0] == keys[1] and len(set(keys)) == 4


def test_empty_class_folders(tmp_path):
    fill(tmp_path)
    (tmp_path / "zebra").mkdir()
    (tmp_path / "zebra" / "notes.txt").write_text("")
    (tmp_path / "yak").mkdir()
    error = failure(tmp_path)
    assert "no images in class folder yak, zebra" in error.what
    assert ".png" in error.near and "remove the folder" in error.do


def test_an_empty_class_folder_in_the_test_part(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "test", ["apple", "kiwi"], count=1)
    (tmp_path / "test" / "Plum").mkdir()
    assert len(decode(tmp_path)[1].y) == 8


def test_a_test_class_that_is_not_in_training(tmp_path):
    fill(tmp_path / "train", ["apple", "kiwi"])
    fill(tmp_path / "test")
    error = failure(tmp_path)
    assert "lacks: Plum" in error.what and "apple, kiwi" in error.near


def test_no_folder_no_classes_one_class(tmp_path):
    assert "no folder" in failure(tmp_path / "none").what
    assert "no class folders" in failure(tmp_path).what
    fill(tmp_path, ["apple"])
    assert "only one class (apple)" in failure(tmp_path).what


@pytest.mark.parametrize("content", [b"", b"no image at all", "cut"])
def test_a_damaged_image(tmp_path, content):
    fill(tmp_path)
    path = tmp_path / "kiwi" / "1.png"
    path.write_bytes(path.read_bytes()[:-30] if content == "cut" else content)
    assert str(path) in failure(tmp_path).what


@pytest.mark.parametrize(
    "links",
    [
        {"kiwi/more": "."},
        {"kiwi/more": "kiwi"},
        {"kiwi/more": "apple", "apple/more": "kiwi"},
        {"kiwi/deep/more": "kiwi"},
    ],
)
def test_links_in_a_circle(tmp_path, links):
    fill(tmp_path)
    (tmp_path / "kiwi/deep").mkdir()
    for link, target in links.items():
        (tmp_path / link).symlink_to(tmp_path / target)
    found = failure(tmp_path)
    assert "leads back to" in found.what and "more" in found.what and found.do


def test_links_that_lead_elsewhere_are_followed(tmp_path):
    fill(tmp_path / "here")
    fill(tmp_path / "there", ["kiwi"], count=3)
    (tmp_path / "here/kiwi/more").symlink_to(tmp_path / "there/kiwi")
    _, data = decode(tmp_path / "here")
    assert torch.bincount(data.y).tolist() == [2, 2, 5]


def test_a_link_to_no_file(tmp_path):
    fill(tmp_path)
    (tmp_path / "kiwi/2.png").symlink_to(tmp_path / "gone.png")
    assert "leads to no file" in failure(tmp_path).what


def test_an_image_of_more_pixels_than_pillow_takes(tmp_path, monkeypatch):
    fill(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    found = failure(tmp_path)
    assert str(tmp_path) in found.near and "48 pixels" in found.near


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
def test_a_class_whose_name_is_no_utf_8(tmp_path):
    fill(tmp_path)
    os.mkdir(os.path.join(os.fsencode(tmp_path), b"p\xe4ch"))
    assert "not UTF-8" in failure(tmp_path).what


@pytest.mark.parametrize("parts", [(), ("train", "test")])
def test_a_folder_per_client(tmp_path, parts):
    for root in [tmp_path / part for part in parts] or [tmp_path]:
        fill(root / "anna", ("apple", "kiwi"))
        fill(root / "bo", ("Plum", "apple"))
    _, data = decode(tmp_path, side=4, layout="clients")
    assert data.classes == ["Plum", "apple", "kiwi"]
    each = ["anna"] * 4 + ["bo"] * 4
    assert data.columns["client"].tolist() == each * max(1, len(parts))
    assert data.y.tolist() == [1, 1, 2, 2, 0, 0, 1, 1] * max(1, len(parts))
    assert data.num_train == 8


def test_no_folders_of_clients(tmp_path):
    fill(tmp_path)
    with pytest.raises(pf.UsageError, match="holds no class folders"):
        decode(tmp_path, layout="clients")


# --- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "test", "left"),
    [
        ("Train", "Test", ()),
        ("TRAINING", "TESTING", ()),
        ("train", "test", ("valid",)),
        ("training", "validation", ()),
        ("Training Set", "Test Set", ()),
        ("train_images", "test-images", ("dev",)),
        ("seg_train", "seg_test", ()),
        ("TrainingData", "eval", ()),
        ("train2017", "val2017", ()),
    ],
)
def test_parts_by_their_usual_names(tmp_path, train, test, left):
    fill(tmp_path / train)
    fill(tmp_path / test, count=1)
    for name in left:
        fill(tmp_path / name, count=4)
    _, images = decode(tmp_path)
    assert images.classes == ["Plum", "apple", "kiwi"]
    assert (images.num_train, len(images.y)) == (6, 9)
    if left:
        assert f"left out: 12 images in {left[0]}/" in images.note
    assert (f"{test}/ is the test part" in images.note) == (
        test in ("validation", "eval", "val2017")
    )


def test_folders_around_parts_and_classes_are_passed_through(tmp_path):
    fill(tmp_path / "archive/data/seg_train/seg_train")
    fill(tmp_path / "archive/data/seg_test/seg_test", count=1)
    _, images = decode(tmp_path)
    assert images.classes == ["Plum", "apple", "kiwi"] and images.num_train == 6
    assert len(images.y) == 9 and images.note == ""


def test_clients_have_parts_of_any_spelling(tmp_path):
    for part in ("Train", "Test"):
        fill(tmp_path / part / "anna", ("apple", "kiwi"))
    _, data = decode(tmp_path, side=4, layout="clients")
    assert data.num_train == 4 and set(data.columns["client"]) == {"anna"}


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (("one", "two"), "hold no image themselves, but all the same folders: Plum, apple, kiwi"),
        (("train", "extra"), "all the same folders"),
        (("Train", "training"), "both names of the train part"),
        (("test", "val"), "no training part"),
    ],
)
def test_folders_that_may_be_parts_or_classes(tmp_path, folders, words):
    for name in folders:
        fill(tmp_path / name)
    error = failure(tmp_path)
    assert words in error.what and error.do


def test_a_folder_beside_parts_is_refused(tmp_path):
    fill(tmp_path / "seg_train")
    fill(tmp_path / "seg_test")
    (tmp_path / "seg_pred").mkdir()
    assert "beside them is seg_pred" in failure(tmp_path).what


def test_parts_without_class_folders_are_not_classes(tmp_path):
    fill(tmp_path, ["apple", "kiwi"])
    (tmp_path / "apple").rename(tmp_path / "train")
    (tmp_path / "kiwi").rename(tmp_path / "test")
    assert "holds no class folders" in failure(tmp_path).what


def test_classes_with_different_folders_inside_stay_classes(tmp_path):
    fill(tmp_path / "cats", ["apple"])
    fill(tmp_path / "dogs", ["kiwi"])
    assert decode(tmp_path)[1].classes == ["cats", "dogs"]


# --- what is left out, and what images become ----------------------------------------------------


def test_what_is_left_out_is_counted(tmp_path):
    fill(tmp_path)
    Image.new("RGB", (5, 5)).save(tmp_path / "apple" / "a.gif")
    (tmp_path / "apple" / "notes.txt").write_text("")
    (tmp_path / "apple" / "README").write_text("")
    (tmp_path / "apple" / "._0.png").write_bytes(b"of another system")
    (tmp_path / "kiwi" / ".ipynb_checkpoints").mkdir()
    Image.new("RGB", (5, 5)).save(tmp_path / "kiwi" / ".ipynb_checkpoints" / "0.png")
    fill(tmp_path / "__MACOSX", ["apple"])
    Image.new("RGB", (5, 5)).save(tmp_path / "cover.png")
    key, images = decode(tmp_path)
    assert len(images.y) == 6 and images.classes == ["Plum", "apple", "kiwi"]
    assert images.note == "left out: 1 image in ./, other files: .gif 1, .txt 1, no ending 1"
    (tmp_path / "apple" / "notes.txt").unlink()
    assert decode(tmp_path)[0] != key  # the note is part of what is cached


def scans(root, count=4, shift=0):
    """Write 16-bit scans of two classes, which differ in the place of a square."""
    rng = np.random.default_rng(shift)
    for number, name in enumerate(("left", "right")):
        (root / name).mkdir(parents=True)
        for i in range(count):
            values = rng.normal(1200, 60, (16, 16))
            values[4:10, 2 + 8 * number : 6 + 8 * number] = 2600 + shift
            Image.fromarray(values.astype("uint16")).save(root / name / f"{i}.png")


def test_16_bit_scans_keep_their_content(tmp_path):
    scans(tmp_path)
    _, images = decode(tmp_path, side=16)
    left, right = (images.x[images.y == label][:, 0].float().mean(0) for label in (0, 1))
    assert left[4:10, 2:6].min() > 250 and right[4:10, 2:6].max() < 100
    assert "8 images of mode I;16: numbers from" in images.note
    files = images.preparation.images
    assert files.white == 2600 and 900 < files.black < 1100
    _, given = decode(tmp_path, side=16, black=0, white=65535)
    assert given.x.max() == 10 and given.preparation.images.white == 65535


def test_the_options_of_images_are_in_the_key(tmp_path):
    fill(tmp_path)
    keys = {decode(tmp_path)[0], decode(tmp_path, background="black")[0]}
    keys.add(decode(tmp_path, black=0, white=9)[0])
    assert len(keys) == 3


@pytest.mark.slow
def test_scores_and_evaluations_use_the_range_of_the_run(tmp_path):
    """A client reads a 16-bit scan as its training data were read."""
    scans(tmp_path / "data")
    scans(tmp_path / "new", count=2, shift=400)  # brighter: its own range would differ
    own, given = (tmp_path / name for name in ("run", "client.pt2"))
    options = {"partition": "iid", "feature_dim": 8, "backend": "local", "rounds": 1, "clients": 2}
    pf.run(
        "fedproto",
        models="cnn4",
        dataset=f"folder:{tmp_path / 'data'}",
        set={"dataset.side": 32},
        out=own,
        data_dir=tmp_path / "cache",
        progress=False,
        **options,
    )
    run = pf.load_run(own)
    files = run.preparation.images
    assert files.white == 2600
    run.export(0, given)
    from protofl_workbench.recorded.exported import read_exported

    client = read_exported(given, trust_pickle=True)
    path = tmp_path / "data/right/1.png"
    pixels = client.samples_in(path)
    row = 4 + 1
    assert torch.equal(pixels, run.plan.data.x[row : row + 1].to(pixels.dtype))
    found = run.evaluate(tmp_path / "new")
    assert found.overall["samples"] == 8 and any("1" in note for note in found.notes)
    assert any(f"to {files.white:g} become 0 to 255" in note for note in found.notes)


def test_all_images_that_cannot_be_read_are_named_or_left_out(tmp_path):
    fill(tmp_path / "train", count=3)
    fill(tmp_path / "test", count=2)
    damaged = [tmp_path / place for place in ("train/apple/1.png", "train/kiwi/0.png")]
    damaged.append(tmp_path / "test" / "Plum" / "1.png")
    for path in damaged:
        path.write_bytes(path.read_bytes()[:40])
    error = failure(tmp_path)
    assert error.what == "3 of 15 images cannot be read"
    assert all(str(path) in error.near for path in damaged)
    assert error.do.endswith("--set dataset.skip_unreadable=true")
    _, images = decode(tmp_path, skip_unreadable=True)  # the advice
    assert images.num_train == 7 and images.y.tolist() == [0, 0, 0, 1, 1, 2, 2, 0, 1, 1, 2, 2]
    colours = [COLOURS[images.classes[y]] for y in images.y]
    assert [tuple(x[:, 0, 0].tolist()) for x in images.x] == colours
    assert f"left out: 3 of 15 images, such as {damaged[0]}" in images.note
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(pf.UsageError, match="15 of 15 images"):
        decode(tmp_path, skip_unreadable=True)
