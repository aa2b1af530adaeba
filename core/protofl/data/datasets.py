"""Types and helpers for data sets, samples and image generators.

Public as ``protofl.datasets``.
"""

from typing import TYPE_CHECKING

from protofl.system.public_names import on_first_use

if TYPE_CHECKING:
    from protofl.data.array_files import open_arrays as open_arrays
    from protofl.data.arrays import dataset_from_arrays as dataset_from_arrays
    from protofl.data.columns import columns_of_arrays as columns_of_arrays
    from protofl.data.columns import distinct as distinct
    from protofl.data.columns import mapped_column as mapped_column
    from protofl.data.dataset import Dataset as Dataset
    from protofl.data.dataset import class_names as class_names
    from protofl.data.download import download as download
    from protofl.data.download import files_key as files_key
    from protofl.data.fitting import Fitting as Fitting
    from protofl.data.generators import Generator as Generator
    from protofl.data.generators import Outline as Outline
    from protofl.data.mapped import mapped_zeros as mapped_zeros
    from protofl.data.preparation import Fitted as Fitted
    from protofl.data.preparation import Preparation as Preparation
    from protofl.data.preparation import Scaling as Scaling
    from protofl.data.raw_files import ImageFiles as ImageFiles
    from protofl.data.raw_files import Words as Words
    from protofl.data.spec import SampleSpec as SampleSpec
    from protofl.data.targets import target_fields as target_fields
    from protofl.data.tasks import Task as Task
    from protofl.data.tasks import TaskOptions as TaskOptions

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
        "protofl.data.preparation": "Fitted Preparation Scaling",
        "protofl.data.raw_files": "ImageFiles Words",
        "protofl.data.spec": "SampleSpec",
        "protofl.data.targets": "target_fields",
        "protofl.data.tasks": "Task TaskOptions",
    },
)

__all__ = __dir__()
