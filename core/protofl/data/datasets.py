"""Types and helpers for data sets, samples and image generators.

Public as ``protofl.datasets``.
"""

from typing import TYPE_CHECKING

from protofl.system.public_names import on_first_use

if TYPE_CHECKING:
    from protofl.data.array_files import open_arrays
    from protofl.data.arrays import dataset_from_arrays
    from protofl.data.columns import columns_of_arrays, distinct, mapped_column
    from protofl.data.dataset import Dataset, class_names
    from protofl.data.download import download, files_key
    from protofl.data.fitting import Fitting
    from protofl.data.generators import Generator, Outline
    from protofl.data.mapped import mapped_zeros
    from protofl.data.preparation import Fitted, ImageFiles, Preparation, Scaling, Words
    from protofl.data.spec import SampleSpec
    from protofl.data.targets import target_fields
    from protofl.data.tasks import Task, TaskOptions

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "protofl.data.array_files": "open_arrays",
        "protofl.data.arrays": "dataset_from_arrays",
        "protofl.data.columns": "columns_of_arrays distinct mapped_column",
        "protofl.data.dataset": "Dataset class_names",
        "protofl.data.download": "download files_key",
        "protofl.data.fitting": "Fitting",
        "protofl.data.generators": "Generator Outline",
        "protofl.data.mapped": "mapped_zeros",
        "protofl.data.preparation": "Fitted ImageFiles Preparation Scaling Words",
        "protofl.data.spec": "SampleSpec",
        "protofl.data.targets": "target_fields",
        "protofl.data.tasks": "Task TaskOptions",
    },
)

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
    "class_names",
    "columns_of_arrays",
    "dataset_from_arrays",
    "distinct",
    "download",
    "files_key",
    "mapped_column",
    "mapped_zeros",
    "open_arrays",
    "target_fields",
]
