"""What the views of a client and of the server have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

import torch
from typing_extensions import TypeVar

from protofl.data.batches import LEAST, Samples
from protofl.data.spec import SampleSpec
from protofl.hooks.malicious import malicious_clients
from protofl.hooks.views.run import RunInfo

ConfigT = TypeVar("ConfigT", default=Any, covariant=True)
"""The options of the method whose hook runs: ``pf.Client[Config]``."""


@dataclass(kw_only=True)
class Record:
    """What a client or the server is, behind its views.

    Attributes:
        configs: {method: its options}.
        public: The public samples, unlabelled; None where the run has none.
        state: {method: what it remembers}.
    """

    info: RunInfo
    seed: int
    device: torch.device
    configs: Mapping[str, Any]
    public: Samples | None = None
    round: int = -1
    state: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def malicious(self) -> frozenset[int]:
        """The clients that are malicious."""
        return malicious_clients(self.seed, self.info.num_clients, self.info.malicious)


class Sizes(Generic[ConfigT]):
    """A method's options and the sizes of its run.

    Attributes:
        config: The options of the method whose hook runs.
        device: Where it computes.
    """

    __slots__ = ("_config", "_info", "device")

    def __init__(self, config: ConfigT, info: RunInfo, device: torch.device) -> None:
        self._config, self._info, self.device = config, info, device

    @property
    def config(self) -> ConfigT:
        """The options of the method whose hook runs."""
        return self._config

    @property
    def num_classes(self) -> int:
        """C."""
        return self._info.num_classes

    @property
    def feature_dim(self) -> int:
        """K."""
        return self._info.feature_dim

    @property
    def sample(self) -> SampleSpec:
        """What a model sees of a sample: of it a net of the method's own is built."""
        return self._info.sample

    @property
    def batch_size(self) -> int:
        """Samples per mini-batch; an epoch's last one may hold fewer, or up to `largest_batch`."""
        return self._info.batch_size

    @property
    def largest_batch(self) -> int:
        """The most samples that a mini-batch may hold: a very small last one joins another."""
        return self.batch_size + LEAST - 1

    @property
    def least_batch(self) -> int:
        """The fewest samples that are a batch of their own, and that BatchNorm is trained on."""
        return LEAST

    @property
    def rounds(self) -> int:
        """Rounds of the run; what depends on them can't be continued with more."""
        self._info.asked.add("rounds")
        return self._info.rounds


class Recorded:
    """The round, the public samples, and what a method remembers from round to round."""

    __slots__ = ()
    _record: Record
    _owner: str

    @property
    def round(self) -> int:
        """The round's number, from 0; -1 at set-up."""
        return self._record.round

    @property
    def public(self) -> Samples | None:
        """The public samples, unlabelled; None where the run has none."""
        return self._record.public

    @property
    def state(self) -> dict[str, Any]:
        """What this method remembers here from round to round.

        Tensors, numbers, strings, and dicts and lists of them.
        """
        return self._record.state.setdefault(self._owner, {})
