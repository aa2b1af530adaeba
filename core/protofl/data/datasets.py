"""Types and helpers for data sets, samples and image generators.

Public as ``protofl.datasets``.
"""

from protofl.data.array_files import open_arrays
from protofl.data.arrays import dataset_from_arrays
from protofl.data.columns import distinct, mapped_column
from protofl.data.dataset import Dataset, target_fields
from protofl.data.download import download, files_key
from protofl.data.file_kinds import kind_of_file
from protofl.data.fitting import Fitting
from protofl.data.generators import Generator, Outline
from protofl.data.image_files import (
    ImageFiles,
    decode_images,
    open_image,
)
from protofl.data.mapped import mapped_zeros
from protofl.data.npz import read_npz
from protofl.data.preparation import Fitted, Preparation, Scaling, Words
from protofl.data.spec import SampleSpec
from protofl.data.tasks import Task, TaskOptions

__all__ = [
    "Dataset",
    "Fitted",
    "Fitting",
    "Generator",
    "ImageFiles",
    "Outline",
    "Preparation",
    "SampleSpec",
    "Scaling",
    "Task",
    "TaskOptions",
    "Words",
    "dataset_from_arrays",
    "decode_images",
    "distinct",
    "download",
    "files_key",
    "kind_of_file",
    "mapped_column",
    "mapped_zeros",
    "open_arrays",
    "open_image",
    "read_npz",
    "target_fields",
]
