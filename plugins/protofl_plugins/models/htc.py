"""HtC4: four classifiers, on one feature extractor or on those of HtFE8.

FedTGP (Zhang et al., AAAI 2024, https://arxiv.org/abs/2401.03230), appendix A, "Architectures
of HtC4": C-d fc; 512-d fc, C-d fc; 256-d fc, C-d fc; 128-d fc, C-d fc.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.models.bottleneck import RESNET56
from protofl_plugins.models.cnn import CNN4
from protofl_plugins.models.group import SizedGroup
from protofl_plugins.models.htfe import HtFE8
from protofl_plugins.models.imagenet import RESNET34
from protofl_plugins.models.parts import LINEAR, Head

HEADS = (LINEAR, Head((512,)), Head((256,)), Head((128,)))
"""The classifiers; the suffixes +h1 to +h4 count them as the appendix does."""


class HeterogeneousHeads(SizedGroup):
    """Architecture i is extractor i mod X with head i mod 4; the auxiliary has a linear head."""

    server_extractors = (RESNET56, CNN4)
    auxiliary_architecture = "cnn4"

    def nets(self, config: pf.Config) -> list[pf.models.Architecture]:
        """Return architectures until extractors and heads repeat together."""
        extractors = self.members(config)
        number = max(len(extractors), len(HEADS))  # one divides the other
        return [
            extractors[i % len(extractors)].with_head(HEADS[i % 4], f"+h{i % 4 + 1}")
            for i in range(number)
        ]


class Res34HtC4(HeterogeneousHeads):
    """ResNet34 with four different heads in turn (FedTGP)."""

    extractors = (RESNET34,)


class HtFE8HtC4(HeterogeneousHeads, SizedGroup):
    """The extractors of htfe8 with four different heads in turn (FedTGP)."""

    extractors = HtFE8.extractors
