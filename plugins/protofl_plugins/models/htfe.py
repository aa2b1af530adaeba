"""HtFE_X: X different feature extractors with alike classifiers; HtM10: other classifiers too.

FedTGP: Zhang et al., AAAI 2024 (https://arxiv.org/abs/2401.03230), section "Experiments";
HtFE5: Zhou et al., "FedSA: A Unified Representation Learning via Semantic Anchors for
Prototype-based Federated Learning"; HtM10: Zhang et al., "An Upload-Efficient Scheme for
Transferring Knowledge From a Server-Side Pre-trained Generator to Clients in Heterogeneous
Federated Learning" (FedKTL), CVPR 2024.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.models import imagenet as nets
from protofl_plugins.models.cnn import CNN4
from protofl_plugins.models.group import ModelGroup, SizedGroup


class HtFE2(SizedGroup):
    """CNN4 and ResNet18 (FedTGP)."""

    extractors = (CNN4, nets.RESNET18)


class HtFE3(SizedGroup):
    """ResNet10, 18 and 34 (FedTGP)."""

    extractors = (nets.RESNET10, nets.RESNET18, nets.RESNET34)


class HtFE4(SizedGroup):
    """CNN4, GoogLeNet, MobileNetV2 and ResNet18 (FedTGP)."""

    extractors = (CNN4, nets.GOOGLENET, nets.MOBILENET_V2, nets.RESNET18)


class HtFE5(SizedGroup):
    """CNN4, ResNet10, 18, 34 and 50 (FedSA).

    Another library's group of this name is GoogLeNet, MobileNetV2, ResNet18, 34 and 50.
    """

    extractors = (CNN4, nets.RESNET10, nets.RESNET18, nets.RESNET34, nets.RESNET50)


class HtFE8(SizedGroup):
    """CNN4, GoogLeNet, MobileNetV2, ResNet18, 34, 50, 101 and 152 (FedTGP)."""

    extractors = (
        CNN4,
        nets.GOOGLENET,
        nets.MOBILENET_V2,
        nets.RESNET18,
        nets.RESNET34,
        nets.RESNET50,
        nets.RESNET101,
        nets.RESNET152,
    )


class HtFE9(SizedGroup):
    """ResNet4, 6, 8, 10, 18, 34, 50, 101 and 152 (FedTGP)."""

    extractors = (
        nets.RESNET4,
        nets.RESNET6,
        nets.RESNET8,
        nets.RESNET10,
        nets.RESNET18,
        nets.RESNET34,
        nets.RESNET50,
        nets.RESNET101,
        nets.RESNET152,
    )


class HtM10(ModelGroup):
    """The extractors of htfe8, then ViT-B/16 and ViT-B/32 with heads of two layers (FedKTL)."""

    extractors = HtFE8.extractors

    def nets(self, config: pf.Config) -> list[pf.models.Architecture]:
        """Return the htfe8 extractors with linear heads; the ViTs with FC 768, tanh, FC C."""
        vits = (nets.VIT_B_16, nets.VIT_B_32)
        return [
            *(extractor.with_head() for extractor in self.members(config)),
            *(vit.with_head(nets.VIT_HEAD) for vit in vits),
        ]
