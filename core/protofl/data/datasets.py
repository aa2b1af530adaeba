"""Types and helpers for data sets, samples, image generators and text encoders.

Public as ``protofl.datasets``.
"""

from protofl.data.array_files import open_arrays
from protofl.data.arrays import dataset_from_arrays
from protofl.data.dataset import Dataset
from protofl.data.download import download, files_key
from protofl.data.file_kinds import FileKind, kind_of_file
from protofl.data.generators import Generator, Outline
from protofl.data.image_files import (
    DecodedImages,
    ImageFiles,
    decode_images,
    open_image,
    upright,
)
from protofl.data.npz import read_npz
from protofl.data.preparation import Preparation, Scaling, Words
from protofl.data.spec import SampleSpec
from protofl.data.table_form import TableColumn, TableForm, TableReader
from protofl.data.table_values import gaps_in, missing_column, numbers_in, texts_in
from protofl.data.tasks import Task, TaskOptions
from protofl.data.text_encoders import TextEncoder, TextOutline, TextSource

__all__ = [
    "Dataset",
    "DecodedImages",
    "FileKind",
    "Generator",
    "ImageFiles",
    "Outline",
    "Preparation",
    "SampleSpec",
    "Scaling",
    "TableColumn",
    "TableForm",
    "TableReader",
    "Task",
    "TaskOptions",
    "TextEncoder",
    "TextOutline",
    "TextSource",
    "Words",
    "dataset_from_arrays",
    "decode_images",
    "download",
    "files_key",
    "gaps_in",
    "kind_of_file",
    "missing_column",
    "numbers_in",
    "open_arrays",
    "open_image",
    "read_npz",
    "texts_in",
    "upright",
]
