"""What is updated: weights in the shapes of Llama-3-8B's linear layers, and their gradients."""

import math
import platform

import torch
from torch import nn

from narrowcast.conversion.convert import convert

# One block: 218 million parameters.
LAYER = [
    (4096, 4096),
    (1024, 4096),
    (1024, 4096),
    (4096, 4096),
    (14336, 4096),
    (14336, 4096),
    (4096, 14336),
]
_MULTIPLE = 128  # of rows and columns in smaller ones: whole blocks in every format


def shapes_of(count: float) -> list[tuple[int, int]]:
    """Those of about so many parameters: whole layers, or one with smaller sides."""
    whole = sum(rows * columns for rows, columns in LAYER)
    if count >= whole:
        return LAYER * round(count / whole)
    scale = math.sqrt(count / whole)
    return [tuple(_MULTIPLE * max(1, round(n * scale / _MULTIPLE)) for n in one) for one in LAYER]


class Weights:
    """Makes a row's weights; the gradients are shared by all rows, since a step only reads them."""

    COPIED_BYTES = 28  # of each element, read and written: as many as AdamW moves in float32
    SHARED_BYTES = COPIED_BYTES + 2 + 4 + 8  # of all rows: gradients of two dtypes, and room

    def __init__(self, count: float, device: str):
        self.shapes, self.device, self.gradients = shapes_of(count), device, {}
        self.count = sum(rows * columns for rows, columns in self.shapes)
        on_gpu = device == "cuda"
        self.device_name = torch.cuda.get_device_name() if on_gpu else platform.machine()

    def make(self, format: str | None = None, gradients=torch.float32) -> list[nn.Parameter]:
        """float32 weights with gradients of a dtype, quantized if a format is given."""
        layers = []
        for rows, columns in self.shapes:
            sizes = {"in_features": columns, "out_features": rows, "bias": False}
            layer = nn.utils.skip_init(nn.Linear, **sizes, device=self.device)
            nn.init.normal_(layer.weight, std=0.02)
            layers.append(layer)
        module = nn.ModuleList(layers)
        if format is not None:
            convert(module, format)
        for weight, gradient in zip(module.parameters(), self._gradients(gradients), strict=True):
            if gradient.dtype != weight.dtype:
                weight.grad_dtype = None  # any
            weight.grad = gradient
        return list(module.parameters())

    def _gradients(self, dtype: torch.dtype) -> list[torch.Tensor]:
        if dtype not in self.gradients:
            made = (torch.randn(shape, device=self.device) for shape in self.shapes)
            self.gradients[dtype] = [one.mul_(1e-3).to(dtype) for one in made]
        return self.gradients[dtype]

    def copy(self):
        """A function that copies as many bytes as AdamW moves in float32."""
        size = self.COPIED_BYTES // 2 * self.count
        source = torch.zeros(size, dtype=torch.uint8, device=self.device)
        target = torch.zeros_like(source)
        return lambda: target.copy_(source)
