"""Tests of csv:FILE whose rows name images."""

from __future__ import annotations

import pytest
from PIL import Image

import protofl as pf
from protofl.testing import DatasetContract, run_checks
from protofl_plugins.datasets.folder import Folder
from protofl_plugins.datasets.table_files import Csv


def write(folder, name="ISIC_{:04d}", count=12):
    """Write images, each of one grey that is its number, and a table of them in another order."""
    (folder / "images").mkdir(parents=True)
    lines = ["image_id,dx,age,site,part"]
    for i in reversed(range(count)):
        Image.new("L", (10, 10), i).save(folder / "images" / f"ISIC_{i:04d}.png")
        lines.append(f"{name.format(i)},{('nv', 'mel')[i % 2]},{i},s{i % 3},{int(i % 4 == 0)}")
    (folder / "meta.csv").write_text("\n".join(lines) + "\n")
    return folder / "meta.csv"


def decode(path, **options):
    given = {"path": str(path), "label": "dx", **options}
    return Csv().decode(config=Csv.Config(**given), data_dir=path.parent / "data")


@pytest.mark.parametrize(
    "name", ["ISIC_{:04d}", "ISIC_{:04d}.png", "images/ISIC_{:04d}.png", "images\\ISIC_{:04d}"]
)
def test_rows_that_name_images(tmp_path, name):
    path = write(tmp_path / "ham", name)
    data = decode(path, image="image_id", client="site", test="part", side=8)
    assert data.x.shape == (12, 3, 8, 8) and data.num_train == 9
    numbers = data.x[:, 0, 0, 0].tolist()
    assert numbers == [11, 10, 9, 7, 6, 5, 3, 2, 1, 8, 4, 0]  # test rows come last
    assert [data.classes[label] for label in data.y] == [("nv", "mel")[n % 2] for n in numbers]
    assert data.columns["site"].tolist() == [f"s{n % 3}" for n in numbers]
    assert "other columns are not used: age" in data.note
    assert data.preparation == pf.datasets.Preparation()
    damaged = tmp_path / "ham" / "images" / "ISIC_0007.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    chosen = {"image": "image_id", "client": "site", "test": "part", "side": 8}
    data = decode(path, skip_unreadable=True, **chosen)
    numbers.remove(7)
    assert data.x[:, 0, 0, 0].tolist() == numbers and data.num_train == 8
    assert data.columns["site"].tolist() == [f"s{n % 3}" for n in numbers]


def test_the_contract_of_data_sets_with_images(tmp_path):
    path = write(tmp_path / "ham")

    options = {"label": "dx", "image": "image_id", "side": 8}
    chosen = {"plugin": "csv", "argument": str(path), "options": options}
    found = run_checks(type("Chosen", (DatasetContract,), chosen))
    assert {f.outcome for f in found} <= {"passed", "skipped"}, found


def test_other_images_have_another_key(tmp_path):
    path = write(tmp_path / "ham")
    config = Csv.Config(path=str(path), label="dx", image="image_id")
    key = Csv().cache_key(config=config, data_dir=tmp_path)
    Image.new("RGB", (30, 30), (1, 2, 3)).save(tmp_path / "ham" / "images" / "ISIC_0003.png")
    assert Csv().cache_key(config=config, data_dir=tmp_path) != key


def test_images_that_are_missing_or_several_are_counted(tmp_path):
    path = write(tmp_path / "ham")
    (tmp_path / "ham" / "images" / "ISIC_0003.png").unlink()
    (tmp_path / "ham" / "images" / "ISIC_0004.png").unlink()
    with pytest.raises(pf.UsageError, match=r"2 of 12 values .* 'ISIC_0004' has none"):
        decode(path, image="image_id")
    (tmp_path / "ham" / "more").mkdir()
    for number in (3, 4, 5):
        Image.new("L", (9, 9)).save(tmp_path / "ham" / "more" / f"ISIC_{number:04d}.png")
    with pytest.raises(pf.UsageError, match=r"1 of 12 values .* 'ISIC_0005' has several"):
        decode(path, image="image_id")
    with pytest.raises(pf.UsageError, match=r"dataset\.side is for images"):
        decode(path, side=8)


def test_errors_and_notes_name_the_way(tmp_path):
    way = "--set dataset.image=image_id"
    path = write(tmp_path / "ham", count=40)
    with pytest.raises(pf.UsageError, match="40 different values") as error:
        decode(path)
    assert f"such as images/ISIC_0039.png; to read them: {way}" in error.value.do
    assert way in decode(path, drop="image_id").note
    few = write(tmp_path / "few")
    assert way in decode(few).note  # its names are few enough for categories
    for folder in ("ham", "ham/images"):
        with pytest.raises(pf.UsageError) as error:
            Folder().decode(
                config=Folder.Config(path=str(tmp_path / folder)), data_dir=tmp_path / "data"
            )
        assert f"csv:{path} --set dataset.image=COLUMN" in error.value.do
