"""Groups of one architecture: FedTGP's Table 11 and FedSA's homogeneous setting."""

from __future__ import annotations

from protofl_plugins.models.bottleneck import RESNET56
from protofl_plugins.models.cnn import CNN4
from protofl_plugins.models.group import ModelGroup, SizedGroup
from protofl_plugins.models.imagenet import RESNET10, RESNET18, RESNET34


class CNN4Group(ModelGroup):
    """The 4-layer CNN for everybody, on the images' own channels."""

    extractors = (CNN4,)
    min_side = 28
    channels = None


class _OneResNet(SizedGroup):
    # FedTGP, appendix A, "Model heterogeneity": the 4-layer CNN is the auxiliary model of FML and
    # FedKD where all clients have one architecture.
    server_extractors = (RESNET56, CNN4)
    auxiliary_architecture = "cnn4"


class ResNet10Group(_OneResNet):
    """ResNet10 for everybody (FedTGP Table 11)."""

    extractors = (RESNET10,)


class ResNet18Group(_OneResNet):
    """ResNet18 for everybody (FedTGP Table 11)."""

    extractors = (RESNET18,)


class ResNet34Group(_OneResNet):
    """ResNet34 for everybody (FedTGP Table 11)."""

    extractors = (RESNET34,)
