"""The model, its batches, and its parameters as the optimizer has them."""

import torch
import torch.nn.functional as F
from torch import nn

from models import Block


class Net(nn.Module):
    """The head's weight is frozen; the odd parameter makes offsets in flat buffers odd."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.block = Block(width, hidden)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, width)
        self.head.weight.requires_grad_(False)
        self.scale = nn.Parameter(torch.full((129,), 0.5))

    def forward(self, x):
        return self.head(self.norm(self.block(x))) * self.scale.mean()


def build(setup, seed: int) -> Net:
    """Plain, and equal in every process."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if setup.is_bf16 else torch.float32
    return Net(setup.width, setup.hidden).to(dtype)


def loss_of(model: Net, setup, seed: int) -> torch.Tensor:
    """Of a batch that is the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(4, setup.width, generator=generator) for _ in range(2))
    dtype = torch.bfloat16 if setup.is_bf16 else torch.float32
    out = model(x.to(setup.device, dtype))
    return F.mse_loss(out.float(), y.to(setup.device))


def groups(model: nn.Module) -> list[dict]:
    """Two groups of named parameters: matrices and the others."""
    named = [*model.named_parameters()]
    matrices, others = ([one for one in named if (one[1].dim() > 1) == is_2d] for is_2d in (1, 0))
    return [{"params": matrices}, {"params": others}]
