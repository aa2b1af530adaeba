"""HtCNN8: eight plain CNNs for grey images.

FedTGP (Zhang et al., AAAI 2024, https://arxiv.org/abs/2401.03230), appendix B, Table 9.
"""

from __future__ import annotations

from protofl_plugins.models.cnn import HTCNN8
from protofl_plugins.models.group import ModelGroup


class HtCNN8(ModelGroup):
    """Eight CNNs of one or two convolutions and one to three dense layers (FedTGP Table 9)."""

    extractors = HTCNN8
    min_side = 28
    channels = None
