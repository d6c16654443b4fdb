"""Models written as people write them: the four of the paper's table, and some that are hard to read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeNet(nn.Module):
    """Functions between the layers, as in most tutorials."""

    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(800, 500)
        self.fc2 = nn.Linear(500, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(x), 2)
        x = F.max_pool2d(self.conv2(x), 2)
        x = x.view(x.size(0), -1)
        return self.fc2(F.relu(self.fc1(x)))


class AlexNet(nn.Module):
    """Krizhevsky et al., 2012: in the text of ModelHub's table its middle is other than in theirs."""

    def __init__(self, middle: Sequence[int] = (3,)) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 96, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.LocalResponseNorm(5, k=2.0),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(inplace=True), nn.LocalResponseNorm(5, k=2.0),
            nn.MaxPool2d(3, 2),
        ]  # fmt: skip
        channels = 256
        for count in middle:
            for place in range(count):
                out = 256 if place == count - 1 else 384
                groups = 1 if channels == 256 else 2
                layers += [nn.Conv2d(channels, out, 3, padding=1, groups=groups), nn.ReLU(inplace=True)]
                channels = out
            layers.append(nn.MaxPool2d(3, 2, padding=1 if len(middle) > 1 else 0))
        self.features = nn.Sequential(*layers)
        size = 6 if len(middle) == 1 else 4
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(256 * size * size, 4096), nn.ReLU(inplace=True),
            nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class VGG19(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(),
            nn.Dropout(), nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Bottleneck(nn.Module):
    def __init__(self, ins: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(ins, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or ins != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(ins, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, blocks: Sequence[int] = (3, 8, 36, 3), width: int = 64, outputs: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages, ins = [], width
        for stage, count in enumerate(blocks):
            for place in range(count):
                stages.append(Bottleneck(ins, width * 2**stage, 2 if stage and not place else 1))
                ins = 4 * width * 2**stage
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(ins, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.stages(x)), 1))


class Patches(nn.Module):
    """A small vision transformer: a class token that is expanded, positions that are added, sizes taken from shapes."""

    def __init__(self, features: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Conv2d(3, features, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, features))
        self.positions = nn.Parameter(torch.randn(1, 17, features))
        self.register_buffer("scale", torch.tensor(0.5))
        self.norm = nn.LayerNorm(features)
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        batch, _, features = x.shape
        x = torch.cat([self.token.expand(batch, -1, -1), x], dim=1) + self.positions
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, -1, self.heads, features // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, features)
        return F.log_softmax(self.out((x + y * self.scale)[:, 0]), dim=-1)


class Branches(nn.Module):
    """Branches that are joined, arithmetic with numbers on both sides, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding="same")
        self.b = nn.Conv2d(3, 4, 4, padding="same", dilation=2)
        self.up = nn.ConvTranspose2d(8, 3, 2, 2)
        self.norm = nn.GroupNorm(2, 8)
        self.act = nn.PReLU(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.act(self.norm(torch.cat([F.gelu(self.a(x)), 1 - self.b(x) / 2], 1)))
        z = torch.sigmoid(self.up(F.avg_pool2d(y, 2, padding=1, count_include_pad=False)[:, :, :-1, 1:]))
        return 2 / (z + 1.5) ** 2, y.mean((2, 3)).clamp(min=-1.0)


class Tagger(nn.Module):
    """Embedding, recurrence, and a last layer with the embedding's own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=0)
        self.rnn = nn.LSTM(6, 6, num_layers=2, batch_first=True)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        y, (h, _) = self.rnn(self.embed(x))
        y = y + h[-1].unsqueeze(1)
        return self.out(y if start is None else y + start)


class Twice(nn.Module):
    """One layer, used two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(torch.tanh(self.norm(self.layer(x)))))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.RMSNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])


class Decides(nn.Module):
    """What it computes depends on a value: only running it shows what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(4, 3)
        self.large = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        if float(x.abs().sum()) > 1.0:
            return F.softmax(self.large(x).view(x.shape[0], 3) * 2, dim=1)
        return self.small(x)
