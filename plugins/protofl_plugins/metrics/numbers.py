"""Metrics of regressions: mean absolute error and R²."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

import protofl as pf


class MeanAbsoluteError:
    """Mean absolute error (MAE, regression), in the unit of the target."""

    tasks: ClassVar = ("regression",)
    usual_for = "regression"

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count Σ|y − ŷ| and samples, [2]."""
        errors = (scores.double() - labels.double()).abs()
        return torch.stack([errors.sum(), errors.new_tensor(float(len(errors)))])

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return Σ|y − ŷ| / n."""
        return counts[0] / counts[1]


class R2:
    """Coefficient of determination R² (regression); NaN where all numbers are equal."""

    tasks: ClassVar = ("regression",)
    usual_for = "regression"

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count n, Σy, Σy² and Σ(y − ŷ)², [4]."""
        y, guess = labels.double().flatten(), scores.double().flatten()
        parts = [y.new_tensor(float(len(y))), y.sum(), y.square().sum()]
        return torch.stack([*parts, (y - guess).square().sum()])

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return 1 − Σ(y − ŷ)² / Σ(y − ȳ)²."""
        n, total, squares, errors = counts.unbind()
        spread = squares - total.square() / n
        return torch.where(spread > 1e-12 * squares, 1 - errors / spread, torch.nan)
