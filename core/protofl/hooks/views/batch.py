"""The arguments of a training step besides the client: batch, output, given tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from torch import Tensor

from protofl.errors import RunFailure


@dataclass(slots=True)
class Batch:
    """One mini-batch of local training.

    Attributes:
        x: What the model sees of the samples, B×… (`SampleSpec.shape`).
        y: Labels [B]; on the public phase's unlabelled samples an empty tensor.
        index: Rows of the samples in the phase's data, [B].
        phase: The phase's name.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    phase: str = "private"

    @property
    def draws(self) -> NoReturn:
        """Removed: version 1 of the hooks had the random draws of a step here.

        Raises:
            RunFailure: Always; it says what takes its place.
        """
        raise RunFailure(
            "batch.draws is of version 1 of the hooks",
            "what before_training returns is local_loss's argument `given`",
            "return pf.per_step(tensor) there, and read given[name]",
        )


@dataclass(slots=True)
class Output:
    """The output of the client's model on a batch: features f(x), B×K, and scores h(f(x)), B×C."""

    features: Tensor
    logits: Tensor


Given: TypeAlias = Mapping[str, Any]
"""What ``before_training`` returns and ``local_loss`` sees: names and tensors.

Numbers, strings and None are possible too, and mappings, lists and tuples of all these; in place
of a tensor `per_step` may stand.
"""


Terms: TypeAlias = Mapping[str, Tensor]
"""What ``local_loss`` returns: named scalar terms, already weighted."""


@dataclass(frozen=True)
class PerStep:
    """A tensor of which ``local_loss`` sees one row at a time; see `per_step`."""

    rows: Tensor


def per_step(tensor: Tensor) -> PerStep:
    """Have ``local_loss`` see row n of a tensor in step n of the phase.

    Args:
        tensor: A leading axis over the ``client.steps`` steps of the phase, then anything: labels
            and noise that were drawn for each step, say.
    """
    return PerStep(tensor)
