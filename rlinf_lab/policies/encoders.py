"""From a prepared observation to one row of features.

Flat leaves as they are, images through a small convolutional net.

Legend: B batch, C channels, H height, W width, X features.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_lab.policies.leaves import Kind, Leaf, flatten, in_rows, leaves_of
from rlinf_lab.policies.mlp import blank

NATURE_PIXELS = 36  # the smallest image that passes through the three layers of the Nature net


class CombinedEncoder(nn.Module):
    """Every leaf of the observation in one row.

    Images through a net of their own, all others as they are.

    The net of an image of at least 36 pixels a side is that of Mnih et al., Human-level control through deep
    reinforcement learning (Nature 518, 2015, Methods); smaller ones have two layers with a stride of 2. Without images
    nothing here has weights.
    """

    def __init__(self, space: Any, generator: torch.Generator, image_features: int = 256) -> None:
        super().__init__()
        self.space = space
        leaves = leaves_of(space)
        self.images = nn.ModuleDict(
            {
                str(i): image_net(leaf, image_features, generator)
                for i, leaf in enumerate(leaves)
                if leaf.kind is Kind.IMAGE
            }
        )
        self.features_dim = sum(image_features if leaf.kind is Kind.IMAGE else leaf.size for leaf in leaves)

    def forward(self, prepared: Any) -> Tensor:
        rows = [
            self.images[str(i)](x) if str(i) in self.images else in_rows(x)
            for i, x in enumerate(flatten(self.space, prepared))
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def extra_repr(self) -> str:
        return f"features_dim={self.features_dim}"


class FirstConvolution(nn.Conv2d):
    """Of a picture. In half precision on a core by `in_blocks`: for one channel oneDNN's gradient takes ten times as long."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size, self.stride
        fits = kernel[0] == kernel[1] and stride[0] == stride[1] and kernel[0] % stride[0] == 0 and stride[0] % 4 == 0 and self.padding == (0, 0)
        plain = torch.compiler.is_compiling() or x.requires_grad or not x.is_cpu or not torch.is_autocast_enabled("cpu")
        if plain or not fits:
            return super().forward(x)
        return in_blocks(x.to(torch.get_autocast_dtype("cpu")), self.weight, self.bias, stride[0])


def in_blocks(x_BCHW: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """What `torch.nn.functional.conv2d` gives for some square kernels.

    Those that are a multiple of their ``stride``, itself a multiple of 4.

    Squares of ``stride`` pixels become the channels of one, and the stride 1 (Shi et al., arXiv 1609.05158, backwards). Without a gradient for the picture.
    """
    (outputs, channels, kernel, _), s = weight.shape, stride
    m = kernel // s
    height, width = ((pixels - kernel) // s + m for pixels in x_BCHW.shape[2:])
    rows = x_BCHW.permute(0, 2, 3, 1)[:, : height * s, : width * s].reshape(len(x_BCHW), height, s, width, s * channels)
    # a row of a square is some whole numbers of 64 bits: fewer and larger pieces to copy (rows that were cut have odd steps)
    squares = rows.contiguous().view(torch.int64).transpose(2, 3).contiguous().view(x_BCHW.dtype)
    blocks = squares.reshape(len(x_BCHW), height, width, s * s * channels).permute(0, 3, 1, 2)
    by_block = weight.reshape(outputs, channels, m, s, m, s).permute(0, 3, 5, 1, 2, 4).reshape(outputs, s * s * channels, m, m)
    return nn.functional.conv2d(blocks, by_block, bias)


def image_net(leaf: Leaf, features: int, generator: torch.Generator) -> nn.Sequential:
    """A convolutional net from (B, C, H, W) to (B, ``features``), orthogonal weights."""
    channels, height, width = leaf.prepared_shape
    if min(height, width) >= NATURE_PIXELS:
        shape = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
    else:
        shape = [(32, 3, 2, 1), (64, 3, 2, 1)]
    layers: list[nn.Module] = []  # relu in place: of pictures the copies take as long as the relu
    for outputs, kernel, stride, padding in shape:
        kind = nn.Conv2d if layers else FirstConvolution
        layers += [blank(kind, channels, outputs, kernel, stride=stride, padding=padding), nn.ReLU(inplace=True)]
        channels, height, width = (
            outputs,
            _after(height, kernel, stride, padding),
            _after(width, kernel, stride, padding),
        )
    layers += [nn.Flatten(), blank(nn.Linear, channels * height * width, features), nn.ReLU(inplace=True)]
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return nn.Sequential(*layers)


def _after(pixels: int, kernel: int, stride: int, padding: int) -> int:
    return (pixels + 2 * padding - kernel) // stride + 1
