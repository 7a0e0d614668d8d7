# pyright: basic
"""ResNet-18/34/50/101/152 v1.5 with torchvision's state-dict names, and a 3x3 stem for 32x32 images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride: v1.5) and 1x1 convolutions."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """The network; small_stem replaces the 7x7 convolution and the pooling by a 3x3 convolution."""

    def __init__(self, arch: str = "resnet50", classes: int = 1000, small_stem: bool = False) -> None:
        super().__init__()
        if arch not in LAYERS:
            raise ValueError(f"no architecture {arch!r}: choose one of {', '.join(LAYERS)}")
        block = BasicBlock if arch in ("resnet18", "resnet34") else Bottleneck
        self.inputs = 64
        self.conv1 = _conv(3, 64, 3 if small_stem else 7, 1 if small_stem else 2)
        self.bn1, self.relu = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        one, two, three, four = LAYERS[arch]
        self.layer1 = self._layer(block, 64, one, 1)
        self.layer2 = self._layer(block, 128, two, 2)
        self.layer3 = self._layer(block, 256, three, 2)
        self.layer4 = self._layer(block, 512, four, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def _layer(self, block: type[BasicBlock] | type[Bottleneck], width: int, count: int, stride: int) -> nn.Sequential:
        outputs = width * block.expansion
        down = None
        if stride != 1 or self.inputs != outputs:
            down = nn.Sequential(_conv(self.inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        first = block(self.inputs, width, stride, down)
        self.inputs = outputs
        return nn.Sequential(first, *(block(outputs, width, 1, None) for _ in range(count - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))
