"""Variants: run options of published code that differ from the paper."""

from __future__ import annotations

from typing import Any

import protofl as pf


class DropsLastBatch:
    """A method whose published code leaves the last, smaller batch out."""

    @pf.hookimpl
    def run_defaults(self, config: pf.VariantConfig) -> dict[str, Any]:
        """Leave it out with ``variant=official``."""
        return {"drop_last": True} if config.variant == "official" else {}
