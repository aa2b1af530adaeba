"""Recognise the kind of a file by its first bytes, for errors about unexpected files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileKind:
    """The kind of a file.

    Attributes:
        name: The kind as a noun phrase: ``a web page (HTML)``.
        do: How to get or make the expected file.
    """

    name: str
    do: str = ""


_POINTER = FileKind(
    "a pointer of Git LFS and not the data", "get the data, in the repository: git lfs pull"
)
_ANNEX = FileKind("a pointer of git-annex and not the data", "get the data: git annex get FILE")
_PAGE = FileKind(
    "a web page (HTML)", "the download gave a page and not the file: open the address in a browser"
)
_PICKLE = FileKind(
    "a file of pickled objects, which can run code and are never read here",
    "save plain arrays: images as uint8 or float32, other samples as float32 or int64, labels as "
    "integers, classes as strings",
)
_UNPACK = "unpack it, and give what it contains"
_CSV = "give it as --dataset csv:FILE --set dataset.label=COLUMN"
_PARQUET = "give it as --dataset parquet:FILE --set dataset.label=COLUMN"
_ARRAYS = "read it in Python, and save its arrays with numpy.savez_compressed"

_STARTS: tuple[tuple[bytes, FileKind], ...] = (
    (b"version https://git-lfs", _POINTER),
    (b"\x1f\x8b", FileKind("compressed with gzip", f"{_UNPACK}: gunzip FILE")),
    (b"BZh", FileKind("compressed with bzip2", f"{_UNPACK}: bunzip2 FILE")),
    (b"\xfd7zXZ\x00", FileKind("compressed with xz", f"{_UNPACK}: unxz FILE")),
    (b"\x28\xb5\x2f\xfd", FileKind("compressed with zstd", f"{_UNPACK}: unzstd FILE")),
    (b"7z\xbc\xaf\x27\x1c", FileKind("a 7z archive", _UNPACK)),
    (b"Rar!", FileKind("a RAR archive", _UNPACK)),
    (b"PK\x03\x04", FileKind("a zip archive", _UNPACK)),
    (b"PK\x05\x06", FileKind("an empty zip archive")),
    (b"\x93NUMPY", FileKind("a single array (.npy)")),
    (b"\x89HDF\r\n", FileKind("an HDF5 file", _ARRAYS)),
    (b"PAR1", FileKind("a Parquet file", _PARQUET)),
    (b"ARROW1", FileKind("an Arrow file", _ARRAYS)),
    (b"MATLAB 5.0", FileKind("a MATLAB file", _ARRAYS)),
    (b"SQLite format 3", FileKind("an SQLite database", _ARRAYS)),
    (b"%PDF", FileKind("a PDF file")),
    (b"%!PS", FileKind("a PostScript file (EPS)")),
    (b"\xc5\xd0\xd3\xc6", FileKind("a PostScript file (EPS)")),
    (b"\xff\xd8\xff", FileKind("a JPEG image")),
    (b"\x89PNG", FileKind("a PNG image")),
    (b"GIF8", FileKind("a GIF image", "convert it to PNG")),
    (b"II*\x00", FileKind("a TIFF image")),
    (b"MM\x00*", FileKind("a TIFF image")),
    (b"BM", FileKind("a BMP image")),
    (b"{\\rtf", FileKind("an RTF text")),
)

_HTML = re.compile(rb"^\s*(<!--.*?-->\s*)?(<\?xml[^>]*>\s*)?<(!doctype html|html|head|body)", re.I)


def kind_of_file(path: Path) -> FileKind | None:
    """Return the kind of a file by its first bytes; None if they tell nothing.

    Raises:
        OSError: The file can't be read.
    """
    with path.open("rb") as file:
        head = file.read(1024)
    if not head:
        return FileKind("empty", "copy or save it again")
    for start, kind in _STARTS:
        if head.startswith(start):
            return kind
    if head[4:12] in (b"ftypheic", b"ftypheix", b"ftypmif1"):
        return FileKind("a HEIC image", "convert it to PNG or JPEG")
    if head[4:12] == b"ftypavif":
        return FileKind("an AVIF image", "convert it to PNG or JPEG")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return FileKind("a WebP image")
    if head[257:262] == b"ustar":
        return FileKind("a tar archive", _UNPACK)
    if head[0] == 0x80 and 2 <= head[1] <= 5:
        return _PICKLE
    if b"/annex/objects/" in head[:512]:
        return _ANNEX
    if _HTML.match(head):
        return _PAGE
    return _text(head)


def _text(head: bytes) -> FileKind | None:
    """Return the kind of a text file; None if the bytes are not a text."""
    wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = head.decode("utf-16", "ignore") if wide else head.decode("utf-8-sig", "replace")
    if any(c < " " and c not in "\t\r\n" for c in text):
        return None
    if text.lstrip()[:1] in ("{", "["):
        return FileKind("a JSON text", _ARRAYS)
    lines = text.splitlines()
    for separator, name in ((",", "commas"), ("\t", "tabs"), (";", "semicolons")):
        counts = {line.count(separator) for line in lines[: max(1, len(lines) - 1)] if line}
        if counts and min(counts) > 0:
            return FileKind(f"a table as text (CSV, with {name})", _CSV)
    return FileKind("a text")
