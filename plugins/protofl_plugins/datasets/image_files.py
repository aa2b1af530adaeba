"""Image files as pixels: every mode of a file becomes 8-bit RGB in one way.

All readers of image files use these functions: data sets of files, `protofl score` and
`protofl evaluate`:

- Images are turned as their EXIF orientation says.
- Numbers of more than 8 bits, and floats, become 0…255 linearly. All images of a data set are
  mapped alike: from the least to the largest number that occurs in them, or as the user says.
- Images with transparency are laid on a colour.
- A mode without a conversion to RGB is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.file_kinds import FileKind, kind_of_file

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
"""Pillow's formats of images that are read. Others are not tried: EPS would start Ghostscript."""

_COLOURS = {"white": (255,) * 3, "black": (0,) * 3, "grey": (128,) * 3}

_USUAL = pf.datasets.ImageFiles()

_TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")

_FRAMES, _DEEP = "protofl frames", "protofl deep"
"""Keys of ``Image.info``: number of images in the file; True if its numbers have 16 bits."""


@dataclass(frozen=True)
class DecodedImages:
    """The images of a data set.

    Attributes:
        x: Pixels [N, 3, side, side], uint8.
        files: How they were decoded, with the range of numbers that was found.
        notes: What was done, for the user.
        left_out: Rows whose images cannot be read, in order, see `Dataset.without`.
    """

    x: np.ndarray
    files: pf.datasets.ImageFiles
    notes: list[str]
    left_out: list[int]


def open_image(source: Path | IO[bytes], name: str = "") -> Image:
    """Open and load the first image of a file, turned as its EXIF orientation says.

    Args:
        source: The file.
        name: What it is called in errors; the path if empty.

    Raises:
        pf.UsageError: The file is not an image of a known format, or it is damaged.
    """
    import PIL.Image

    name = name or str(source)
    try:
        with PIL.Image.open(source, formats=FORMATS) as file:
            facts: dict[Any, Any] = {
                _FRAMES: _frames(file),
                _DEEP: ";16" in str(getattr(file, "tile", "")),
            }
            file.load()
            image = _upright(file)
            image.info |= facts
            return image
    except (OSError, ValueError, SyntaxError, EOFError, PIL.Image.DecompressionBombError) as error:
        kind = _kind(source)
        raise pf.UsageError(
            f"{name} cannot be read as an image: {f'it is {kind.name}' if kind else error}",
            f"formats: {', '.join(FORMATS)}",
            (kind.do if kind else "") or "repair or remove the file",
        ) from error


