"""The preparation of a data set: what it does to raw samples before it stores them.

A data set declares its preparation once, and stores samples that went through it. The run records
the preparation, and exported clients contain it, so raw samples can be scored later. (What a model
group does to stored samples is a `protofl.data.spec.ModelInput`.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from protofl.data.spec import SampleSpec
from protofl.errors import UsageError

if TYPE_CHECKING:
    from protofl.data.raw_files import ImageFiles, Words

__all__ = ["Fitted", "Preparation", "Scaling"]


@dataclass(frozen=True)
class Scaling:
    """Shift and scale of each column of a table or each channel of a series: (x − shift) / scale.

    Computed in float64, so that stored samples and those of an exported client are equal bit for
    bit.

    Attributes:
        shift: One number for each column or channel, such as its mean over the training part.
        scale: One number other than 0 for each, such as its standard deviation.
        decimals: Decimals to which results are rounded; None for no rounding.
        fill: One number for each that takes the place of NaN, a missing value; None for data
            without such.
    """

    SILENT: ClassVar[float] = 1e30
    """Scale of a column whose known numbers are all equal: all its numbers become 0."""

    shift: tuple[float, ...]
    scale: tuple[float, ...]
    decimals: int | None = None
    fill: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("shift", "scale"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if not self.shift or len(self.shift) != len(self.scale):
            raise UsageError(
                f"a scaling with {len(self.shift)} shifts and {len(self.scale)} scales",
                do="give one of each for every column or channel",
            )
        if self.fill is not None:
            object.__setattr__(self, "fill", tuple(float(value) for value in self.fill))
            if len(self.fill or ()) != len(self.shift):
                raise UsageError("a scaling with another number of fills than of shifts")
        numbers = (*self.shift, *self.scale, *(self.fill or ()))
        if not all(map(math.isfinite, numbers)) or 0 in self.scale:
            raise UsageError("a scaling with a scale of 0, or a number that is not finite")
        if self.decimals is not None and not 0 <= self.decimals <= 15:
            raise UsageError(f"a scaling that rounds to {self.decimals} decimals", "from 0 to 15")

    def __call__(self, x: Tensor) -> Tensor:
        """Scale samples [N, D, …], D columns or channels; return float32."""
        wide = (1, -1, *(1,) * (x.dim() - 2))

        def each(numbers: Sequence[float]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.float64, device=x.device).view(wide)

        result = x.to(torch.float64)
        if self.fill is not None:
            result = torch.where(result.isnan(), each(self.fill), result)
        result = (result - each(self.shift)) / each(self.scale)
        if self.decimals is not None:
            factor = 10.0**self.decimals
            result = (result * factor).round() / factor
        return result.to(torch.float32)


@dataclass(frozen=True)
class Fitted:
    """A preparation with statistics that each run fits to training rows (`protofl.data.fitting`).

    Attributes:
        form: What the plugin knows of raw samples, as JSON values.
        about: The samples in words: ``4 features (2 numeric, 2 categories)``.
        label: The column of new files that holds the labels.
        missing: Share of values that are missing.
        per_client: True if each client has statistics of its own training rows; False for
            statistics of all clients' training rows.
        dataset: The data set whose plugin fits the statistics and reads new samples; filled in when
            the data are loaded, if it is empty.
        package: The package of the plugin, for machines that lack it; filled in by the run.
    """

    form: Mapping[str, Any]
    about: str = field(compare=False)
    label: str = ""
    missing: float = field(default=0.0, compare=False)
    per_client: bool = True
    dataset: str = field(default="", compare=False)
    package: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Take the form as a JSON file has it."""
        object.__setattr__(self, "form", json.loads(json.dumps(self.form)))

    def __str__(self) -> str:
        """Return a line for the user."""
        whose = "each client's" if self.per_client else "all"
        return f"{self.about}, by statistics of {whose} training rows"


