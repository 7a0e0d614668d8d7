"""ResNet v1.5 (the stride is in the 3x3 convolution), with the names of torchvision's state dicts.

Deep Residual Learning for Image Recognition, https://arxiv.org/abs/1512.03385.
"""

from __future__ import annotations

from torch import Tensor, nn

BLOCKS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
WIDTHS = (64, 128, 256, 512)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image size at stride 1; it has no bias because a normalization follows."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, for ResNet-18 and -34."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, width, stride)
        nn.init.zeros_(self.bn2.weight)  # each block starts as its shortcut, so that deep networks learn faster

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the block to its input."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, around a shortcut, for ResNet-50 and deeper."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1, self.bn1 = convolution(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = convolution(width, outputs, 1), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, outputs, stride)
        nn.init.zeros_(self.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the block to its input."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """A projection of the input to the shape of the output, if they differ."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def stage(block: type[BasicBlock | Bottleneck], inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    """Consecutive blocks of one width; the first reduces the image size."""
    first, outputs = block(inputs, width, stride), width * block.expansion
    return nn.Sequential(first, *(block(outputs, width, 1) for _ in range(count - 1)))


class ResNet(nn.Module):
    """`ResNet("resnet50", classes=1000)`; the 3x3 stem is for small images such as those of CIFAR-10."""

    def __init__(self, arch: str, *, classes: int, stem: str = "7x7") -> None:
        super().__init__()
        block = BasicBlock if arch in ("resnet18", "resnet34") else Bottleneck
        small = stem == "3x3"
        self.conv1 = convolution(3, 64, 3) if small else convolution(3, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        inputs = (64, *(width * block.expansion for width in WIDTHS))
        stages = [stage(block, inputs[i], WIDTHS[i], BLOCKS[arch][i], stride) for i, stride in enumerate((1, 2, 2, 2))]
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs[-1], classes)
        # For small images keep torch's smaller weights: with normalization they learn in larger steps, and a run on
        # CIFAR-10 has only a few thousand steps (30 epochs at a rate of 0.1, one run each: 0.9316 vs. 0.9247).
        for module in () if small else self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))
