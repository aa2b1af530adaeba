"""FedPKD's ResNets: CIFAR nets of bottleneck blocks, 9n + 2 layers deep.

He et al. 2016 (https://arxiv.org/abs/1512.03385), section 4.2, with bottleneck blocks in place
of basic ones: a 3×3 stem of 16 channels, three stages of n blocks and widths 16, 32, 64 (output
×4, a projection in each stage's first block), global average pool. 256 features at every depth.
"""

from __future__ import annotations

from functools import partial

from torch import nn

import protofl as pf
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.torchvision_import import import_torchvision


def bottleneck_resnet(blocks: int, sample: pf.datasets.SampleSpec) -> nn.Module:
    """The extractor of ResNet(9·blocks + 2): B×channels×height×width → B×256."""
    import_torchvision()
    from torchvision.models.resnet import Bottleneck  # its import takes a second

    layers: list[nn.Module] = [
        nn.Conv2d(sample.shape[0], 16, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
    ]
    width = 16
    for stage, planes in enumerate((16, 32, 64)):
        out = planes * Bottleneck.expansion
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            projection = None
            if block == 0:
                projection = nn.Sequential(
                    nn.Conv2d(width, out, kernel_size=1, stride=stride, bias=False),
                    nn.BatchNorm2d(out),
                )
            layers.append(Bottleneck(width, planes, stride, projection))
            width = out
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


RESNET11 = Extractor("resnet11", partial(bottleneck_resnet, 1))
RESNET20 = Extractor("resnet20", partial(bottleneck_resnet, 2))
RESNET29 = Extractor("resnet29", partial(bottleneck_resnet, 3))
RESNET56 = Extractor("resnet56", partial(bottleneck_resnet, 6))
"""FedPKD's server model, offered by every group."""