@dataclass(frozen=True)
class Preparation:
    """Preparation of raw samples by a data set; without parts, samples are stored raw.

    Attributes:
        scaling: The scaling of numbers, for tables and series.
        words: The numbering of words, for texts.
        images: How image files became pixels, if not as usual; raw images are pixels already.
        fitted: The statistics that each run fits to the training rows of its clients. The data set
            stores samples to which they are not applied.
        clients: The scaling of each client in each trial of a run that fitted them,
            [trial][client]; a single client's if all have the same.
    """

    scaling: Scaling | None = None
    words: Words | None = None
    images: ImageFiles | None = None
    fitted: Fitted | None = None
    clients: tuple[tuple[Scaling, ...], ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """Return what models get of raw samples [N, …]; texts are token ids already.

        Raises:
            UsageError: Each client has a scaling of its own, see `of_client`.
        """
        if self.fitted is not None and self.scaling is None:
            raise UsageError(
                "the samples are prepared by the statistics of a client's training rows",
                do="name a client",
            )
        return x if self.scaling is None else self.scaling(x)

    def of_client(self, client: int, trial: int) -> Preparation:
        """Return the preparation of a client, without statistics of the others."""
        if not self.clients:
            return self
        scalings = self.clients[min(trial, len(self.clients) - 1)]
        scaling = scalings[client if len(scalings) > 1 else 0]
        return replace(self, scaling=scaling, clients=())

    def faults(self, sample: SampleSpec) -> list[str]:
        """Return what does not fit to a stored sample; empty if nothing."""
        result = []
        if self.scaling is not None:
            if sample.kind not in ("table", "series"):
                result.append(f"its preparation scales, and its samples are {sample}")
            elif len(self.scaling.shift) != sample.shape[0]:
                count = len(self.scaling.shift)
                result.append(f"its preparation scales {count} columns of {sample}")
        if self.words is not None:
            has = (sample.kind, sample.vocabulary, sample.shape)
            if has != ("tokens", self.words.vocabulary, (self.words.length,)):
                description = f"{self.words.length:,} tokens ({self.words.vocabulary:,} ids)"
                result.append(
                    f"its preparation makes sequences of {description}, and its samples: {sample}"
                )
        if self.fitted is not None and sample.kind not in ("table", "series"):
            result.append(f"its preparation fits scales, and its samples are {sample}")
        if self.images is not None and sample.kind != "image":
            result.append(f"its preparation is of image files, and its samples are {sample}")
        return result

    def as_json(self) -> dict[str, Any]:
        """Return its parts as JSON values; `of_json` reads them."""
        parts = {name: values for name, values in asdict(self).items() if values is not None}
        if not self.clients:
            parts.pop("clients")
        for scaling in (parts.get("scaling", {}), *chain(*parts.get("clients", ()))):
            if scaling.get("fill", ()) is None:  # no value is missing
                scaling.pop("fill")
        return parts

    @classmethod
    def of_json(cls, values: object, source: str) -> Preparation:
        """Return the preparation that `as_json` wrote.

        Args:
            values: Its parts.
            source: Where they come from, for errors.

        Raises:
            UsageError: A part is unknown or damaged.
        """
        parts: dict[str, Callable[..., Any]] = {
            "scaling": Scaling,
            "fitted": Fitted,
            "clients": _scalings,
        }
        if not isinstance(values, Mapping):
            raise UsageError(f"{source}: a preparation is a table, got {type(values).__name__}")
        if not values.keys() <= parts.keys():
            from protofl.data.raw_files import ImageFiles, Words

            parts |= {"words": Words, "images": ImageFiles}
        if unknown := [name for name in values if name not in parts]:
            raise UsageError(
                f"{source}: the preparation has an unknown part {unknown[0]!r}",
                f"this version knows: {', '.join(parts)}",
                "use the version of protofl that wrote it, or a newer one",
            )
        try:
            return cls(
                **{
                    name: parts[name](**arguments)
                    if isinstance(arguments, Mapping)
                    else parts[name](arguments)
                    for name, arguments in values.items()
                }
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"{source}: the preparation is damaged: {error}") from error

    def __str__(self) -> str:
        """Return a line for the user."""
        notes = []
        if self.fitted is not None:
            notes.append(str(self.fitted))
        elif self.scaling is not None:
            count = len(self.scaling.shift)
            notes.append(f"(x − shift) / scale, with {count:,} recorded shifts and scales")
        if self.words is not None:
            notes.append(f"token ids of {len(self.words.words):,} recorded words")
        if self.images is not None:
            notes.append(str(self.images))
        return "; ".join(notes) or "none: raw samples are stored as they are"


def _scalings(trials: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[tuple[Scaling, ...], ...]:
    """Return the scalings of a JSON file."""
    return tuple(tuple(Scaling(**values) for values in clients) for clients in trials)