def _upright(image: Image) -> Image:
    """Return a copy of an image, turned as its EXIF orientation says."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF raises many errors, and says nothing about the orientation
        return image.copy()


def to_rgb(image: Image, name: str, files: pf.datasets.ImageFiles) -> Image:
    """Convert an image of any mode to RGB.

    Args:
        image: The image.
        name: What it is called in errors.
        files: How; numbers outside of black…white are cut off.

    Raises:
        pf.UsageError: Its mode has no conversion, or it holds NaN or infinity.
    """
    import PIL.Image

    if is_wide(image):
        values = _numbers(image, name)
        black, white = files.black, files.white
        if black is None or white is None:
            black, white = float(values.min()), float(values.max())
        span = (white - black) or 1.0
        with np.errstate(over="ignore"):
            scaled = ((values - black) / span * 255).clip(0, 255)
        return PIL.Image.fromarray(np.rint(scaled).astype(np.uint8)).convert("RGB")
    try:
        if not _is_transparent(image):
            return image.convert("RGB")
        layered = image.convert("LA") if image.mode == "La" else image
        layered = layered.convert("RGBA")
        colour = (*_COLOURS[files.background], 255)
        ground = PIL.Image.new("RGBA", layered.size, colour)
        return PIL.Image.alpha_composite(ground, layered).convert("RGB")
    except (ValueError, OSError, KeyError) as error:
        raise pf.UsageError(
            f"{name}: an image of the mode {image.mode} cannot be converted to RGB: {error}",
            do="convert it to RGB, for example to PNG",
        ) from error


def square(image: Image, side: int, fit: Literal["crop", "squash"] = "crop") -> Image:
    """Bring an image to side×side pixels, bilinearly.

    Args:
        image: The image.
        side: Pixels of a side.
        fit: crop: the shorter side is brought to it, and the middle is cut out; squash: both sides.
    """
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    size = [side, side] if fit == "squash" else [side]
    result: Image = center_crop(resize(image, size, InterpolationMode.BILINEAR), side)
    return result


def read_image(
    path: Path, sample: pf.datasets.SampleSpec, files: pf.datasets.ImageFiles | None
) -> np.ndarray:
    """Read one image [1, channels, height, width], resized and cropped as by ``folder:``.

    Args:
        path: The file.
        sample: The images of the data set.
        files: How the files of the data set became pixels; None if none had more than 8 bits.

    Raises:
        pf.UsageError: The file cannot be read or converted, or does not fit the data set.
    """
    if sample.kind != "image" or sample.shape[0] not in (1, 3):
        raise pf.UsageError(f"{path} is an image, the client's data are {sample}")
    channels, *size = sample.shape
    image = open_image(path)
    if is_wide(image) and files is None:
        raise pf.UsageError(
            f"{path} has numbers of more than 8 bits or floats (mode {image.mode}), and the "
            "client's data had none",
            do="save the image as it was in the client's data, with 8 bits",
        )
    flat = to_rgb(image, str(path), files or _USUAL)
    if size != [flat.height, flat.width]:
        if size[0] != size[1]:
            raise pf.UsageError(
                f"{path} is {flat.height}×{flat.width}, the client's data are {sample}",
                do="bring the image to this size",
            )
        flat = square(flat, size[0])
    if channels == 1:
        flat = flat.convert("L")
    pixels = np.asarray(flat, np.uint8).reshape(1, *size, channels)
    return np.moveaxis(pixels, 3, 1)


def decode_images(
    count: int,
    image_of: Callable[[int], tuple[Image, str]],
    side: int,
    fit: Literal["crop", "squash"] = "crop",
    files: pf.datasets.ImageFiles = _USUAL,
    skip: bool | None = None,
) -> DecodedImages:
    """Decode the images of a data set, all in one way.

    Args:
        count: Number of images N.
        image_of: Opens the image of a row, and says what it is called; called in threads. The image
            is turned in place as its EXIF orientation says.
        side: Images become side×side pixels.
        fit: See `square`.
        files: How files become pixels; its range is found if it has none.
        skip: True to leave out images that cannot be read; None if the data set has no option
            ``skip_unreadable``.

    Raises:
        pf.UsageError: Images can't be read or converted; the error names all of them.
    """
    from PIL import ImageOps

    x = np.empty((count, 3, side, side), np.uint8)
    bounds: dict[int, tuple[str, float, float]] = {}
    seen: list[list[str]] = [[] for _ in range(count)]
    errors: dict[int, pf.UsageError] = {}

    def put(row: int) -> None:
        image, name = image_of(row)
        with suppress(Exception):  # damaged EXIF raises many errors, and tells no orientation
            ImageOps.exif_transpose(image, in_place=True)
        wide = is_wide(image)
        if wide and row not in bounds:
            values = _numbers(image, name)
            bounds[row] = image.mode, float(values.min()), float(values.max())
            if files.black is None:
                return  # decoded when the range of all images is known
        flat = to_rgb(image, name, files)
        x[row] = np.asarray(square(flat, side, fit)).transpose(2, 0, 1)
        seen[row] = _oddities(image)

    def tried(row: int) -> None:
        try:
            put(row)
        except pf.UsageError as error:
            errors[row] = error

    _in_threads(tried, range(count))
    left_out = sorted(errors)
    if errors and (not skip or len(errors) == count):
        raise _unreadable([errors[row] for row in left_out], count, skip)
    if bounds:
        _check_one_scale(bounds, image_of)
        low = min(low for _, low, _ in bounds.values())
        high = max(high for *_, high in bounds.values())
        if files.black is None:
            files = replace(files, black=low, white=high if high > low else low + 1)
            _in_threads(put, sorted(bounds))
    notes = _notes(seen, files)
    if bounds:
        modes = ", ".join(sorted({mode for mode, *_ in bounds.values()}))
        some = (
            f"{len(bounds):,} of {count:,} images" if len(bounds) < count else f"{count:,} images"
        )
        line = f"{some} of mode {modes}: numbers from {files.black:g} to {files.white:g}"
        notes = [f"{line} become 0 to 255 (dataset.black, dataset.white)", *notes]
    if errors:
        such = f"such as {errors[left_out[0]].what}"
        notes = [f"left out: {len(errors):,} of {count:,} images, {such}", *notes]
    return DecodedImages(x, files, notes, left_out)


def _unreadable(errors: list[pf.UsageError], count: int, skip: bool | None) -> pf.UsageError:
    """Return one error for all images that cannot be read."""
    first, option = errors[0], "--set dataset.skip_unreadable=true"
    do = first.do if skip is None else f"{first.do}; or leave such images out: {option}"
    if len(errors) == 1:
        return pf.UsageError(first.what, first.near, do)
    each = "; ".join(error.what for error in errors)
    return pf.UsageError(f"{len(errors):,} of {count:,} images cannot be read", each, do)


def _in_threads(work: Callable[[int], None], rows: Sequence[int]) -> None:
    with ThreadPoolExecutor(len(pf.backends.Dispatcher.cores())) as pool:
        for _ in pool.map(work, rows):
            pass


def _check_one_scale(
    bounds: dict[int, tuple[str, float, float]], image_of: Callable[[int], tuple[Image, str]]
) -> None:
    """Refuse floats beside integers: they have no common range."""
    kinds: dict[bool, int] = {}
    for row, (mode, *_) in sorted(bounds.items()):
        kinds.setdefault(mode == "F", row)
    if len(kinds) == 2:
        whole, floats = (image_of(kinds[kind])[1] for kind in (False, True))
        raise pf.UsageError(
            f"{floats} holds floats (mode F), and {whole} integers "
            f"(mode {bounds[kinds[False]][0]}): their numbers have no common range",
            do="save all images in one mode",
        )


_NOTES = {
    "laid": "{} with transparency: laid on {background} (dataset.background)",
    "frames": "{} of several frames or pages: the first one is read",
    "16-bit": "{} with 16 bits a colour: the upper 8 are read",
}


def _notes(seen: list[list[str]], files: pf.datasets.ImageFiles) -> list[str]:
    counts = Counter(chain.from_iterable(seen))
    return [
        line.format(f"{count:,} image{'s' * (count > 1)}", background=files.background)
        for what, line in _NOTES.items()
        if (count := counts[what])
    ]


def _oddities(image: Image) -> list[str]:
    """Return what a user would want to know about the conversion of an image."""
    result = ["laid"] if _is_transparent(image) and not _is_opaque(image) else []
    if image.info.get(_FRAMES, 1) > 1:
        result.append("frames")
    if image.info.get(_DEEP) and not is_wide(image):
        result.append("16-bit")
    return result


def _is_opaque(image: Image) -> bool:
    whole = image.convert("LA") if image.mode == "La" else image
    return whole.convert("RGBA").getchannel("A").getextrema()[0] == 255


def is_wide(image: Image) -> bool:
    """Return True for more than 8 bits, or floats."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _is_transparent(image: Image) -> bool:
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        return True
    palette = image.palette if image.mode == "P" else None
    return palette is not None and palette.mode.endswith("A")


def _numbers(image: Image, name: str) -> np.ndarray:
    """Return the numbers of an image of more than 8 bits [height, width], float64."""
    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all():
        raise pf.UsageError(
            f"{name}: the image of mode {image.mode} holds NaN or infinity",
            do="fill such pixels, or remove the file",
        )
    return values


def _frames(image: Image) -> int:
    """Return the number of images in a file; cameras add previews in MPO, which do not count."""
    return 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))


_READ = tuple(f"a {name} image" for name in ("JPEG", "PNG", "TIFF", "BMP", "WebP"))


def _kind(source: Path | IO[bytes]) -> FileKind | None:
    """Return what a file is that is not an image of the known formats."""
    try:
        kind = kind_of_file(source) if isinstance(source, Path) else None
    except OSError:
        return None
    return None if kind is None or kind.name in _READ else kind
