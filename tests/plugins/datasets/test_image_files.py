"""Tests of image files: the content of every mode arrives, or an error or a note says why not."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import protofl as pf
from protofl_plugins.datasets.image_files import decode_images, open_image, to_rgb

SIZE = 12
SQUARE = np.zeros((SIZE, SIZE), bool)
SQUARE[3:8, 2:6] = True


def decoded(*paths, side=SIZE, **files):
    def image_of(row):
        return open_image(paths[row]), str(paths[row])

    how = pf.datasets.ImageFiles(**files)
    return decode_images(len(paths), image_of, side, files=how)


def one(path, **files):
    """Return the pixels [height, width, 3] of one file."""
    return decoded(path, **files).x[0].transpose(1, 2, 0)


def png(path, bits, colour, rows, *chunks):
    """Write a PNG file that Pillow does not write: 16 bits a colour, 16 bits with alpha."""

    def chunk(name, content):
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", SIZE, SIZE, bits, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [chunk(b"IHDR", head), *(chunk(*each) for each in chunks), chunk(b"IDAT", data)]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("uint16", "png"),
        ("uint16", "tif"),
        (">u2", "tif"),
        ("int32", "tif"),
        ("float32", "tif"),
        ("float64", "tif"),
    ],
)
def test_numbers_of_more_than_8_bits_are_scaled_over_the_range_of_all_images(
    tmp_path, kind, ending
):
    ramp = np.linspace(1000, 3000, SIZE * SIZE).reshape(SIZE, SIZE)
    paths = []
    for number, shift in enumerate((0, 1095)):  # 1000…3000 and 2095…4095
        paths.append(tmp_path / f"{number}.{ending}")
        Image.fromarray((ramp + shift).astype(kind)).save(paths[-1])
    found = decoded(*paths)
    assert (found.files.black, found.files.white) == (1000, 4095)
    stored = [(ramp + shift).astype(kind).astype(float) for shift in (0, 1095)]
    expected = np.rint((np.stack(stored) - 1000) / 3095 * 255)
    assert np.array_equal(found.x[:, 0], expected) and np.array_equal(found.x[:, 2], expected)
    assert "numbers from 1000 to 4095 become 0 to 255" in found.notes[0]
    again = decoded(paths[0], black=1000, white=4095)  # as `protofl score` reads one of them
    assert np.array_equal(again.x[0], found.x[0])


def test_numbers_outside_of_a_given_range_are_cut_off(tmp_path):
    values = np.full((SIZE, SIZE), 2000, np.uint16)
    values[0, :3] = 0, 1500, 60000
    Image.fromarray(values).save(tmp_path / "a.png")
    pixels = one(tmp_path / "a.png", black=1000, white=3000)[..., 0]
    assert pixels[0, :4].tolist() == [0, 64, 255, 128]


def test_floats_beside_integers_have_no_common_range(tmp_path):
    Image.fromarray(SQUARE.astype("float32")).save(tmp_path / "a.tif")
    Image.fromarray(SQUARE.astype("uint16") * 900).save(tmp_path / "b.png")
    with pytest.raises(pf.UsageError, match=r"a\.tif holds floats .*b\.png integers"):
        decoded(tmp_path / "a.tif", tmp_path / "b.png")


def test_floats_that_are_not_finite_are_refused_with_file_and_mode(tmp_path):
    values = SQUARE.astype("float32")
    values[0, 0] = np.nan
    Image.fromarray(values).save(tmp_path / "a.tif")
    with pytest.raises(pf.UsageError, match=r"a\.tif.*mode F holds NaN"):
        decoded(tmp_path / "a.tif")


def transparent(path, mode):
    """Write black pixels, opaque in a square, in a mode with transparency."""
    alpha = Image.fromarray(np.where(SQUARE, 255, 0).astype("uint8"))
    if mode in ("LA", "RGBA"):
        image = Image.new(mode[:-1], (SIZE, SIZE))
        image.putalpha(alpha)
        image.save(path)
    elif mode == "P":  # two black colours, the second one is transparent
        image = Image.fromarray(np.where(SQUARE, 0, 1).astype("uint8"))
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.save(path, transparency=1)
    elif mode == "P with bytes":
        image = Image.fromarray(np.where(SQUARE, 0, 1).astype("uint8"))
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.save(path, transparency=b"\xff\x00")
    elif mode == "L with a transparent value":
        Image.fromarray(np.where(SQUARE, 0, 7).astype("uint8")).save(path, transparency=7)
    else:
        grey = np.zeros((SIZE, SIZE, 2), ">u2")
        grey[..., 1] = np.where(SQUARE, 65535, 0)
        png(path, 16, 4, grey)


MODES = ["LA", "RGBA", "P", "P with bytes", "L with a transparent value", "LA of 16 bits"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("background", ["white", "grey"])
def test_a_shape_in_transparency_is_laid_on_one_colour(tmp_path, mode, background):
    path = tmp_path / "a.png"
    transparent(path, mode)
    found = one(path, background=background)
    ground = {"white": 255, "grey": 128}[background]
    assert np.array_equal(found[..., 0], np.where(SQUARE, 0, ground))
    assert f"laid on {background}" in "; ".join(decoded(path, background=background).notes)


def test_half_transparent_pixels_are_mixed(tmp_path):
    Image.new("RGBA", (SIZE, SIZE), (100, 0, 200, 51)).save(tmp_path / "a.png")  # a fifth
    pixel = one(tmp_path / "a.png")[0, 0].astype(int)
    assert np.abs(pixel - [0.2 * 100 + 0.8 * 255, 0.8 * 255, 0.2 * 200 + 0.8 * 255]).max() <= 1


def test_opaque_alpha_changes_nothing_and_is_not_noted(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.putalpha(255)
    image.save(tmp_path / "a.png")
    assert np.array_equal(one(tmp_path / "a.png"), pixels)
    assert decoded(tmp_path / "a.png").notes == []


def test_palettes_and_single_bits(tmp_path):
    palette = Image.fromarray(SQUARE.astype("uint8"))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.save(tmp_path / "p.png")
    assert np.array_equal(
        one(tmp_path / "p.png"), np.where(SQUARE[..., None], [200, 100, 50], [10, 20, 30])
    )
    Image.fromarray(SQUARE).save(tmp_path / "bits.png")
    assert np.array_equal(one(tmp_path / "bits.png")[..., 1], np.where(SQUARE, 255, 0))


def test_cmyk(tmp_path):
    ink = np.zeros((SIZE, SIZE, 4), np.uint8)
    ink[..., 1] = np.where(SQUARE, 255, 0)  # magenta: no green
    Image.fromarray(ink, "CMYK").save(tmp_path / "a.tif")
    assert np.array_equal(one(tmp_path / "a.tif")[..., 1], np.where(SQUARE, 0, 255))


def test_a_mode_without_a_conversion_is_refused_with_file_and_mode(tmp_path, monkeypatch):
    Image.new("LAB", (SIZE, SIZE)).save(tmp_path / "a.tif")

    def convert(self, mode):
        raise ValueError(f"conversion from {self.mode} to {mode} not supported")  # older Pillow's

    monkeypatch.setattr(Image.Image, "convert", convert)
    with pytest.raises(pf.UsageError, match=r"a\.tif.*mode LAB cannot be converted"):
        decoded(tmp_path / "a.tif")


@pytest.mark.parametrize("mode", ["RGB", "L", "I;16", "I;16B", "F"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied(tmp_path, mode, orientation):
    values = np.zeros((SIZE, SIZE))
    values[:4, :2] = 255  # in the upper left corner, higher than wide
    dtype = {"RGB": "uint8", "L": "uint8", "I;16": "<u2", "I;16B": ">u2", "F": "float32"}[mode]
    plain = values.astype(dtype)
    image = Image.fromarray(np.stack([plain] * 3, 2) if mode == "RGB" else plain)
    assert image.mode == mode
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.tif"
    image.save(path, exif=exif)
    upright = {
        1: values,
        2: values[:, ::-1],
        3: values[::-1, ::-1],
        4: values[::-1],
        5: values.T,
        6: np.rot90(values, -1),
        7: values[::-1, ::-1].T,
        8: np.rot90(values),
    }[orientation]
    assert np.array_equal(one(path)[..., 0], upright)


def test_16_bits_a_colour_are_noted(tmp_path):
    values = np.random.default_rng(0).integers(0, 65536, (SIZE, SIZE, 3)).astype(">u2")
    path = png(tmp_path / "a.png", 16, 2, values)
    assert np.array_equal(one(path), values >> 8)
    assert "the upper 8 are read" in "; ".join(decoded(path).notes)


def test_the_first_of_several_frames_is_read_and_noted(tmp_path):
    first, second = Image.fromarray(SQUARE), Image.new("1", (SIZE, SIZE))
    first.save(tmp_path / "a.tif", save_all=True, append_images=[second])
    assert np.array_equal(one(tmp_path / "a.tif")[..., 0], np.where(SQUARE, 255, 0))
    assert "1 image of several frames" in "; ".join(decoded(tmp_path / "a.tif").notes)


@pytest.mark.parametrize(
    ("content", "words", "do"),
    [
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript", "repair or remove"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "web page", "open the address"),
        (b"", "empty", "again"),
        (b"GIF89a", "GIF image", "convert it"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path, content, words, do):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(pf.UsageError, match=words) as error:
        open_image(path)
    assert str(path) in error.value.what and do in error.value.do


def test_postscript_is_never_given_to_ghostscript(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    def start(*args, **kwargs):
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
    Image.new("RGB", (9, 9)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(pf.UsageError, match="PostScript"):
        open_image(tmp_path / "a.png")


def test_a_png_with_another_images_ending_is_read(tmp_path):
    Image.fromarray(SQUARE).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "a.jpg")
    assert np.array_equal(one(tmp_path / "a.jpg")[..., 0], np.where(SQUARE, 255, 0))


def test_a_truncated_file_is_refused(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for ending in ("jpg", "png", "tif", "bmp"):
        path = tmp_path / f"a.{ending}"
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:-2000])
        with pytest.raises(pf.UsageError, match="cannot be read as an image"):
            open_image(path)


def test_a_range_needs_both_ends():
    with pytest.raises(pf.UsageError, match="one number of the range is missing"):
        pf.datasets.ImageFiles(black=3)
    with pytest.raises(pf.UsageError, match="both 3"):
        pf.datasets.ImageFiles(black=3, white=3)


def test_images_in_grey_keep_their_values():
    image = Image.fromarray(np.arange(144, dtype=np.uint8).reshape(SIZE, SIZE))
    again = to_rgb(image, "a", pf.datasets.ImageFiles()).convert("L")
    assert again.tobytes() == image.tobytes()
