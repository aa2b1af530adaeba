"""What a comparison finds, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protofl.errors import unknown
from protofl.records.recorded.columns import frame_of
from protofl_workbench.comparing.differences import Found
from protofl_workbench.comparing.tables import FORMATS, flat

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison(Found):
    """What `compare` finds.

    Attributes:
        tables: A table for each figure, on each data.
        notes: What has to be known to read them.
        paired: Whether differences are of pairs.
        shown: Names of the figures whose differences are shown; the others are counted too.
    """

    def text(self, format: str = "md") -> str:
        """The comparison as text.

        Args:
            format: ``md``, ``tex`` (booktabs), ``csv`` (a line for each group and figure) or
                ``json``.

        Raises:
            UsageError: There is no such format.
        """
        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        return FORMATS[format](self)

    def lines(self) -> list[dict[str, Any]]:
        """A flat mapping for each group and figure."""
        return flat(self)

    def frame(self) -> pd.DataFrame:
        """`lines` as a pandas frame.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(self.lines(), "Comparison.lines has the same")

    def __str__(self) -> str:
        return self.text("md")
