"""The model groups of FedPKD: CIFAR bottleneck ResNets.

Lyu et al., "A Prototype-Based Knowledge Distillation Framework for Heterogeneous Federated
Learning", section "Models": clients hold one of ResNet11, 20 and 29, or all ResNet20; the server
holds ResNet56.
"""

from __future__ import annotations

from protofl_plugins.models.bottleneck import RESNET11, RESNET20, RESNET29
from protofl_plugins.models.group import ModelGroup


class FedPKDHet(ModelGroup):
    """CIFAR bottleneck ResNet11, 20 and 29; server ResNet56 (FedPKD)."""

    extractors = (RESNET11, RESNET20, RESNET29)
    feature_dim = 256


class FedPKDHom(ModelGroup):
    """CIFAR bottleneck ResNet20 for everybody; server ResNet56 (FedPKD)."""

    extractors = (RESNET20,)
    feature_dim = 256
